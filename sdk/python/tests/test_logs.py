"""What the log tells of failures that would be silent otherwise, and of exits."""

import logging
import sys
from typing import Any

import pytest
import uvicorn
from conftest import SECRET, Bench, until
from scripted_kernel import error

import rebuno
from rebuno import Blocked, ToolError, execution, step, tool
from rebuno._protocol import webhook_signature


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.exc_info]


async def test_a_tool_that_raises_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def bad() -> None:
        raise KeyError("k")

    @tool
    async def outer() -> None:
        await bad()

    async def process(input: Any) -> None:
        await outer()

    await bench.failure(process)
    assert failures(caplog) == ["step bad of execution e1 failed"]
    assert "Traceback" in caplog.text
    assert "KeyError: 'k'" in caplog.text
    assert bench.kernel.named("fail")[0].body == {"error": {"message": "'k'"}}


async def test_a_result_that_is_not_json_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(TypeError):
            await step("odd", object)

    await bench.output(process)
    assert failures(caplog) == ["step odd of execution e1 failed"]


async def test_a_tool_error_of_the_tools_own_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def buy() -> None:
        raise ToolError("no stock", step_id=execution().step_id)

    async def process(input: Any) -> None:
        await buy()

    await bench.failure(process)
    assert failures(caplog) == ["step buy of execution e1 failed"]


async def test_control_flow_is_not_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def waits() -> None:
        raise Blocked

    async def process(input: Any) -> None:
        await waits()

    assert await bench.run(process) is None
    assert failures(caplog) == []


@pytest.mark.parametrize("first", [True, False])
async def test_a_blocked_loop_is_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    async def blocks(input: Any) -> None:
        if not first:
            await step("one", lambda: 1)
        bench.time.now_s += 90  # as time.sleep does

    bench.kernel.add()
    agent = bench.agent(blocks)
    await bench.deliver(agent, lease_s=90)
    await agent.join()
    assert "execution e1: the event loop was blocked for 60 s; the lease is 90 s" in caplog.text
    assert 'plain "def"' in caplog.text


async def test_a_late_heartbeat_within_half_a_lease_is_fine(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def blocks(input: Any) -> None:
        bench.time.now_s += 70

    bench.kernel.add()
    agent = bench.agent(blocks)
    await bench.deliver(agent, lease_s=90)
    await agent.join()
    assert caplog.text == ""


@pytest.mark.parametrize("what", ["step", "execution"])
async def test_an_outcome_that_is_dropped_is_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    async def process(input: Any) -> None:
        if what == "step":
            await step("one", lambda: 1)

    bench.kernel.answer("complete", error("lease_superseded", 409))
    await bench.run(process)
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert "dropped" in caplog.text
    assert "superseded" in caplog.text


async def test_a_newer_delivery_is_told_of(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    started = []

    async def process(input: Any) -> None:
        started.append(1)
        if len(started) == 1:
            await bench.time.sleep(1000)

    bench.kernel.add()
    agent = bench.agent(process)
    await bench.deliver(agent)
    await until(lambda: started)
    await bench.deliver(agent, attempt=2)
    await agent.join()
    (line,) = caplog.messages
    assert line.startswith("execution e1: delivered again, as attempt 2, while attempt 1 ran here")


async def test_a_wrong_signature_is_told_of_once_a_minute(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    agent = bench.agent(lambda given: 1)
    for lines, pause_s in ((1, 59.0), (1, 1.0), (2, 0.0)):
        for signature in ("", webhook_signature("other" + SECRET, b"{}")):
            assert await bench.post(agent, b"{}", signature) == 401
        assert caplog.text.count("is REBUNO_AGENT_SECRET the secret") == lines
        await bench.time.elapse(pause_s)


@pytest.mark.parametrize("at", ["start", "delivery"])
async def test_a_signature_that_the_kernel_does_not_know(
    bench: Bench, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    """Both lines name the id that the code has, and what may be wrong with it or the secret."""
    bench.kernel.add()
    agent = bench.agent(lambda given: 1)
    refused = error("unauthorized", 401)
    if at == "start":
        bench.kernel.answer("metadata", refused)
        await agent.publish_metadata()
    else:
        bench.kernel.answer("get", refused)
        await bench.deliver(agent)
        await agent.join()
    lines = [line for line in caplog.messages if "[unauthorized]" in line]
    (line,) = lines
    assert line.endswith(
        f": this process signs as agent {agent.agent_id!r}: is it registered under another id, "
        "not registered yet, or with another secret than REBUNO_AGENT_SECRET?"
    )


def exits_sync(input: Any) -> None:
    sys.exit("enough")


async def exits_async(input: Any) -> None:
    sys.exit("enough")


@pytest.mark.parametrize("process", [exits_sync, exits_async])
async def test_a_handler_that_exits_fails(bench: Bench, process: Any) -> None:
    assert await bench.failure(process) == "agent_error: SystemExit: enough"


@pytest.mark.parametrize("body", [exits_sync, exits_async])
async def test_a_body_that_exits_fails_its_step(bench: Bench, body: Any) -> None:
    async def process(input: Any) -> None:
        await step("leave", body, {"input": 1})

    assert await bench.failure(process) == "tool_error: leave: SystemExit: enough"
    assert bench.kernel.named("fail")[0].body == {"error": {"message": "SystemExit: enough"}}


def test_the_version() -> None:
    assert rebuno.__version__[0].isdigit()
    assert not hasattr(rebuno, "no_such_name")


@pytest.mark.parametrize("is_set_up", [False, True])
def test_a_served_agents_lines_are_shown(monkeypatch: pytest.MonkeyPatch, is_set_up: bool) -> None:
    """From info up, unless the program has set up logging, which then decides."""
    served: dict[str, Any] = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.update(options))
    monkeypatch.setattr(logging.getLogger("rebuno"), "hasHandlers", lambda: is_set_up)
    rebuno.Agent("a", secret="s", base_url="http://k").run(lambda given: 1)
    loggers = served["log_config"]["loggers"]
    assert loggers.get("rebuno") == (None if is_set_up else loggers["uvicorn"])
    assert loggers["uvicorn"]["level"] == "INFO"
    assert "rebuno" not in uvicorn.config.LOGGING_CONFIG["loggers"]
