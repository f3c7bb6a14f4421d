# SPDX-License-Identifier: Apache-2.0
"""Which step a submission is: canonical arguments, their hash, and the step's id. Pure.

The protocol's rules (docs/protocol.md), as the kernel applies them; checked by its vectors.
"""

import hashlib
import json
import re
from typing import Any

_ESCAPED = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number by its source text, which is what counts: 1.0 is not 1."""


def parse(text: str | bytes) -> Any:
    """Returns the value of JSON text, its numbers as they were written."""
    return json.loads(text, parse_int=Number, parse_float=Number)


def plain(value: Any) -> Any:
    """Returns a parsed value with numbers as Python has them."""
    if isinstance(value, Number):
        return json.loads(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def canonical(value: Any) -> str:
    """Returns the canonical form of a parsed value."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, dict):
        members = sorted((_whole(key).encode(), item) for key, item in value.items())
        return "{" + ",".join(f"{_string(k.decode())}:{canonical(v)}" for k, v in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]


def args_hash(args: Any) -> str:
    """Returns the hash of parsed arguments."""
    return _sha256(canonical(args))


def step_id(execution_id: str, kind: str, target: str, hashed: str, occurrence: int) -> str:
    """Returns the id of a step by what it is known by."""
    parts = (execution_id, kind, target, hashed, str(occurrence))
    return _sha256("".join(f"{len(part.encode())}:{part}" for part in parts))


def _string(text: str) -> str:
    return '"' + _ESCAPED.sub(lambda found: _escape(found[0]), _whole(text)) + '"'


def _escape(char: str) -> str:
    return _SHORT.get(char) or f"\\u{ord(char):04x}"


def _whole(text: str) -> str:
    return _LONE_SURROGATE.sub("\ufffd", text)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
