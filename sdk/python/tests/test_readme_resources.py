"""The README's examples of resources, forks and subagents."""

import asyncio
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import README, Bench, readme_blocks
from governed import ended
from real_kernel import BIN, SECRET, Process, register
from starlette.responses import JSONResponse

from rebuno import Client, subagent, tool

FILES = {"task": "tidy", "files": {"a": "1", "b": "2", "c": "3"}}
DONE = {"task": "tidy", "files": ["a", "b", "c"]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_its_agent(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: dict[str, Any] = {"__name__": "agent"}
    exec(compile(readme_blocks()[3], str(README), "exec"), module)
    due = [{"key": "workspace", "generation": 2, "due": True}]
    bench.kernel.decide("write_file", decision="proceed")
    bench.kernel.decide("write_file", decision="proceed", resources=due)
    assert await bench.output(module["process"], FILES) == DONE
    (baseline, after_two, last) = [
        capture["checkpoint_ref"]
        for call in bench.kernel.calls
        if call.body and "captures" in call.body
        for capture in call.body["captures"]
    ]
    store = tmp_path / "workspaces"
    assert names(store / baseline) == []
    assert names(store / after_two) == ["a", "b"]
    assert names(store / last) == ["a", "b", "c"]

    driver = module["FolderDriver"]()
    folder, binding = driver.create(after_two)
    assert names(folder) == ["a", "b"]
    assert driver.open(binding) == folder
    with pytest.raises(module["CheckpointUnavailable"], match="nowhere is gone"):
        driver.create("nowhere")


def snippet(word: str) -> str:
    """The only example in the README, of those that are no programs, that has this word."""
    (found,) = [block for block in readme_blocks("py") if word in block]
    return found


async def test_its_fork(bench: Bench) -> None:
    lines = textwrap.indent(snippet("kernel.fork("), "    ")
    module: dict[str, Any] = {}
    exec(f"async def forks(kernel, run_id, stricter):\n{lines}\n    return fork", module)
    checkpoint = {"key": "workspace", "checkpoint_ref": "r", "covered_seq": 12}
    bench.kernel.answer(
        "fork-points", JSONResponse({"latest_seq": 20, "checkpoints": [checkpoint]})
    )
    bench.kernel.answer("fork", JSONResponse({"id": "e2", "forked_from": "e1"}, status_code=201))
    fork = await module["forks"](bench.client(), "e1", "default_action: deny")
    assert fork.forked_from == "e1"
    forked = {"at_seq": 12, "policy_bundle": "default_action: deny"}
    assert bench.kernel.named("fork")[0].body == forked


async def test_its_subagent(bench: Bench) -> None:
    module: dict[str, Any] = {"tool": tool, "subagent": subagent}
    exec(snippet("subagent("), module)
    assert await bench.run(lambda given: module["research"]("why?")) is None
    (created,) = bench.kernel.named("executions")
    assert (created.body["agent_id"], created.body["input"]) == ("researcher", {"question": "why?"})


@pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")
async def test_its_agent_and_a_fork(kernel_url: str, client: Client, tmp_path: Path) -> None:
    program = readme_blocks()[3].replace("port=5000", 'host="127.0.0.1", port=0')
    (tmp_path / "workspace.py").write_text(program)
    agent = Process(
        [sys.executable, "workspace.py"],
        tmp_path,
        REBUNO_URL=kernel_url,
        REBUNO_AGENT_SECRET=SECRET,
        PYTHONUNBUFFERED="1",
    )
    try:
        await register(kernel_url, "coder", await asyncio.to_thread(agent.url))
        source = await ended(client, (await client.create("coder", FILES)).id)
        assert source.output == DONE
        points = await client.fork_points(source.id)
        (baseline, after_two, last) = points.checkpoints
        for point, files in ((baseline, []), (after_two, ["a", "b"]), (last, ["a", "b", "c"])):
            fork = await client.fork(source.id, at_seq=point.covered_seq)
            assert fork.restoration is not None
            assert fork.restoration["workspace"]["covered"]
            assert (await ended(client, fork.id)).output == DONE
            assert names(tmp_path / "workspaces" / point.checkpoint_ref) == files
        assert any("driver example.folder.v1 created" in line for line in agent.output)
    finally:
        agent.end(signal.SIGTERM)
