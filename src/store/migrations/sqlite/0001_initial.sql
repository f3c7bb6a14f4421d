-- Times are microseconds since 1970 UTC; NULL means "not set". Payload columns begin with a tag byte (store/payload.h).
-- `key` is the store's own small integer; ids that the world sees appear once.

CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    webhook_url TEXT NOT NULL,
    secret BLOB NOT NULL,
    previous_secret BLOB,
    previous_secret_until BIGINT,
    lease_timeout BIGINT,
    registered_at BIGINT NOT NULL,
    policy_hash BLOB, -- sha256 of the bundle
    -- What may be large and no rule looks at, behind all that is read for each step.
    policy_bundle BLOB,
    description BLOB,
    input_schema BLOB,
    output_schema BLOB
);

CREATE TABLE executions (
    key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    agent_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'blocked', 'completed', 'failed', 'cancelled')),
    last_seq BIGINT NOT NULL, -- may lag behind the log: a step does not write this row
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    deadline_at BIGINT,
    claim BIGINT NOT NULL,
    owner TEXT NOT NULL CHECK (owner IN ('none', 'working', 'ended')),
    owner_dispatch BLOB,
    owner_attempt BIGINT NOT NULL,
    owner_lease BIGINT NOT NULL,
    tokens BIGINT NOT NULL, -- recorded on its steps
    indeterminate BLOB,
    parked BLOB,
    session BLOB,
    parent BLOB, -- the id of the execution that it continues
    idempotency_key TEXT,
    created_by BLOB,
    on_behalf_of BLOB,
    failure_reason BLOB,
    input BLOB,
    output BLOB,
    state BLOB
);
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

CREATE TABLE dispatches (
    key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    execution_key BIGINT NOT NULL REFERENCES executions (key),
    agent_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('queued', 'claimed', 'acked', 'retired')),
    attempt BIGINT NOT NULL,
    charged BIGINT NOT NULL,
    charged_since BIGINT,
    spared BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    grace_until BIGINT,
    queued_at BIGINT NOT NULL
);
-- An execution never has two dispatches that live.
CREATE UNIQUE INDEX dispatches_live ON dispatches (execution_key) WHERE status <> 'retired';
CREATE INDEX dispatches_due ON dispatches (agent_id, due_at) WHERE status = 'queued';

-- Appended in the order of creation. The outcome is an update of a row that is still near the end.
CREATE TABLE steps (
    key INTEGER PRIMARY KEY,
    execution_key BIGINT NOT NULL,
    step_id BLOB NOT NULL,
    kind TEXT NOT NULL,
    target BLOB NOT NULL,
    args_hash BLOB NOT NULL,
    occurrence BIGINT NOT NULL,
    status TEXT NOT NULL,
    idempotency TEXT NOT NULL,
    claim BIGINT NOT NULL,
    rule_id BLOB,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    completed_at BIGINT,
    input_tokens BIGINT, -- of a succeeded model call whose answer carried counts
    output_tokens BIGINT,
    args BLOB,
    result BLOB,
    error BLOB
);
-- Eight bytes of a hash find it; the whole id is compared after the fetch.
CREATE INDEX steps_by_id ON steps (execution_key, substr(step_id, 1, 8));
-- Small, since what has completed leaves it.
CREATE INDEX steps_live ON steps (execution_key) WHERE completed_at IS NULL;

-- The log: one row a transition, appended. A body's format is kernel/event.h's.
CREATE TABLE events (
    execution_key BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    count BIGINT NOT NULL,
    occurred_at BIGINT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX events_by_execution ON events (execution_key, first_seq);

-- Counted submissions of the current claim: appended, read once at start, swept when their claim is over.
CREATE TABLE submissions (
    key INTEGER PRIMARY KEY,
    execution_key BIGINT NOT NULL,
    claim BIGINT NOT NULL,
    call BLOB NOT NULL,
    request_key BLOB,
    step_id BLOB -- with a request_key only
);

CREATE TABLE approvals (
    key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    execution_key BIGINT NOT NULL REFERENCES executions (key),
    step_id BLOB NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'granted', 'denied', 'expired')),
    approvers BLOB, -- a JSON list of names
    message BLOB,
    created_at BIGINT NOT NULL,
    timeout_at BIGINT NOT NULL,
    decided_at BIGINT,
    decided_by BLOB,
    asserted_by BLOB,
    rationale BLOB
);
CREATE INDEX approvals_by_status ON approvals (status, timeout_at, key);
CREATE INDEX approvals_by_execution ON approvals (execution_key, status, timeout_at, key);

-- Token buckets of rate limits. One that is full again says no more than one that is not here.
CREATE TABLE buckets (
    key BLOB PRIMARY KEY,
    full_at BIGINT
) WITHOUT ROWID;

-- Payloads over 2 KiB in parts of 256 KiB, so that an update of the row that refers to one does not write it again.
CREATE TABLE blobs (
    key INTEGER PRIMARY KEY,
    data BLOB NOT NULL
);

-- How often a writer came back after an error: writing it proves that the database takes writes again.
CREATE TABLE recoveries (
    count BIGINT NOT NULL
);
INSERT INTO recoveries (count) VALUES (0);
