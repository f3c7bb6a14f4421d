"""Step ids, argument hashes and signatures against tests/vectors."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness import Attempt, BearerClient, Signer

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
IDENTITY = json.loads((VECTORS / "identity.json").read_text(encoding="utf-8"))
SIGNATURE = json.loads((VECTORS / "signature.json").read_text(encoding="utf-8"))


def step_id(execution_id: str, kind: str, target: str, args_hash: str, occurrence: int) -> str:
    parts = (execution_id, kind, target, args_hash, str(occurrence))
    framed = b"".join(b"%d:%b" % (len(p.encode()), p.encode()) for p in parts)
    return hashlib.sha256(framed).hexdigest()


def bare(vector: dict[str, Any]) -> bytes:
    return str(vector["args_json"]).encode("utf-8")


@pytest.mark.parametrize("vector", IDENTITY["valid"], ids=lambda v: v["target"])
def test_own_arithmetic(vector: dict[str, Any]) -> None:
    """The tests' own idea of an id is that of the vectors."""
    assert hashlib.sha256(vector["canonical"].encode()).hexdigest() == vector["args_hash"]
    fields = [vector[k] for k in ("execution_id", "kind", "target", "args_hash", "occurrence")]
    assert step_id(*fields) == vector["step_id"]


@pytest.mark.parametrize("vector", IDENTITY["valid"], ids=lambda v: v["target"])
def test_step_has_the_expected_identity(
    client: BearerClient, run: Attempt, vector: dict[str, Any]
) -> None:
    kind, target = vector["kind"], vector["target"]
    for occurrence in range(vector["occurrence"] + 1):
        found = run.proceed(target, bare(vector), kind=kind)
        assert found == step_id(run.id, kind, target, vector["args_hash"], occurrence)
    step = client.step(run.id, found)
    assert step["args_hash"] == vector["args_hash"]
    assert step["occurrence"] == vector["occurrence"]


@pytest.mark.parametrize("text", IDENTITY["refused"])
def test_refused_arguments_record_nothing(client: BearerClient, run: Attempt, text: str) -> None:
    body = b'{"kind": "tool_call", "target": "x", "args": ' + text.encode() + b"}"
    before = client.events(run.id)
    run.client.post(run.path("/steps"), body, bad=True).expect(400, "validation_error")
    assert client.events(run.id) == before
    assert client.steps(run.id) == []


@pytest.mark.parametrize(
    "target", ["naïve", "日本語", "😀", "a b", "a/b?c#d%20", '"quoted"', "\\", "<&>", "x" * 1024]
)
def test_targets_are_utf8(client: BearerClient, run: Attempt, target: str) -> None:
    null_hash = hashlib.sha256(b"null").hexdigest()
    found = run.proceed(target)
    assert found == step_id(run.id, "tool_call", target, null_hash, 0)
    assert client.step(run.id, found)["target"] == target


@pytest.mark.parametrize(
    ("args", "canonical"),
    [
        (b'{"b":{"d":1,"c":2},"a":[]}', b'{"a":[],"b":{"c":2,"d":1}}'),
        (b'"\\u003c\\u003E\\u0026"', b'"\\u003c\\u003e\\u0026"'),
        (b'"\\u00e9\\ud83d\\ude00"', '"é😀"'.encode()),
        (b'"\\ud800"', '"\ufffd"'.encode()),
        (b'"\\udc00\\ud800x"', '"\ufffd\ufffdx"'.encode()),
        (b'"\\u0000\\u0001\\u001f\\u007f"', b'"\\u0000\\u0001\\u001f\x7f"'),
        (b'"\\/\\"\\\\"', b'"/\\"\\\\"'),
        (b"123456789012345678901234567890.1e-400", b"123456789012345678901234567890.1e-400"),
        (b"{}", b"{}"),
        (b'{"":{"":{}}}', b'{"":{"":{}}}'),
        (b"[1,2,\t3 ]", b"[1,2,3]"),
    ],
)
def test_canonical_form(client: BearerClient, run: Attempt, args: bytes, canonical: bytes) -> None:
    found = run.proceed("x", args)
    wanted = hashlib.sha256(canonical).hexdigest()
    assert client.step(run.id, found)["args_hash"] == wanted


@pytest.mark.parametrize("vector", SIGNATURE["requests"], ids=lambda v: v["secret"])
def test_request_signatures(vector: dict[str, Any]) -> None:
    fields = ["rebuno-request-v1", vector["method"], vector["path"], vector["timestamp"]]
    fields += [vector["dispatch_id"], vector["attempt"]]
    signer = Signer("agent", vector["secret"])
    assert signer.signature(fields, vector["body"].encode()) == vector["signature"]
