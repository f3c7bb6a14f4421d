"""Forks against the real kernel: what replays, what runs anew, and what is restored."""

from pathlib import Path
from typing import Any

import pytest
from governed import ended, pending
from provider import Boxes
from real_kernel import BIN, DEADLINE, serving

from rebuno import (
    CheckpointPolicy,
    Client,
    ConflictError,
    NotFoundError,
    ValidationError,
    execution,
    resource,
    step,
    tool,
)
from rebuno.types import Event, Execution

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")

DENY = """
default_action: allow
rules:
  - id: no-third
    when: { target: put, arguments: { n: { equals: "3" } } }
    then: { decision: deny, reason: not a third time }
"""


class Coder:
    """A handler that changes its box three times, and notes which changes happened."""

    changes: tuple[int, ...] = (1, 2, 3)

    def __init__(self, folder: Path, policy: CheckpointPolicy | None, **members: Any) -> None:
        self.driver = Boxes(folder, **members)
        self.policy = policy
        self.happened: list[int] = []

    async def __call__(self, given: Any) -> Any:
        box = await resource("ws", driver=self.driver, checkpoints=self.policy)

        @tool("put", resources=["ws"])
        def put(n: int) -> str:
            self.happened.append(n)
            box.put(str(n), execution().id)
            return f"put {n}"

        said = [await put(n) for n in self.changes]
        return {"box": box.read(), "said": said}


async def settled_at(client: Client, execution_id: str) -> list[int]:
    events: list[Event] = await client.events(execution_id, limit=1000)
    return [one.event_seq for one in events if one.type in ("step.succeeded", "step.failed")]


async def finished(client: Client, agent_id: str) -> Execution:
    return await ended(client, (await client.create(agent_id)).id)


async def test_a_fork_of_a_covered_point(kernel_url: str, client: Client, tmp_path: Path) -> None:
    coder = Coder(tmp_path, CheckpointPolicy())
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        second = (await settled_at(client, source.id))[1]
        coder.driver.asked.clear()
        coder.happened.clear()
        # The capture of the second call covers its own outcome.
        fork = await client.fork(source.id, at_seq=second, session="fork-covered")
        assert (fork.forked_from, fork.fork_seq, fork.session) == (
            source.id,
            second,
            "fork-covered",
        )
        points = await client.fork_points(source.id)
        chosen = [one for one in points.checkpoints if one.covered_seq == second]
        assert fork.restoration == {
            "ws": {
                "checkpoint_ref": chosen[0].checkpoint_ref,
                "checkpoint_seq": second,
                "covered": True,
            }
        }
        output = (await ended(client, fork.id)).output
    assert output["said"] == ["put 1", "put 2", "put 3"]
    assert output["box"] == {"1": source.id, "2": source.id, "3": fork.id}
    assert coder.happened == [3]
    assert coder.driver.asked[0] == f"create {chosen[0].checkpoint_ref}"
    assert len(coder.driver.boxes()) == 2
    assert {frozenset(box.read().values()) for box in coder.driver.boxes()} == {
        frozenset([source.id]),
        frozenset([source.id, fork.id]),
    }


