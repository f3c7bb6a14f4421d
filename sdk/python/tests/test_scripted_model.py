"""The scripted model server, as plain HTTP; the published SDKs read it in tests/models."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from real_kernel import Process
from scripted_kernel import DEADLINE

from rebuno._protocol import EventStream
from rebuno.testing import ModelRequest, ScriptedModel, Turn

PATHS = ["/chat/completions", "/responses", "/messages"]
TOOL = {"tool": "find", "args": {"what": "a key that is long", "n": [1, 2]}}
TOOL_CALL = {"name": "find", "args": {}}


async def ask(server: ScriptedModel, path: str, **body: Any) -> httpx2.Response:
    body = {"model": "m"} | body
    async with httpx2.AsyncClient(timeout=DEADLINE) as http:
        return await http.post(server.url + path, json=body)


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The data of each event; their names are checked against it."""
    assert answer.headers["content-type"] == "text/event-stream"
    reader, found = EventStream(), []
    name = ""
    for line in answer.text.split("\n"):
        if line.startswith("event: "):
            name = line[7:]
        for data in reader.feed(line):
            event = {"done": True} if data == "[DONE]" else json.loads(data)
            assert event.get("type", "") == name
            found.append(event)
    return found


def said(path: str, body: dict[str, Any]) -> tuple[str, list[tuple[str, Any]], str]:
    """The text, the tool calls and why it ended, of a plain answer."""
    if path == "/chat/completions":
        message = body["choices"][0]["message"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ]
        return message["content"] or "", calls, body["choices"][0]["finish_reason"]
    if path == "/responses":
        items = body["output"]
        text = "".join(i["content"][0]["text"] for i in items if i["type"] == "message")
        used = [i for i in items if i["type"] == "function_call"]
        return text, [(i["name"], json.loads(i["arguments"])) for i in used], body["status"]
    blocks = body["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    uses = [block for block in blocks if block["type"] == "tool_use"]
    return text, [(block["name"], block["input"]) for block in uses], body["stop_reason"]


def streamed(path: str, found: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]], str]:
    """The same, put together from the pieces of a stream."""
    text, reason = "", ""
    calls: dict[int, list[str]] = {}
    read = chat_piece if path == "/chat/completions" else piece
    for event in found:
        said_now, place, name, arguments, ended = read(event)
        text += said_now
        reason = ended or reason
        if place is not None:
            kept = calls.setdefault(place, [name, ""])
            kept[1] += arguments
        if event.get("type") == "response.completed":
            assert said(path, event["response"])[0] == text
    return text, [(name, json.loads(arguments)) for name, arguments in calls.values()], reason


Piece = tuple[str, int | None, str, str, str]  # text, place and name of a call, arguments, reason


def chat_piece(event: dict[str, Any]) -> Piece:
    for choice in event.get("choices", []):
        delta, reason = choice["delta"], choice["finish_reason"] or ""
        for call in delta.get("tool_calls", []):
            function = call["function"]
            assert ("id" in call) == ("name" in function)
            return "", call["index"], function.get("name", ""), function["arguments"], reason
        return delta.get("content") or "", None, "", "", reason
    return "", None, "", "", ""


def piece(event: dict[str, Any]) -> Piece:
    item = event.get("item") or event.get("content_block") or {}
    place = event.get("output_index", event.get("index"))
    match event["type"]:
        case "response.output_item.added" | "content_block_start" if "name" in item:
            return "", place, item["name"], "", ""
        case "response.output_text.delta":
            return event["delta"], None, "", "", ""
        case "response.function_call_arguments.delta":
            return "", place, "", event["delta"], ""
        case "content_block_delta" if event["delta"]["type"] == "text_delta":
            return event["delta"]["text"], None, "", "", ""
        case "content_block_delta":
            return "", place, "", event["delta"]["partial_json"], ""
        case "message_delta":
            return "", None, "", "", event["delta"]["stop_reason"]
        case "response.completed":
            return "", None, "", "", event["response"]["status"]
    return "", None, "", "", ""


