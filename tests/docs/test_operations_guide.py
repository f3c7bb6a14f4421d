"""docs/operations.md: what retention takes, keeps and forgets."""

from collections.abc import Callable

from harness import FakeAgent, Kernel, eventually

RETENTION = {"REBUNO_RETENTION": "1s", "REBUNO_CLEANUP_INTERVAL": "1s"}


def test_what_goes_and_what_stays(
    new_kernel: Callable[..., Kernel], new_agent: Callable[..., FakeAgent]
) -> None:
    kernel = new_kernel(env=RETENTION)
    client, agent = kernel.client(), new_agent(kernel)

    def ended(**fields: object) -> str:
        identity = str(client.create(agent.id, **fields)["id"])
        run = agent.take_attempt(identity)
        run.record("look", {"n": 1}, {"found": "x" * 5000})
        run.complete({"turn": 1}).expect(204)
        return identity

    source = ended(idempotency_key="once")
    fork = client.fork(source, 8)
    held = agent.take_attempt(fork["id"])
    held.hold("pay", {}, idempotency="at_most_once")
    parent = ended()
    turn = client.create(agent.id, parent_execution_id=parent)
    first = ended(session="talk")
    second = client.create(agent.id, session="talk")

    def is_gone(identity: str) -> bool:
        return client.get(f"/v0/executions/{identity}").status == 404

    eventually(lambda: is_gone(source), 20.0)
    for kept in (fork["id"], parent, turn["id"], first, second["id"]):
        assert not is_gone(kept)
    # The fork has what it shared with its source.
    (step, _) = client.steps(fork["id"])
    assert step["result"] == {"found": "x" * 5000}
    assert client.execution(fork["id"])["forked_from"] == source
    # The key is forgotten.
    again = client.create(agent.id, idempotency_key="once")
    assert again["id"] != source

    for identity in (turn["id"], second["id"]):
        agent.take_attempt(identity).complete(None).expect(204)
    for identity in (turn["id"], parent, first, second["id"]):
        eventually(lambda one=identity: is_gone(one), 20.0)  # type: ignore[misc]
    assert client.get("/v0/executions?session=talk").json["executions"] == []
    assert not is_gone(fork["id"])
    removed = [line for line in kernel.log_text().splitlines() if "retention.removed" in line]
    assert removed
