# SPDX-License-Identifier: Apache-2.0
"""JSON as the protocol wants it: strict, with pydantic models and dataclasses converted.

Values are encoded once and travel as text, so what is recorded and what the caller gets back
come from the same characters. Knows nothing of requests.
"""

import dataclasses
import inspect
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def encode(value: Any, what: str = "value") -> str:
    """Returns `value` as JSON text; `what` names it in the error.

    NaN and Infinity are not JSON. TypeError says what could not be encoded.
    """
    try:
        text = _dumps(value, ensure_ascii=False)
        # A lone surrogate has no UTF-8: it can only travel as an escape.
        return text if text.isascii() or _is_utf8(text) else _dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(f"{what} cannot be JSON: {exc}") from exc


def decode(text: str | bytes) -> Any:
    """Returns the value of JSON text; ValueError if it is none."""
    return json.loads(text)


def join(fields: Mapping[str, str]) -> bytes:
    """Returns a JSON object whose field values are JSON texts already."""
    return ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode()


def _dumps(value: Any, *, ensure_ascii: bool) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        allow_nan=False,
        separators=(",", ":"),
        default=_convert,
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if inspect.iscoroutine(value):
        raise TypeError(f"a call of {value.__qualname__} was not awaited: write await before it")
    raise TypeError(f"{type(value).__name__} cannot be converted")
