"""What the kernel only carries comes back byte for byte, on both databases."""

from collections.abc import Callable
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent, eventually
from harness.raw import member

DEEP = 500

PAYLOADS = {
    "nul-escape": rb'{"a":"x\u0000y","\u0000":1}',
    "lone-high": rb'{"s":"\ud800"}',
    "lone-low": rb'"\udfff"',
    "reversed-pair": rb'["\ude00\ud83d"]',
    "escaped-pair": rb'"\ud83d\ude00"',
    "four-bytes": '"😀𝒳🧪"'.encode(),
    "mixed-escapes": '"\\u00e9é\\/\\u0041\\n\\t\\"\\\\"'.encode(),
    "noncharacters": '"\ufffe\uffff\U0010ffff\ufdd0"'.encode(),
    "bom-inside": '"\ufeff"'.encode(),
    "line-separators": '"\u2028\u2029\u0085"'.encode(),
    "html": b'"<script>&amp;</script>"',
    "big-integer": b"1234567890123456789012345678901234567890",
    "big-exponent": b"1e99999",
    "small-exponent": b"-1.50e-9999",
    "fractions": b"[1.0,1.00,1e0,10E-1,0.1,1E+2,-0,-0.0]",
    "precise": b"3.14159265358979323846264338327950288",
    "key-order": b'{"z":1,"a":2,"m":{"y":1,"b":2},"A":0}',
    "inner-spaces": b'{ "a" :\t[ 1 ,2 ] , "b":{} }',
    "line-ends": b'{\n  "a": 1,\r\n  "b": [\n    2\n  ]\n}',
    "empty-object": b"{}",
    "empty-array": b"[]",
    "empty-string": b'""',
    "false": b"false",
    "zero": b"0",
    "deep": b"[" * DEEP + b"]" * DEEP,
    "deep-objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "wide": b"[" + b",".join(b"%d" % n for n in range(20000)) + b"]",
    "long": b'"' + b"abcdefgh" * 40000 + b'"',
}
DUPLICATES = rb'{"a":1,"a":2,"b":{"c":null,"\u0063":true}}'
every_payload = pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())


def with_field(start: bytes, name: bytes, payload: bytes) -> bytes:
    return start[:-1] + b', "' + name + b'": ' + payload + b" }"


def created(client: BearerClient, agent: FakeAgent, payload: bytes) -> Any:
    body = with_field(b'{"agent_id": "' + agent.id.encode() + b'"}', b"input", payload)
    return client.post("/v0/executions", body)


@every_payload
def test_input(client: BearerClient, agent: FakeAgent, payload: bytes) -> None:
    answer = created(client, agent, payload).expect(201)
    assert member(answer.body, "input") == payload
    target = f"/v0/executions/{answer.json['id']}"
    assert member(client.get(target).body, "input") == payload
    run = agent.take_attempt(answer.json["id"])
    assert member(run.execution().body, "input") == payload


@every_payload
def test_output_in_the_execution_and_its_event(
    client: BearerClient, run: Attempt, payload: bytes
) -> None:
    run.complete(payload).expect(204)
    assert member(client.get(run.path()).body, "output") == payload
    count = len(client.events(run.id))
    for seq in range(count, 0, -1):
        body = client.get(run.path(f"/events?after_seq={seq - 1}&limit=1")).expect(200).body
        event = body.strip()[1:-1]
        if member(event, "type") == b'"execution.completed"':
            assert member(event, "payload", "output") == payload
            return
    raise AssertionError("no execution.completed")


@every_payload
def test_args_and_result(client: BearerClient, run: Attempt, payload: bytes) -> None:
    step_id = run.proceed("x", payload)
    run.complete_step(step_id, payload).expect(200)
    target = run.path(f"/steps/{step_id}")
    body = client.get(target).expect(200).body
    assert member(body, "args") == payload
    assert member(body, "result") == payload
    replayed = run.released().submit("x", payload).expect(200)
    assert member(replayed.body, "result") == payload
    assert replayed.json["step_id"] == step_id
    listing = client.get(run.path("/steps")).expect(200).body.strip()[1:-1]
    assert member(listing, "result") == payload


@every_payload
def test_repeated_outcome(run: Attempt, payload: bytes) -> None:
    step_id = run.proceed("x")
    run.complete_step(step_id, payload).expect(200)
    assert member(run.complete_step(step_id, b"0").expect(200).body, "result") == payload


def objects() -> dict[str, bytes]:
    return {name: b'{"v": ' + value + b"}" for name, value in PAYLOADS.items()}


@pytest.mark.parametrize("error", objects().values(), ids=objects().keys())
def test_error(client: BearerClient, run: Attempt, error: bytes) -> None:
    if len(error) > 100_000:  # not what an error is for, but it may be long
        error = error[:6] + b'"' + b"e" * 100_000 + b'"}'
    step_id = run.proceed("x")
    run.fail_step(step_id, error).expect(200)
    assert member(client.get(run.path(f"/steps/{step_id}")).body, "error") == error
    [event] = [e for e in client.events(run.id) if e["type"] == "step.failed"]
    target = run.path(f"/events?after_seq={event['event_seq'] - 1}&limit=1")
    listing = client.get(target).body.strip()[1:-1]
    assert member(listing, "payload", "error") == error
    assert member(run.released().submit("x").expect(200).body, "error") == error


