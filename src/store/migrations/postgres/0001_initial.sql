-- Times are microseconds since 1970 UTC; NULL means "not set". Payload columns begin with a tag byte (store/payload.h).
-- `key` is the store's own small integer; ids that the world sees appear once. Text that users choose freely is BYTEA,
-- since TEXT holds no NUL.

-- Kernels take their keys in blocks, so that a new execution costs no round trip.
CREATE SEQUENCE execution_keys INCREMENT BY 64;
CREATE SEQUENCE blob_keys INCREMENT BY 64;
CREATE SEQUENCE chunk_keys INCREMENT BY 64;

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
    resources BIGINT NOT NULL, -- how many it has registered
    awaited BIGINT NOT NULL, -- executing steps of it that have started a subagent
    spawns BIGINT NOT NULL, -- how many subagents its steps have started
    suspended BIGINT NOT NULL, -- 1: blocked, and its agent waits for subagents too
    spawned_by BYTEA, -- the id of the execution whose step started it
    spawned_step BYTEA,
    owes BIGINT, -- 1: that step has not been told of its end
    above BYTEA, -- sessions of those that it was spawned by, each with a NUL behind it
    forked_from BYTEA, -- the id of its source
    fork_seq BIGINT,
    policy_hash BYTEA, -- of a bundle of its own
    lineage BIGINT, -- with whom it shares chunks: the key of the first of them; NULL: its own
    idempotency_key TEXT,
    created_by BYTEA,
    on_behalf_of BYTEA,
    failure_reason BYTEA,
    input BYTEA,
    output BYTEA,
    state BYTEA,
    restoration BYTEA,
    policy_bundle BYTEA
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
CREATE INDEX executions_spawned ON executions (spawned_by, id) WHERE spawned_by IS NOT NULL;
CREATE INDEX executions_owing ON executions (id) WHERE owes = 1;
CREATE INDEX executions_continued ON executions (parent) WHERE parent IS NOT NULL;
CREATE INDEX executions_by_lineage ON executions (lineage) WHERE lineage IS NOT NULL;
-- When the last one of a session ended.
CREATE INDEX executions_session_ended ON executions (session, ended_at)
    WHERE session IS NOT NULL AND ended_at IS NOT NULL;
CREATE INDEX executions_waiting ON executions (session, id) WHERE status = 'pending' AND session IS NOT NULL;

-- The lock of a session: who holds it and who waits for it is decided under it. All else is known by its executions.
CREATE TABLE sessions (
    name BYTEA PRIMARY KEY
) WITH (fillfactor = 90);

CREATE TABLE dispatches (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    execution_key BIGINT NOT NULL,
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
CREATE INDEX dispatches_retired ON dispatches (execution_key) WHERE status = 'retired'; -- for retention

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
    affects BYTEA, -- keys of the resources that it declared, a JSON list
    subagent BYTEA, -- the id of the execution that it started
    payload_key BIGINT, -- copied into a fork: the row that holds args, result and error
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
-- What copied steps refer to, and what retention may therefore not drop.
CREATE INDEX steps_payload ON steps (payload_key) WHERE payload_key IS NOT NULL;

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
    execution_key BIGINT NOT NULL,
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

-- External state that an execution has registered.
CREATE TABLE resources (
    execution_key BIGINT NOT NULL,
    resource TEXT COLLATE "C" NOT NULL, -- its key
    driver_id BYTEA NOT NULL,
    configuration BYTEA,
    configuration_hash BYTEA NOT NULL,
    coverage_reuse BIGINT NOT NULL,
    every_steps BIGINT NOT NULL,
    on_completion BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    count BIGINT NOT NULL,
    registered_seq BIGINT NOT NULL,
    binding BYTEA,
    binding_hash BYTEA,
    checkpoint_ref BYTEA,
    covered BIGINT NOT NULL,
    inherited BIGINT NOT NULL,
    restored_ref BYTEA,
    restored_from BYTEA,
    writers BYTEA, -- steps under way that affect it, 32 bytes each
    writers_claim BIGINT NOT NULL,
    PRIMARY KEY (execution_key, resource)
) WITH (fillfactor = 50); -- written by each step that touches it: its versions stay on their page
CREATE TABLE checkpoints (
    key BIGINT GENERATED ALWAYS AS IDENTITY, -- rises with age within an execution
    execution_key BIGINT NOT NULL,
    resource TEXT COLLATE "C" NOT NULL,
    generation BIGINT NOT NULL,
    checkpoint_ref BYTEA NOT NULL,
    covered_seq BIGINT NOT NULL,
    invalidated_seq BIGINT, -- NULL: open
    -- No index by key alone, which the planner would walk for a resource's newest, and none of the open ones, whose
    -- end would be no update within the page.
    PRIMARY KEY (execution_key, resource, key)
) WITH (fillfactor = 70);

-- Forks that are being copied, and pin their source: their rows lie under a key that no execution has yet.
CREATE TABLE forks (
    key BIGINT PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    source_key BIGINT NOT NULL,
    touched_at BIGINT NOT NULL
);
CREATE INDEX forks_by_source ON forks (source_key);
-- Keys of executions that are gone, and of forks that were given up, whose rows go in slices.
CREATE TABLE unlinked (
    key BIGINT PRIMARY KEY,
    blobs BYTEA, -- keys of those that the execution's own row referred to, 8 bytes each
    lineage BIGINT -- of an execution
);

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

-- What payloads consist of that repeat what others of their lineage say (store/chunks.h).
CREATE TABLE chunks (
    key BIGINT PRIMARY KEY,
    lineage BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    data BYTEA NOT NULL
);
CREATE INDEX chunks_by_hash ON chunks (lineage, hash);
ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL;

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
