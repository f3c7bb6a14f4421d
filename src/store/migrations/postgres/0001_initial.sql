-- Times are microseconds since 1970 UTC; NULL means "not set". Payload columns begin with a tag byte (store/payload.h).
-- `key` is the store's own small integer; ids that the world sees appear once. Text that users choose freely is BYTEA,
-- since TEXT holds no NUL.

-- Kernels take their keys in blocks, so that a new execution costs no round trip.
CREATE SEQUENCE execution_keys INCREMENT BY 64;
CREATE SEQUENCE blob_keys INCREMENT BY 64;

CREATE TABLE agents (
    id TEXT COLLATE "C" PRIMARY KEY,
    webhook_url TEXT NOT NULL,
    secret BYTEA NOT NULL,
    previous_secret BYTEA,
    previous_secret_until BIGINT,
    lease_timeout BIGINT,
    registered_at BIGINT NOT NULL,
    policy_hash BYTEA, -- sha256 of the bundle
    -- What may be large and no rule looks at, behind all that is read for each step.
    policy_bundle BYTEA,
    description BYTEA,
    input_schema BYTEA,
    output_schema BYTEA
);

-- The row of an execution is the lock of all that belongs to it.
CREATE TABLE executions (
    key BIGINT PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    agent_id TEXT COLLATE "C" NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'blocked', 'completed', 'failed', 'cancelled')),
    last_seq BIGINT NOT NULL, -- may lag behind the log: a step does not write this row
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    deadline_at BIGINT,
    claim BIGINT NOT NULL,
    owner TEXT NOT NULL CHECK (owner IN ('none', 'working', 'ended')),
    owner_dispatch BYTEA,
    owner_attempt BIGINT NOT NULL,
    owner_lease BIGINT NOT NULL,
    tokens BIGINT NOT NULL, -- recorded on its steps
    lease_until BIGINT, -- the database's clock; in no index, so that a renewal stays on its page
    indeterminate BYTEA,
    parked BYTEA,
    session BYTEA,
    parent BYTEA, -- the id of the execution that it continues
    idempotency_key TEXT,
    created_by BYTEA,
    on_behalf_of BYTEA,
    failure_reason BYTEA,
    input BYTEA,
    output BYTEA,
    state BYTEA
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX executions_request_key ON executions (agent_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_by_agent ON executions (agent_id, status, id);
CREATE INDEX executions_by_status ON executions (status, id);
CREATE INDEX executions_deadline ON executions (deadline_at)
    WHERE deadline_at IS NOT NULL AND status IN ('pending', 'running', 'blocked');
CREATE INDEX executions_working ON executions (id) WHERE owner = 'working';
CREATE INDEX executions_by_session ON executions (session, status, id, agent_id) WHERE session IS NOT NULL;
-- Whose state the next of its agent continues.
CREATE INDEX executions_completed ON executions (session, agent_id, id)
    WHERE status = 'completed' AND session IS NOT NULL;
CREATE INDEX executions_waiting ON executions (session, id) WHERE status = 'pending' AND session IS NOT NULL;

-- The lock of a session: who holds it and who waits for it is decided under it. All else is known by its executions.
CREATE TABLE sessions (
    name BYTEA PRIMARY KEY
) WITH (fillfactor = 90);

CREATE TABLE dispatches (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    execution_key BIGINT NOT NULL REFERENCES executions (key),
    agent_id TEXT COLLATE "C" NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('queued', 'claimed', 'acked', 'retired')),
    attempt BIGINT NOT NULL,
    charged BIGINT NOT NULL,
    charged_since BIGINT,
    spared BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    grace_until BIGINT,
    queued_at BIGINT NOT NULL
) WITH (fillfactor = 70);
-- An execution never has two dispatches that live.
CREATE UNIQUE INDEX dispatches_live ON dispatches (execution_key) WHERE status <> 'retired';
CREATE INDEX dispatches_due ON dispatches (agent_id, due_at) WHERE status = 'queued';

CREATE TABLE steps (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- rises with the order of creation within an execution
    execution_key BIGINT NOT NULL,
    step_id BYTEA NOT NULL,
    kind TEXT NOT NULL,
    target BYTEA NOT NULL,
    args_hash BYTEA NOT NULL,
    occurrence BIGINT NOT NULL,
    status TEXT NOT NULL,
    idempotency TEXT NOT NULL,
    claim BIGINT NOT NULL,
    rule_id BYTEA,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    completed_at BIGINT,
    input_tokens BIGINT, -- of a succeeded model call whose answer carried counts
    output_tokens BIGINT,
    args BYTEA,
    result BYTEA,
    error BYTEA
) WITH (fillfactor = 50); -- the outcome is a second, larger version of the row, on the same page
-- Eight bytes of a hash find it; the whole id is compared after the fetch.
-- No index of the live ones: an outcome would then be no update within the page, and only a cancel asks for them.
CREATE INDEX steps_by_id ON steps (execution_key, substr(step_id, 1, 8));

-- The log: one row a transition, appended. A body's format is kernel/event.h's.
CREATE TABLE events (
    execution_key BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    count BIGINT NOT NULL,
    occurred_at BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (execution_key, first_seq)
);

-- Counted submissions; rows of an older claim than the execution's count as none.
CREATE TABLE submissions (
    execution_key BIGINT NOT NULL,
    call BYTEA NOT NULL,
    claim BIGINT NOT NULL,
    count BIGINT NOT NULL,
    PRIMARY KEY (execution_key, call)
) WITH (fillfactor = 80);
CREATE TABLE submission_keys (
    execution_key BIGINT NOT NULL,
    request_key BYTEA NOT NULL,
    claim BIGINT NOT NULL,
    call BYTEA NOT NULL,
    step_id BYTEA NOT NULL,
    PRIMARY KEY (execution_key, request_key)
);

CREATE TABLE approvals (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    execution_key BIGINT NOT NULL REFERENCES executions (key),
    step_id BYTEA NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'granted', 'denied', 'expired')),
    approvers BYTEA, -- a JSON list of names
    message BYTEA,
    created_at BIGINT NOT NULL,
    timeout_at BIGINT NOT NULL,
    decided_at BIGINT,
    decided_by BYTEA,
    asserted_by BYTEA,
    rationale BYTEA
);
CREATE INDEX approvals_by_status ON approvals (status, timeout_at, key);
CREATE INDEX approvals_by_execution ON approvals (execution_key, status, timeout_at, key);

-- Token buckets of rate limits. One that is full again says no more than one that is not here.
CREATE TABLE buckets (
    key BYTEA PRIMARY KEY,
    full_at BIGINT
) WITH (fillfactor = 50);

-- Payloads over 2 KiB in parts of 256 KiB. Stored as they are: compressing them here would cost the writer more than the disk.
CREATE TABLE blobs (
    key BIGINT PRIMARY KEY,
    data BYTEA NOT NULL
);
ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;

-- Each writer's row holds the number of its last transaction that is durable (store/postgres_fate.h).
CREATE TABLE writers (
    id BYTEA PRIMARY KEY,
    number BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
) WITH (fillfactor = 50); -- written by each transaction: its versions stay on their page

-- How often a writer came back after an error: writing it proves that the database takes writes again.
CREATE TABLE recoveries (
    count BIGINT NOT NULL
);
INSERT INTO recoveries (count) VALUES (0);