def test_duplicate_keys_are_carried_where_nobody_reads(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    run.complete_step(step_id, DUPLICATES).expect(200)
    assert member(client.get(run.path(f"/steps/{step_id}")).body, "result") == DUPLICATES
    run.complete(DUPLICATES, state=DUPLICATES).expect(204)
    assert member(client.get(run.path()).body, "output") == DUPLICATES


def test_duplicate_keys_in_an_error(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    run.fail_step(step_id, DUPLICATES).expect(200)
    assert member(client.get(run.path(f"/steps/{step_id}")).body, "error") == DUPLICATES


def test_duplicate_keys_in_an_input(client: BearerClient, agent: FakeAgent) -> None:
    answer = created(client, agent, DUPLICATES).expect(201)
    assert member(answer.body, "input") == DUPLICATES


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"tool_call","target":"x","target":"y"}',
        b'{"kind":"tool_call","target":"x","\\u0074arget":"y"}',
        b'{"kind":"tool_call","target":"x","args":{"a":1,"\\u0061":2}}',
    ],
)
def test_duplicate_keys_in_what_the_kernel_reads(run: Attempt, body: bytes) -> None:
    run.client.post(run.path("/steps"), body, bad=True).expect(400, "validation_error")


def test_duplicate_field_of_an_outcome(run: Attempt) -> None:
    step_id = run.proceed("x")
    target = run.path(f"/steps/{step_id}/complete")
    run.client.post(target, b'{"result":1,"result":2}', bad=True).expect(400, "validation_error")


INVALID = {
    "nan": b"NaN",
    "infinity": b"-Infinity",
    "bad-utf8": b'"\xff"',
    "cut-utf8": b'"\xe2\x82"',
    "overlong": b'"\xc0\xaf"',
    "surrogate-utf8": b'"\xed\xa0\x80"',
    "beyond-unicode": b'"\xf4\x90\x80\x80"',
    "control": b'"a\nb"',
    "nul": b'"a\x00b"',
    "bad-escape": b'"\\x41"',
    "short-escape": b'"\\u12"',
    "trailing-comma": b"[1,]",
    "two-values": b"1 2",
    "comment": b"/* no */ 1",
    "single-quotes": b"'a'",
    "leading-zero": b"01",
    "plus": b"+1",
    "unclosed": b"[1",
    "hex": b"0x10",
    "True": b"True",
}
invalid = pytest.mark.parametrize("payload", INVALID.values(), ids=INVALID.keys())


@invalid
def test_what_is_not_json_is_refused(client: BearerClient, run: Attempt, payload: bytes) -> None:
    step_id = run.proceed("x")
    before = client.events(run.id)
    calls = {
        "/steps": b'{"kind":"tool_call","target":"y","args":' + payload + b"}",
        f"/steps/{step_id}/complete": b'{"result":' + payload + b"}",
        f"/steps/{step_id}/fail": b'{"error":{"message":' + payload + b"}}",
        "/complete": b'{"output":' + payload + b"}",
    }
    for rest, body in calls.items():
        run.client.post(run.path(rest), body, bad=True).expect(400, "validation_error")
    assert client.events(run.id) == before


@invalid
def test_input_that_is_not_json(client: BearerClient, agent: FakeAgent, payload: bytes) -> None:
    created_bad = with_field(b'{"agent_id": "' + agent.id.encode() + b'"}', b"input", payload)
    client.post("/v0/executions", created_bad, bad=True).expect(400, "validation_error")
    listing = client.get(f"/v0/executions?agent_id={agent.id}").expect(200).json
    assert listing["executions"] == []


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{}x", b"{} {}", b"\xef\xbb\xbf{}", b"[]", b"null", b'"x"']
)
def test_body_is_one_object(run: Attempt, client: BearerClient, body: bytes) -> None:
    for rest in ("/steps", "/complete", "/fail"):
        run.client.request("POST", run.path(rest), body=body, bad=True).expect(
            400, "validation_error"
        )
    client.request("POST", "/v0/executions", body=body, bad=True).expect(400, "validation_error")
    client.request("POST", "/v0/agents", body=body, bad=True).expect(400, "validation_error")


def test_large_values_survive(
    client: BearerClient, run: Attempt, new_run: Callable[..., Attempt]
) -> None:
    """A conversation that grows, each call carrying what went before."""
    history: list[str] = []
    results: dict[str, bytes] = {}
    for turn in range(12):
        history.append(f"turn {turn}: " + chr(0x4E00 + turn) * 3000)
        step_id = run.proceed("model", {"messages": history}, kind="llm_call")
        results[step_id] = b'{"body": "' + f"{turn} ".encode() * 4000 + b'"}'
        run.complete_step(step_id, results[step_id]).expect(200)
    for turn, (step_id, result) in enumerate(results.items()):
        body = client.get(run.path(f"/steps/{step_id}")).expect(200).body
        assert member(body, "result") == result
        assert client.step(run.id, step_id)["args"]["messages"] == history[: turn + 1]


def test_sse_carries_values_with_line_ends(client: BearerClient, run: Attempt) -> None:
    payload = PAYLOADS["line-ends"]
    run.complete(payload).expect(204)

    def ended() -> bool:
        return bool(client.execution(run.id)["status"] == "completed")

    eventually(ended)
    with client.stream(run.path("/events")) as stream:
        events = [event.json for event in stream.rest()]
    [event] = [e for e in events if e["type"] == "execution.completed"]
    assert event["payload"]["output"] == {"a": 1, "b": [2]}
