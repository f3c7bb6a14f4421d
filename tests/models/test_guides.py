# SPDX-License-Identifier: Apache-2.0
"""docs/frameworks.md and docs/mcp.md: their programs run, their tables say what is so."""

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import agents
import httpx2
import pydantic_ai
import pytest
import rebuno
import sdks
import uvicorn
from conftest import Bench, Time
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Tool, ToolAnnotations
from openai import AsyncOpenAI
from packaging.requirements import Requirement
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from real_kernel import until
from rebuno import LeaseSuperseded, PolicyError, RateLimited, http_client
from rebuno._model_answers import refusal
from rebuno.mcp import wrap_mcp_tool
from rebuno.testing import ScriptedModel
from recorder import Recorder
from sdks import Setting
from test_mcp_versions import FIRST

ROOT = Path(__file__).parents[2]
FRAMEWORKS, MCP = ROOT / "docs" / "frameworks.md", ROOT / "docs" / "mcp.md"
EXAMPLES = ROOT / "examples" / "integrations" / "models"
ANSWER = "25.00 are on their way."


def programs(guide: Path) -> dict[str, str]:
    """Its python blocks, by the name in their first line."""
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    return {block.partition("\n")[0].removeprefix("# "): block for block in blocks}


def rows(heading: str) -> list[list[str]]:
    """Of the table in that section of the guide on frameworks, without its head."""
    section = FRAMEWORKS.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(Recorder(), Time())
    yield bench
    for agent in bench.agents:
        await agent.close()


Load = Callable[[str], ModuleType]


@pytest.fixture
async def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Load]:
    """Imports a program of the guides, with the others beside it; closes the clients it makes."""
    clients: list[httpx2.AsyncClient] = []

    def recorded(**options: Any) -> httpx2.AsyncClient:
        clients.append(http_client(**options))
        return clients[-1]

    monkeypatch.setattr(rebuno, "http_client", recorded)
    known = set(sys.modules)
    for name, text in (programs(FRAMEWORKS) | programs(MCP)).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield lambda name: importlib.import_module(name.removesuffix(".py"))
    for name in programs(FRAMEWORKS) | programs(MCP):
        if (module := name.removesuffix(".py")) not in known:
            sys.modules.pop(module, None)
    for client in clients:
        await client.aclose()


