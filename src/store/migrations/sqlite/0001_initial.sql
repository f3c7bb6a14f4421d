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
    resources BIGINT NOT NULL, -- how many it has registered
    awaited BIGINT NOT NULL, -- executing steps of it that have started a subagent
    spawns BIGINT NOT NULL, -- how many subagents its steps have started
    suspended BIGINT NOT NULL, -- 1: blocked, and its agent waits for subagents too
    spawned_by BLOB, -- the id of the execution whose step started it
    spawned_step BLOB,
    owes BIGINT, -- 1: that step has not been told of its end
    above BLOB, -- sessions of those that it was spawned by, each with a NUL behind it
    forked_from BLOB, -- the id of its source
    fork_seq BIGINT,
    policy_hash BLOB, -- of a bundle of its own
    lineage BIGINT, -- with whom it shares chunks: the key of the first of them; NULL: its own
    idempotency_key TEXT,
    created_by BLOB,
    on_behalf_of BLOB,
    failure_reason BLOB,
    input BLOB,
    output BLOB,
    state BLOB,
    restoration BLOB,
    policy_bundle BLOB
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
CREATE INDEX executions_spawned ON executions (spawned_by, id) WHERE spawned_by IS NOT NULL;
CREATE INDEX executions_owing ON executions (id) WHERE owes = 1;
CREATE INDEX executions_continued ON executions (parent) WHERE parent IS NOT NULL;
CREATE INDEX executions_by_lineage ON executions (lineage) WHERE lineage IS NOT NULL;
-- When the last one of a session ended.
CREATE INDEX executions_session_ended ON executions (session, ended_at)
    WHERE session IS NOT NULL AND ended_at IS NOT NULL;
CREATE INDEX executions_waiting ON executions (session, id) WHERE status = 'pending' AND session IS NOT NULL;

CREATE TABLE dispatches (
    key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    execution_key BIGINT NOT NULL,
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
CREATE INDEX dispatches_retired ON dispatches (execution_key) WHERE status = 'retired'; -- for retention

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
    affects BLOB, -- keys of the resources that it declared, a JSON list
    subagent BLOB, -- the id of the execution that it started
    payload_key BIGINT, -- copied into a fork: the row that holds args, result and error
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
-- What copied steps refer to, and what retention may therefore not drop.
CREATE INDEX steps_payload ON steps (payload_key) WHERE payload_key IS NOT NULL;

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
    execution_key BIGINT NOT NULL,
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

-- External state that an execution has registered.
CREATE TABLE resources (
    execution_key BIGINT NOT NULL,
    resource TEXT NOT NULL, -- its key
    driver_id BLOB NOT NULL,
    configuration BLOB,
    configuration_hash BLOB NOT NULL,
    coverage_reuse BIGINT NOT NULL,
    every_steps BIGINT NOT NULL,
    on_completion BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    count BIGINT NOT NULL,
    registered_seq BIGINT NOT NULL,
    binding BLOB,
    binding_hash BLOB,
    checkpoint_ref BLOB,
    covered BIGINT NOT NULL,
    inherited BIGINT NOT NULL,
    restored_ref BLOB,
    restored_from BLOB,
    writers BLOB, -- steps under way that affect it, 32 bytes each
    writers_claim BIGINT NOT NULL,
    PRIMARY KEY (execution_key, resource)
);
CREATE TABLE checkpoints (
    key INTEGER PRIMARY KEY, -- rises with age within an execution
    execution_key BIGINT NOT NULL,
    resource TEXT NOT NULL,
    generation BIGINT NOT NULL,
    checkpoint_ref BLOB NOT NULL,
    covered_seq BIGINT NOT NULL,
    invalidated_seq BIGINT -- NULL: open
);
CREATE INDEX checkpoints_by_resource ON checkpoints (execution_key, resource, key);

-- Forks that are being copied, and pin their source: their rows lie under a key that no execution has yet.
CREATE TABLE forks (
    key BIGINT PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    source_key BIGINT NOT NULL,
    touched_at BIGINT NOT NULL
);
CREATE INDEX forks_by_source ON forks (source_key);
-- Keys of executions that are gone, and of forks that were given up, whose rows go in slices.
CREATE TABLE unlinked (
    key BIGINT PRIMARY KEY,
    blobs BLOB, -- keys of those that the execution's own row referred to, 8 bytes each
    lineage BIGINT -- of an execution
);

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

-- What payloads consist of that repeat what others of their lineage say (store/chunks.h).
CREATE TABLE chunks (
    key INTEGER PRIMARY KEY,
    lineage BIGINT NOT NULL,
    hash BLOB NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX chunks_by_hash ON chunks (lineage, hash);

-- How often a writer came back after an error: writing it proves that the database takes writes again.
CREATE TABLE recoveries (
    count BIGINT NOT NULL
);
INSERT INTO recoveries (count) VALUES (0);
