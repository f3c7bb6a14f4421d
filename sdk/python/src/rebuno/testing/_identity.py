# SPDX-License-Identifier: Apache-2.0
"""Which step a submission is: canonical arguments, their hash, and the step's id. Pure.

The protocol's rules (docs/protocol.md), as the kernel applies them; checked by its vectors.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

_ESCAPED = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number by its source text, which is what counts: 1.0 is not 1."""


def parse(text: str | bytes) -> Any:
    """Returns the value of JSON text, its numbers as they were written."""
    return json.loads(text, parse_int=Number, parse_float=Number)


class _Text(str):
    """Canonical text already."""


def canonical(value: Any) -> str:
    """Returns the canonical form of a parsed value. Without recursion: the kernel goes deeper."""
    done: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, _Text | Number):
            done.append(item)
        elif isinstance(item, str):
            done.append(_string(item))
        elif isinstance(item, dict):
            members = sorted(item.items(), key=lambda member: _whole(member[0]).encode())
            named = ([_Text(f"{_string(key)}:"), one] for key, one in members)
            left += reversed([_Text("{"), *_separated(named), _Text("}")])
        elif isinstance(item, list):
            left += reversed([_Text("["), *_separated([one] for one in item), _Text("]")])
        else:
            done.append({None: "null", True: "true", False: "false"}[item])
    return "".join(done)


def _separated(groups: Iterable[list[Any]]) -> Iterator[Any]:
    for number, group in enumerate(groups):
        if number:
            yield _Text(",")
        yield from group


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