ENDS = {"/chat/completions": ("stop", "tool_calls"), "/messages": ("end_turn", "tool_use")}
TURNS: list[tuple[Any, str, list[tuple[str, Any]]]] = [
    ("A few words, é 😀.\n ", "A few words, é 😀.\n ", []),
    (TOOL, "", [("find", TOOL["args"])]),
    (
        {"text": "Let me see", "tools": [{"name": "a", "args": {}}, {"name": "b"}]},
        "Let me see",
        [("a", {}), ("b", {})],
    ),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("turn", "text", "calls"), TURNS, ids=["text", "tool", "both"])
async def test_what_it_says(path: str, turn: Any, text: str, calls: list[Any]) -> None:
    reason = ENDS.get(path, ("completed", "completed"))[bool(calls)]
    async with ScriptedModel([turn, turn]) as model:
        whole = await ask(model, path)
        assert whole.headers["content-type"] == "application/json"
        assert said(path, whole.json()) == (text, calls, reason)
        found = events(await ask(model, path, stream=True))
        assert streamed(path, found) == (text, calls, reason)
        assert len(model.requests) == 2
        assert [request.is_streamed for request in model.requests] == [False, True]
    last = {"/chat/completions": {"done": True}, "/messages": {"type": "message_stop"}}
    assert found[-1] == last.get(path, found[-1])
    if path == "/responses":
        assert found[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in found] == list(range(len(found)))


async def test_usage() -> None:
    turn = {"text": "one two", "usage": {"input": 7, "output": 3}}
    async with ScriptedModel([turn] * 6) as model:
        chat = (await ask(model, PATHS[0])).json()["usage"]
        assert chat == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        response = (await ask(model, PATHS[1])).json()["usage"]
        assert (response["input_tokens"], response["output_tokens"]) == (7, 3)
        message = (await ask(model, PATHS[2])).json()["usage"]
        assert message == {"input_tokens": 7, "output_tokens": 3}
        chunks = events(await ask(model, PATHS[0], stream=True))
        assert all("usage" not in chunk for chunk in chunks)
        options = {"include_usage": True}
        chunks = events(await ask(model, PATHS[0], stream=True, stream_options=options))
        assert (chunks[-2]["choices"], chunks[-2]["usage"]) == ([], chat)
        found = events(await ask(model, PATHS[2], stream=True))
        assert found[0]["message"]["usage"]["input_tokens"] == 7
        assert found[-2]["usage"] == {"output_tokens": 3}


@pytest.mark.parametrize("path", PATHS)
async def test_errors(path: str) -> None:
    script = [
        {"error": 429, "message": "slow down", "headers": {"retry-after": "7"}},
        {"error": 529},
        {"body": "<garbage>", "content_type": "text/html"},
    ]
    async with ScriptedModel(script) as model:
        answer = await ask(model, path)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.json()["error"]["message"] == "slow down"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert (await ask(model, path, stream=True)).status_code == 529
        answer = await ask(model, path)
        assert (answer.text, answer.headers["content-type"]) == ("<garbage>", "text/html")
        answer = await ask(model, path)
        assert answer.status_code == 400
        assert "the script has 3 turns" in answer.text


async def test_requests_that_are_none() -> None:
    async with ScriptedModel(["never"]) as model, httpx2.AsyncClient() as http:
        assert (await http.get(f"{model.url}/models")).status_code == 404
        assert (await http.post(f"{model.url}/nothing", json={})).status_code == 404
        for content in (b"[1]", b'{"a":' * 5000):
            answer = await http.post(f"{model.url}/messages", content=content)
            assert answer.status_code == 400
        assert model.requests == []
        assert (await http.post(f"{model.origin}/messages", json={"model": "m"})).is_success


@pytest.mark.parametrize("path", PATHS)
async def test_arguments_that_are_no_json(path: str) -> None:
    async with ScriptedModel([{"tool": "find", "args": "{oops"}]) as model:
        answer = (await ask(model, path)).json()
    found = {
        "/chat/completions": lambda: answer["choices"][0]["message"]["tool_calls"][0]["function"],
        "/responses": lambda: answer["output"][0],
        "/messages": lambda: answer["content"][0],
    }[path]()
    assert found["input" if path == "/messages" else "arguments"] == "{oops"