def point_to(model: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LLM_MODEL": "test",
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": model.origin,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", [n for n in programs(FRAMEWORKS) if n.startswith("with_")])
async def test_a_program_is_durable(
    bench: Bench, load: Load, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    turns: list[Any] = [ANSWER]
    if "from tools import" in programs(FRAMEWORKS)[name]:
        found = {"tool": "find_order", "args": {"number": "A2"}}
        turns = [found, {"tool": "refund", "args": {"number": "A2", "amount": 25}}, ANSWER]
    async with ScriptedModel(turns) as model:
        point_to(model, monkeypatch)
        process = load(name).process
        assert await bench.output(process, {"question": "Money back?"}) == ANSWER
        assert await bench.output(process, {"question": "Money back?"}) == ANSWER
        assert len(model.requests) == len(turns)
        said = str(model.requests[-1].body)
    assert len(turns) == 1 or ("a kettle" in said and "25.00 paid back for order A2" in said)


async def test_a_conversation_goes_on(
    bench: Bench, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedModel(["It is here.", "Still here."]) as model:
        point_to(model, monkeypatch)
        process = load("with_memory").process
        first = await bench.run(process, {"question": "Where is it?"})
        assert first is not None
        bench.kernel.previous = first.body["state"]
        assert await bench.output(process, {"question": "And now?"}) == "Still here."
        asked = [one["content"] for one in model.requests[1].body["messages"]]
    assert asked == ["Where is it?", "It is here.", "And now?"]


LOOPS = {
    "OpenAI": [sdks.openai_chat, sdks.openai_responses],
    "Anthropic": [sdks.anthropic_messages],
    "LangChain": [sdks.langchain],
    "OpenAI Agents SDK": [sdks.openai_agents_chat, sdks.openai_agents_responses],
    "Pydantic AI": [
        sdks.pydantic_ai_openai,
        sdks.pydantic_ai_responses,
        sdks.pydantic_ai_anthropic,
    ],
}


def test_each_framework_has_its_way_to_stream() -> None:
    assert {row[0] for row in rows("Streaming")} == LOOPS.keys()  # test_sdks.py goes these ways


@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", LOOPS)
async def test_what_surfaces(name: str, is_streamed: bool) -> None:
    """Each framework raises what the table says, after one request."""
    (row,) = [row for row in rows("When a call is refused") if row[0] == name]
    expected = [cell.strip("`") for cell in row[1:]]
    for loop in LOOPS[name]:
        for refused, kind in zip(
            (PolicyError("no"), LeaseSuperseded(), RateLimited()), expected, strict=True
        ):
            requests: list[httpx2.Request] = []

            def answer(request: httpx2.Request, refused: Any = refused) -> httpx2.Response:
                requests.append(request)  # noqa: B023
                return refusal(refused)

            async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
                with pytest.raises(Exception, match="rebuno_refusal") as raised:
                    await loop(Setting("http://provider", [], is_streamed, http))
            assert raised.type.__name__ == kind
            assert len(requests) == 1


def test_the_table_of_versions() -> None:
    shown: dict[str, str] = {}
    for package, tested, *_ in rows("What works"):
        wanted = [Requirement(text) for text in re.findall(r"`(.*?)`", package)]
        shown |= {one.name: str(one.specifier) for one in wanted}
        installed = [version(one.name) for one in wanted]
        assert tested.split(", ")[: len(wanted)] == installed
    for path in EXAMPLES.glob("*/requirements.txt"):
        for one in map(Requirement, path.read_text().splitlines()):
            assert shown[one.name] == str(one.specifier), path


RUN_TWICE = """
import asyncio, json
from conftest import Bench, Time
from importlib.metadata import version
from recorder import Recorder
from agent import process

async def main():
    bench = Bench(Recorder(), Time())
    outputs = [await bench.output(process, {"number": "A2"}) for _ in range(2)]
    print(json.dumps([version("mcp"), *outputs, bench.kernel.order]))

asyncio.run(main())
"""


@pytest.mark.parametrize("major", ["1", "2"])
def test_the_agent_of_two_minutes(load: Load, tmp_path: Path, major: str) -> None:
    own = [str(ROOT / path) for path in os.environ["PYTHONPATH"].split(os.pathsep)]
    paths = [str(FIRST)] * (major == "1") + [str(tmp_path), *own]
    ended = subprocess.run(
        [sys.executable, "-c", RUN_TWICE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    installed, live, replayed, order = json.loads(ended.stdout.splitlines()[-1])
    assert installed.startswith(f"{major}.")
    found, paid = "order A2: a kettle, 25.00 paid", "25.00 paid back for order A2"
    assert live == replayed == [{"result": found}, {"result": paid}]
    assert order == [["tool_call", "shop_find_order"], ["tool_call", "shop_refund"]]


async def test_the_mode_by_hint(bench: Bench, load: Load) -> None:
    reads = ToolAnnotations.model_validate({"readOnlyHint": True})
    schema = {"inputSchema": {"type": "object", "properties": {}}}
    listed = [
        Tool.model_validate({"name": "find", "annotations": reads, **schema}),
        Tool.model_validate({"name": "pay", **schema}),
    ]

    async def list_tools() -> Any:
        return SimpleNamespace(tools=listed)

    async def call_tool(name: str, args: Any) -> str:
        return name

    session = SimpleNamespace(list_tools=list_tools, call_tool=call_tool)

    async def process(given: Any) -> Any:
        return [await one() for one in await load("by_hint").tools_of(session)]

    assert await bench.output(process) == ["find", "pay"]
    modes = {one.body["target"]: one.body["idempotency"] for one in bench.kernel.named("steps")}
    assert modes == {"shop_find": "safe_to_retry", "shop_pay": "at_most_once"}


async def test_a_server_over_http(load: Load) -> None:
    server = uvicorn.Server(
        uvicorn.Config(
            load("shop_server").server.streamable_http_app(),
            host="127.0.0.1",
            port=0,
            log_level="warning",
        )
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    (shown,) = re.findall(r"```py\n(.*?)```", MCP.read_text(), re.DOTALL)
    body = shown.replace("localhost:8000", f"127.0.0.1:{port}")
    body = body.replace("...", "return await use(session)").replace("\n", "\n    ")
    names: dict[str, Any] = {
        "ClientSession": ClientSession,
        "streamable_http_client": streamable_http_client,
    }
    exec(f"async def within(use):\n    {body}", names)

    async def use(session: ClientSession) -> list[str]:
        await session.initialize()
        return [one.name for one in (await session.list_tools()).tools]

    assert await names["within"](use) == ["find_order", "refund"]
    server.should_exit = True
    await serving


# The tools of a server in a framework

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string", "description": "of the order"}},
    "required": ["number"],
}
FIND = {"name": "find_order", "description": "Look an order up.", "inputSchema": SCHEMA}


def openai(model: ScriptedModel) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model.url, api_key="k", http_client=rebuno.http_client())


async def in_langchain(model: ScriptedModel, tool: Any) -> str:
    llm = ChatOpenAI(
        model="m", base_url=model.url, api_key="k", http_async_client=rebuno.http_client()
    )
    asked: Any = {"messages": [{"role": "user", "content": "Where?"}]}
    return str((await create_agent(llm, tools=[tool]).ainvoke(asked))["messages"][-1].text)


async def in_pydantic_ai(model: ScriptedModel, tool: Any) -> str:
    provider = OpenAIProvider(openai_client=openai(model))
    agent = pydantic_ai.Agent(OpenAIChatModel("m", provider=provider), tools=[tool])
    return str((await agent.run("Where?")).output)


async def in_openai_agents(model: ScriptedModel, tool: Any) -> str:
    provider = agents.OpenAIProvider(openai_client=openai(model), use_responses=False)
    config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
    agent = agents.Agent("a", model="m", tools=[tool])
    return str((await agents.Runner.run(agent, "Where?", run_config=config)).final_output)


IN = [in_langchain, in_pydantic_ai, in_openai_agents]


@pytest.mark.parametrize("inside", IN, ids=lambda one: one.__name__)
async def test_a_servers_tool_in_a_framework(bench: Bench, load: Load, inside: Any) -> None:
    make = getattr(load("for_frameworks"), inside.__name__.replace("in_", "for_"))
    turn = {"tool": "shop_find_order", "args": {"number": "A2"}}
    called: list[Any] = []

    async def call(name: str, args: Any) -> str:
        called.append((name, args))
        return "It is in Ulm."

    async def process(given: Any) -> str:
        return str(await inside(model, make(wrap_mcp_tool(FIND, call=call, prefix="shop"))))

    async with ScriptedModel([turn, ANSWER]) as model:
        assert await bench.output(process) == ANSWER
        assert await bench.output(process) == ANSWER
        assert len(model.requests) == 2
        (told,) = model.requests[0].body["tools"]
        assert told["function"]["name"] == "shop_find_order"
        assert told["function"]["description"] == "Look an order up."
        shown = told["function"]["parameters"]
        assert shown["required"] == SCHEMA["required"]
        assert shown["properties"]["number"]["type"] == "string"
        assert shown["properties"]["number"]["description"] == "of the order"
        assert "It is in Ulm." in str(model.requests[1].body)
    assert called == [("find_order", {"number": "A2"})]


@pytest.mark.parametrize("inside", IN, ids=lambda one: one.__name__)
async def test_a_servers_tool_that_waits(bench: Bench, load: Load, inside: Any) -> None:
    """The framework lets it through: the model is not asked about it."""
    bench.kernel.decide("shop_find_order", decision="blocked", approval_id="p1")
    make = getattr(load("for_frameworks"), inside.__name__.replace("in_", "for_"))

    async def process(given: Any) -> str:
        tool = wrap_mcp_tool(FIND, call=lambda name, args: "never", prefix="shop")
        return str(await inside(model, make(tool)))

    turn = {"tool": "shop_find_order", "args": {"number": "A2"}}
    async with ScriptedModel([turn, ANSWER]) as model:
        assert await bench.run(process) is None
        assert len(model.requests) == 1


def test_what_plain_clients_are_told(load: Load) -> None:
    module = load("for_frameworks")
    tool = wrap_mcp_tool(FIND, call=lambda name, args: None, prefix="shop")
    about = {"name": "shop_find_order", "description": "Look an order up."}
    assert module.for_openai(tool) == {
        "type": "function",
        "function": about | {"parameters": SCHEMA},
    }
    assert module.for_anthropic(tool) == about | {"input_schema": SCHEMA}
