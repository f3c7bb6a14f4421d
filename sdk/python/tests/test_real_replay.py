"""A run of the real kernel, exported by the real program, replayed without either."""

import asyncio
import json
import os
from pathlib import Path
from subprocess import run as command
from typing import Any

import pytest
from governed import ended, pending, set_policy
from provider import Boxes
from real_kernel import BIN, DEADLINE, serving

from rebuno import (
    CheckpointPolicy,
    Client,
    RateLimited,
    Result,
    ToolError,
    http_client,
    previous,
    resource,
    step,
    subagent,
    tool,
)
from rebuno.testing import ScriptedModel
from rebuno.testing.replay import Divergence, replay

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")

POLICY = """
default_action: allow
rules:
  - id: ask
    when: { target: deploy }
    then: { decision: require_approval }
  - id: no-mail
    when: { target: mail }
    then: { decision: deny, reason: not today }
  - id: slow
    when: { target: search }
    then: { decision: allow, rate_limit: { max_calls: 1, window: 1h } }
"""


class World:
    """An agent that does a bit of everything; `is_live` says whether bodies may run."""

    def __init__(self, boxes: Boxes, model_url: str) -> None:
        self.boxes = boxes
        self.model_url = model_url
        self.is_live = True
        self.prompt = "how is it?"

    def live(self, value: Any) -> Any:
        assert self.is_live, "a body ran in the replay"
        return value

    async def process(self, name: str) -> Result:
        box = await resource("box", driver=self.boxes, checkpoints=CheckpointPolicy())

        @tool("write", resources=["box"])
        async def write(text: str) -> str:
            self.live(box).put("file", text)
            return text

        @tool("look")
        async def look(n: float, note: str = "é\u2028<&>") -> Any:
            return self.live({"n": n, "big": 123456789012345678901234567890, "note": note})

        @tool("broken")
        def broken() -> None:
            raise ValueError(self.live("no luck"))

        @tool("outer")
        async def outer() -> Any:
            return await step("inner", lambda: self.live(5))

        @tool("ask")
        async def ask(what: str) -> Any:
            return await subagent("helper", {"what": self.live(what)})

        said: list[Any] = [await previous(), await write(name)]
        said += await asyncio.gather(look(1.0), look(1e20), look(1.0))
        for call in (broken, unrun("search"), unrun("search")):
            try:
                said.append(await call())
            except (ToolError, RateLimited) as exc:
                said.append(str(exc))
        said += [await outer(), await unrun("mail")(), await unrun("deploy")()]
        said += [await ask("tea"), await self.ask_model()]
        return Result(said, {"turns": 1})

    async def ask_model(self) -> str:
        body = {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": self.prompt}],
        }
        async with http_client() as http:
            answer = await http.post(self.model_url + "/chat/completions", json=body)
            return answer.text


def unrun(target: str) -> Any:
    @tool(target)
    async def body() -> str:
        return f"{target} done"

    return body


async def export(kernel_url: str, execution_id: str, path: Path) -> dict[str, Any]:
    words = [BIN, "exec", "export", execution_id, "--output", str(path)]
    env = os.environ | {"REBUNO_URL": kernel_url}
    made = await asyncio.to_thread(
        command, words, check=False, capture_output=True, text=True, env=env, timeout=DEADLINE
    )
    assert (made.returncode, made.stdout) == (0, ""), made.stderr
    content: dict[str, Any] = json.loads(await asyncio.to_thread(path.read_bytes))
    return content


async def test_everything(kernel_url: str, client: Client, tmp_path: Path) -> None:
    async def helps(what: str) -> str:
        return f"green {what}"

    async with ScriptedModel(["It goes, 😀."], by="conversation") as model:
        world = World(Boxes(tmp_path), model.url)
        async with (
            serving(kernel_url, "all", world.process),
            serving(kernel_url, "helper", helps),
        ):
            await set_policy(kernel_url, "all", POLICY)
            first = await client.create("all", {"name": "a"}, session="s")
            await client.grant_approval((await pending(client, first.id))[0].id)
            await ended(client, first.id)
            second = await client.create("all", {"name": "b"}, session="s")
            (approval,) = await pending(client, second.id)
            held = await export(kernel_url, second.id, tmp_path / "held.json")
            await client.grant_approval(approval.id)
            run = await ended(client, second.id)
    assert run.status == "completed", run
    path = tmp_path / "run.json"
    recorded = await export(kernel_url, second.id, path)
    world.is_live = False

    result = await replay(path, world.process, resources={"box": None})
    assert (result.status, result.state) == ("completed", {"turns": 1})
    assert result.output == run.output == result.recording.output
    assert [one.target for one in result.unasked] == ["inner"]
    assert len(result.steps) == len(recorded["steps"]) - 1
    assert "rate_limit_exceeded" in run.output

    # As it was while it waited for a person: up to there, and no further.
    assert held["execution"]["status"] == "blocked"
    result = await replay(tmp_path / "held.json", world.process)
    assert (result.status, result.output) == ("open", None)
    assert result.ends_at is not None
    assert (result.ends_at.target, result.ends_at.status) == ("deploy", "awaiting_approval")

    world.prompt = "how are you?"
    with pytest.raises(Divergence) as caught:
        await replay(path, world.process)
    assert caught.value.difference == (
        '- args.messages[0].content  "how is it?"',
        '+ args.messages[0].content  "how are you?"',
    )


async def test_forks_of_forks(kernel_url: str, client: Client, tmp_path: Path) -> None:
    """Made while steps were under way, so that their logs do not show what ran side by side."""
    open_, going = asyncio.Event(), asyncio.Event()

    @tool("slow")
    async def slow(n: int) -> int:
        going.set()
        await open_.wait()
        return n

    @tool("quick")
    async def quick(n: int) -> int:
        return n

    @tool("outer")
    async def outer() -> int:
        found: int = await step("inner", lambda: 7)
        await open_.wait()
        return found

    async def process(given: Any) -> list[Any]:
        return list(await asyncio.gather(slow(1), quick(2), outer()))

    async def settled(execution_id: str) -> int:
        """The number of the event that settled the second of the quick ones."""
        while True:
            log = await client.events(execution_id, limit=1000)
            ends = [event.event_seq for event in log if event.type == "step.succeeded"]
            if len(ends) >= 2:
                return ends[1]
            await asyncio.sleep(0.01)

    async with serving(kernel_url, "forked", process):
        run = await client.create("forked")
        async with asyncio.timeout(DEADLINE):
            await going.wait()
            seq = await settled(run.id)
        open_.set()
        await ended(client, run.id)
        for generation in range(3):
            run = await client.fork(run.id, at_seq=seq)
            done = await ended(client, run.id)
            assert done.output == [1, 2, 7]
            path = tmp_path / f"{generation}.json"
            content = await export(kernel_url, run.id, path)
            seq = content["events"][-2]["event_seq"]
            assert (await replay(path, process)).output == [1, 2, 7]