@pytest.mark.parametrize("gzip", [False, True])
async def test_a_connection_that_breaks(gzip: bool) -> None:
    turns = [{"text": "one two", "break_after": 2, "gzip": gzip}, {"text": "x", "break_after": 5}]
    async with ScriptedModel(turns) as model:
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(model, PATHS[0], stream=True)
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(model, PATHS[0])


async def test_a_model_that_stalls() -> None:
    """And a server that ends all the same."""
    script = [{"text": "one two", "stall_after": 2}, {"text": "x", "stall_after": 0}] * 2
    async with ScriptedModel(script) as model:
        async with httpx2.AsyncClient() as http:
            body = {"model": "m", "stream": True}
            async with http.stream("POST", model.url + PATHS[0], json=body) as answer:
                lines = answer.aiter_lines()
                got = [await anext(lines) for _ in range(4)]
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(lines), 0.05)
        assert '"one"' in got[2]
        async with httpx2.AsyncClient(timeout=httpx2.Timeout(None, read=0.05)) as http:
            for path in PATHS[:2]:
                with pytest.raises(httpx2.ReadTimeout):
                    await http.post(model.url + path, json={"model": "m"})
        waiting = asyncio.create_task(ask(model, PATHS[0], stream=True))
        await model.until_asked(4)
    assert (await waiting).status_code == 500


async def test_an_endless_stream() -> None:
    async with ScriptedModel([{"text": "again ", "endless": True, "pause": 0.001}]) as model:
        count = 0
        async with httpx2.AsyncClient() as http:
            body = {"model": "m", "stream": True}
            async with http.stream("POST", model.url + PATHS[0], json=body) as answer:
                async for line in answer.aiter_lines():
                    count += "again" in line
                    if count == 20:
                        break
    assert count == 20


@pytest.mark.parametrize("gzip", [False, True])
async def test_pieces_and_sizes(gzip: bool) -> None:
    turn = {"text": "é", "repeat": 5000, "piece_chars": 1000, "split": 77, "gzip": gzip}
    async with ScriptedModel([turn] * 2) as model:
        found = events(await ask(model, PATHS[0], stream=True))
        pieces = [event["choices"][0]["delta"].get("content") for event in found[:-1]]
        assert [piece for piece in pieces if piece] == ["é" * 1000] * 5
        assert said(PATHS[0], (await ask(model, PATHS[0])).json())[0] == "é" * 5000


async def test_turns_by_conversation() -> None:
    """As if each conversation had a model of its own; retries get the same answer."""
    asked = {"role": "user", "content": "x"}
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    conversations: list[tuple[str, list[Any]]] = [
        ("messages", [asked]),
        ("messages", [asked, {"role": "assistant", "content": "a"}, {"role": "tool"}, asked]),
        ("messages", [asked, *[{"role": "assistant"}, asked] * 2]),
        ("input", [asked]),
        ("input", [asked, {"role": "assistant"}, call, call, output, output]),
    ]
    async with ScriptedModel(["first", "second", "third"], by="conversation") as model:
        for _ in range(2):
            for (name, items), want in zip(
                conversations, ["first", "second", "third", "first", "second"], strict=True
            ):
                path = PATHS[0] if name == "messages" else PATHS[1]
                answer = await ask(model, path, **{name: items})
                assert said(path, answer.json())[0] == want
        answer = await ask(model, PATHS[1], input="just text")
        assert said(PATHS[1], answer.json())[0] == "first"


@pytest.mark.parametrize("path", PATHS)
async def test_equal_conversations_get_equal_answers(path: str) -> None:
    """To the byte, whatever else was asked; the ids within one conversation all differ."""
    script: dict[str, list[Any]] = {
        "large": [{"tools": [TOOL_CALL, TOOL_CALL]}, TOOL, "done"],
        "small": [TOOL, "done"],
    }
    name = "input" if path == "/responses" else "messages"
    asked = {"role": "user", "content": "x"}
    conversation = [asked, *[{"role": "assistant", "content": "a"}, asked] * 2]
    async with ScriptedModel(script, by="conversation") as model:

        async def talk(turns: int, name_of_model: str) -> list[str]:
            bodies = [{name: conversation[: 2 * turn + 1]} for turn in range(turns)]
            return [(await ask(model, path, model=name_of_model, **one)).text for one in bodies]

        first, second = await talk(3, "large"), await talk(3, "large")
        other = await talk(2, "small")
    assert first == second
    ids = [one for text in [*first, *other] for one in ids_of(json.loads(text))]
    assert len(ids) == len(set(ids)) >= 5 + 4
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{3,40}", one) for one in ids)


