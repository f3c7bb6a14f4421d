-- The same two writes as a step: what was asked for and its event, then its outcome and its event. Each pair is one
-- transaction and one round trip.
\set seq :seq + 1
\startpipeline
BEGIN;
INSERT INTO steps (execution_id, step_no, kind, target, args, status) VALUES (:client_id, :seq, 'tool_call', 'search', :args, 'executing');
INSERT INTO events (execution_id, event_seq, type, payload) VALUES (:client_id, 2 * :seq, 'step.executing', :payload);
COMMIT;
\endpipeline
\startpipeline
BEGIN;
UPDATE steps SET status = 'succeeded', result = :result WHERE execution_id = :client_id AND step_no = :seq;
INSERT INTO events (execution_id, event_seq, type, payload) VALUES (:client_id, 2 * :seq + 1, 'step.succeeded', :payload);
COMMIT;
\endpipeline
