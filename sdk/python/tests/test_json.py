import dataclasses
import enum
import json
from typing import Any

import pytest
from pydantic import BaseModel

from rebuno._json import decode, encode, join


class Point(BaseModel):
    x: int
    y: float = 0.5


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = None


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (1.0, "1.0"),
        (1e22, "1e+22"),
        (2**100, str(2**100)),
        ("é😀\n", '"é😀\\n"'),
        ("\ud800", '"\\ud800"'),
        ((1, 2), "[1,2]"),
        ({3: 1, "a": [True, None]}, '{"3":1,"a":[true,null]}'),
        (Point(x=1), '{"x":1,"y":0.5}'),
        ([Pair(Point(x=1), Pair(2))], '[{"left":{"x":1,"y":0.5},"right":{"left":2,"right":null}}]'),
        (Colour.RED, '"red"'),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert encode(value) == text
    decode(text)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        [{"a": -float("inf")}],
        Point(x=1, y=float("nan")),
        Pair(float("inf")),
        {1, 2},
        b"bytes",
        object(),
        Point,
        {(1, 2): 3},
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_what_is_not_json(value: Any) -> None:
    with pytest.raises(TypeError, match="the thing cannot be JSON"):
        encode(value, "the thing")


def test_circles_and_depth_are_type_errors() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, deep):
        with pytest.raises(TypeError, match="cannot be JSON"):
            encode(value)


def test_join_keeps_the_texts() -> None:
    assert join({"a": "1.00", "b": '"é"'}) == '{"a":1.00,"b":"é"}'.encode()
    assert json.loads(join({})) == {}