async def test_a_fork_whose_agent_has_changed_code(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    """What it still asks for replays, in whatever order; what is new happens."""
    coder = Coder(tmp_path, CheckpointPolicy())
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        second = (await settled_at(client, source.id))[1]
        coder.changes = (9, 2, 1)
        coder.happened.clear()
        fork = await client.fork(source.id, at_seq=second)
        output = (await ended(client, fork.id)).output
    assert output["said"] == ["put 9", "put 2", "put 1"]
    assert output["box"] == {"1": source.id, "2": source.id, "9": fork.id}
    assert coder.happened == [9]


async def test_a_fork_of_an_uncovered_point(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    """It gets the newest checkpoint before; what replays may tell of changes that are not there."""
    coder = Coder(tmp_path, CheckpointPolicy(every_steps=100))
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        second = (await settled_at(client, source.id))[1]
        fork = await client.fork(source.id, at_seq=second)
        assert fork.restoration is not None
        assert fork.restoration["ws"]["covered"] is False
        output = (await ended(client, fork.id)).output
    assert output == {"said": ["put 1", "put 2", "put 3"], "box": {"3": fork.id}}


async def test_a_fork_without_checkpoints_starts_anew(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    coder = Coder(tmp_path, None)
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        fork = await client.fork(source.id, at_seq=(await settled_at(client, source.id))[0])
        assert fork.restoration == {"ws": {"covered": False}}
        output = (await ended(client, fork.id)).output
    assert output["box"] == {"2": fork.id, "3": fork.id}
    assert coder.driver.asked == ["create anew"] * 2


async def test_a_checkpoint_that_is_gone_fails_the_fork(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    coder = Coder(tmp_path, CheckpointPolicy())
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        at_seq = (await settled_at(client, source.id))[1]
        for snapshot in coder.driver.snapshots():
            snapshot.path.unlink()
        fork = await client.fork(source.id, at_seq=at_seq)
        failed = await client.wait(fork.id, DEADLINE)
        assert fork.restoration is not None
        reference = fork.restoration["ws"]["checkpoint_ref"]
        reason = f"agent_error: CheckpointUnavailable: {reference} is gone"
        assert failed.failure_reason == reason
        points = await client.fork_points(source.id)  # the pointer stays
        assert reference in [one.checkpoint_ref for one in points.checkpoints]


async def test_a_fork_of_a_fork_under_another_policy(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    coder = Coder(tmp_path, CheckpointPolicy())
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        first = await client.fork(
            source.id, at_seq=(await settled_at(client, source.id))[1], policy_bundle=DENY
        )
        output = (await ended(client, first.id)).output
        assert output["said"][2] == "put not allowed. reason: not a third time"
        assert output["box"] == {"1": source.id, "2": source.id}
        # It keeps the bundle that it was forked with.
        second = await client.fork(first.id, at_seq=(await settled_at(client, first.id))[0])
        output = (await ended(client, second.id)).output
    assert output["said"][1:] == ["put 2", "put not allowed. reason: not a third time"]
    assert output["box"] == {"1": source.id, "2": second.id}


async def test_what_must_not_happen_twice_is_asked_for(kernel_url: str, client: Client) -> None:
    paid: list[str] = []

    @tool("pay", idempotency="at_most_once")
    def pay() -> str:
        paid.append(execution().step_id)
        return "paid"

    async def process(given: Any) -> Any:
        await step("look", lambda: 1)
        return await pay()

    async with serving(kernel_url, "payer", process):
        source = await finished(client, "payer")
        fork = await client.fork(source.id, at_seq=(await settled_at(client, source.id))[0])
        (approval,) = await pending(client, fork.id)
        assert approval.target == "pay"
        assert len(paid) == 1
        await client.grant_approval(approval.id)
        assert (await ended(client, fork.id)).output == "paid"
    assert len(set(paid)) == 2  # the steps of a fork have ids of their own


async def test_what_cannot_be_forked(kernel_url: str, client: Client) -> None:
    async with serving(kernel_url, "plain", lambda given: step("s", lambda: 1)):
        source = await ended(client, (await client.create("plain", session="fork-of")).id)
        latest = (await client.fork_points(source.id)).latest_seq
        for at_seq in (0, -1, latest + 1):
            with pytest.raises(ValidationError):
                await client.fork(source.id, at_seq=at_seq)
        with pytest.raises(ConflictError):
            await client.fork(source.id, at_seq=latest, session="fork-of")
        with pytest.raises(ValidationError):
            await client.fork(source.id, at_seq=latest, policy_bundle="rules: 7")
        with pytest.raises(NotFoundError):
            await client.fork("01920000-0000-7000-8000-000000000001", at_seq=1)
        assert await client.fork_points(source.id)


async def test_every_event_can_be_forked(kernel_url: str, client: Client, tmp_path: Path) -> None:
    """What has settled replays, the rest happens: together each change happens once."""
    coder = Coder(tmp_path, CheckpointPolicy())
    async with serving(kernel_url, "coder", coder):
        source = await finished(client, "coder")
        settled = await settled_at(client, source.id)
        latest = (await client.fork_points(source.id)).latest_seq
        for at_seq in range(1, latest + 1):
            coder.happened.clear()
            fork = await client.fork(source.id, at_seq=at_seq)
            output = (await ended(client, fork.id)).output
            assert output["said"] == ["put 1", "put 2", "put 3"]
            done = sum(seq <= at_seq for seq in settled)
            assert coder.happened == [1, 2, 3][done:]
            # A capture of the state that the copied calls left is there from their outcome on.
            left = {str(n): source.id for n in (1, 2, 3)[:done]}
            made = {str(n): fork.id for n in (1, 2, 3)[done:]}
            assert output["box"] == left | made, at_seq