def ids_of(body: Any) -> set[str]:
    """All ids in an answer."""
    if isinstance(body, list):
        return set().union(*map(ids_of, body)) if body else set()
    if not isinstance(body, dict):
        return set()
    own = {body[key] for key in ("id", "call_id") if key in body}
    return own.union(*map(ids_of, body.values()))


async def test_a_script_for_each_model() -> None:
    async with ScriptedModel({"a": ["of a"], "": ["of any"]}) as model:
        for name, want in (("b", "of any"), ("a", "of a")):
            answer = await ask(model, PATHS[0], model=name)
            assert said(PATHS[0], answer.json())[0] == want
            assert answer.json()["model"] == name
        assert (await ask(model, PATHS[0], model="a")).status_code == 400


async def test_turns_that_are_functions() -> None:
    async def later(request: ModelRequest) -> Any:
        return {"text": f"{request.number} {request.body['model']} {request.headers['x-a']}"}

    script: list[Any] = [lambda request: Turn(text=request.path), later]
    async with ScriptedModel(script) as model:
        assert said(PATHS[0], (await ask(model, PATHS[0])).json())[0] == "/v1/chat/completions"
        async with httpx2.AsyncClient(headers={"X-A": "b"}) as http:
            answer = await http.post(model.url + PATHS[0], json={"model": "m"})
        assert said(PATHS[0], answer.json())[0] == "2 m b"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScriptedModel([{"txet": "x"}]), "has no txet; it has args, body, .*text, tool"),
        (lambda: ScriptedModel([5]), "not a turn of a script: 5; a turn is a text or an object"),
        (lambda: ScriptedModel([], by="chance"), "conversation"),
    ],
)
def test_scripts_that_are_wrong(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "script",
    [["hello"], {"turns": ["hello"], "by": "conversation"}, {"models": {"": [{"text": "hello"}]}}],
)
async def test_as_a_process(tmp_path: Path, script: Any) -> None:
    (tmp_path / "script.json").write_text(json.dumps(script))
    command = [sys.executable, "-m", "rebuno.testing.model", "script.json", "--port", "0"]
    process = Process(command, tmp_path)
    try:
        url = await asyncio.to_thread(process.url)
        async with httpx2.AsyncClient() as http:
            answer = await http.post(f"{url}/v1/chat/completions", json={"model": "m"})
        assert said(PATHS[0], answer.json())[0] == "hello"
    finally:
        process.child.terminate()
        process.end(15)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no JSON: Expecting value: line 1 column 1 (char 0); a script is a JSON list of"),
        ("5", "no script, which is a JSON list of turns, or an object with turns or models"),
        ('[{"a": 1}]', "a turn of a script has no a; it has "),
        (None, "cannot be read: No such file or directory; it is to hold a script, a JSON list"),
    ],
)
def test_a_file_that_is_no_script(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "script.json").write_text(content)
    ended = subprocess.run(
        [sys.executable, "-m", "rebuno.testing.model", "script.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"script.json: {says}")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("port", ["busy", "70000"])
def test_a_port_that_cannot_be_had(tmp_path: Path, port: str) -> None:
    (tmp_path / "script.json").write_text("[]")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = str(busy.getsockname()[1]) if port == "busy" else port
        ended = subprocess.run(
            [sys.executable, "-m", "rebuno.testing.model", "script.json", "--port", number],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"cannot listen on 127.0.0.1:{number}: ")
    assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr


async def test_connections_are_left_by_clients_first() -> None:
    """Closed here just as the next request is sent, they would be a ReadError now and then."""
    async with ScriptedModel([]) as model:
        assert model._server is not None
        expiry = httpx2.Limits().keepalive_expiry
        assert expiry is not None
        assert model._server.config.timeout_keep_alive > expiry
