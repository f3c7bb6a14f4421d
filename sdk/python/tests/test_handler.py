"""The handler's signature is its input schema."""

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import pytest
from conftest import Bench
from pydantic import BaseModel, Field, field_validator

from rebuno._handler import Handler, InputInvalid, output_schema

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Order(BaseModel):
    task: str
    count: int = 3


def model(order: Order) -> Any:
    return order


def text_model(order: "Order") -> Any:
    return order


def bare(value) -> Any:  # type: ignore[no-untyped-def]
    return value


def bare_with_default(value={"d": 1}) -> Any:  # type: ignore[no-untyped-def]  # noqa: B006
    return value


def anything(value: Any) -> Any:
    return value


def plain_dict(value: dict) -> Any:  # type: ignore[type-arg]
    return value


def text(value: str) -> Any:
    return value


def typed_dict(value: dict[str, int]) -> Any:
    return value


def optional_model(value: Optional[Order]) -> Any:  # noqa: UP045
    return value


def several(task: str, count: int = 4, *, flag: bool = False) -> Any:
    return [task, count, flag]


def positional(a: int, /, b: int = 2) -> Any:
    return [a, b]


def variadic(a, *args, **kwargs) -> Any:  # type: ignore[no-untyped-def]
    return [a, args, kwargs]


def nothing() -> Any:
    return "called"


def unresolvable(a: "OnlyForCheckers", b: int) -> Any:
    return [a, b]


class Holder:
    def method(self, task: str) -> Any:
        return task

    def __call__(self, task: str) -> Any:
        return task


def bound(process: Callable[..., Any], value: Any) -> Any:
    arguments = Handler(process).bind(value)
    return process(*arguments.args, **arguments.kwargs)


@pytest.mark.parametrize(
    ("process", "value", "got"),
    [
        (model, {"task": "t", "other": 1}, Order(task="t")),
        (text_model, {"task": "t", "count": "5"}, Order(task="t", count=5)),
        (bare, 5, 5),
        (bare, None, None),
        (bare, {"value": 1}, {"value": 1}),
        (bare_with_default, [1], [1]),
        (anything, "x", "x"),
        (plain_dict, [1], [1]),
        (text, {"value": 7}, 7),
        (typed_dict, {"value": {"a": "b"}, "x": 1}, {"a": "b"}),
        (optional_model, {"value": {"task": "t"}}, {"task": "t"}),
        (several, {"task": "t", "other": 1}, ["t", 4, False]),
        (several, {"flag": True, "count": "no int", "task": None}, [None, "no int", True]),
        (positional, {"a": 1}, [1, 2]),
        (positional, {"a": 1, "b": 3}, [1, 3]),
        (variadic, {"a": 1, "args": 2, "b": 3}, [1, (), {}]),
        (nothing, {"a": 1}, "called"),
        (nothing, 5, "called"),
        (unresolvable, {"a": 1, "b": 2}, [1, 2]),
        (Holder().method, {"task": "t"}, "t"),
        (Holder(), {"task": "t"}, "t"),
        (functools.partial(several, count=9), {"task": "t"}, ["t", 9, False]),
    ],
)
def test_input(process: Callable[..., Any], value: Any, got: Any) -> None:
    assert bound(process, value) == got


@pytest.mark.parametrize(
    ("process", "value", "message"),
    [
        (text, {}, "missing required input fields: value"),
        (text, "value", "missing required input fields: value"),
        (several, [1], "missing required input fields: task"),
        (unresolvable, None, "missing required input fields: a, b"),
        (variadic, {}, "missing required input fields: a"),
        (model, {}, "input validation failed: 1 validation error for Order\ntask\n"),
        (model, "no object", "input validation failed: 1 validation error for Order\ntask\n"),
    ],
)
def test_input_that_does_not_fit(process: Callable[..., Any], value: Any, message: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        Handler(process).bind(value)
    assert str(caught.value).startswith(message)


ORDER_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {
        "task": {"title": "Task", "type": "string"},
        "count": {"default": 3, "title": "Count", "type": "integer"},
    },
    "required": ["task"],
}


@pytest.mark.parametrize(
    ("process", "schema"),
    [
        (model, ORDER_SCHEMA),
        (bare, None),
        (anything, None),
        (plain_dict, None),
        (
            several,
            {
                "title": "several",
                "type": "object",
                "properties": {
                    "task": {"title": "Task", "type": "string"},
                    "count": {"default": 4, "title": "Count", "type": "integer"},
                    "flag": {"default": False, "title": "Flag", "type": "boolean"},
                },
                "required": ["task"],
            },
        ),
        (nothing, {"title": "nothing", "type": "object", "properties": {}}),
        (
            unresolvable,
            {
                "title": "unresolvable",
                "type": "object",
                "properties": {"a": {"title": "A"}, "b": {"title": "B", "type": "integer"}},
                "required": ["a", "b"],
            },
        ),
    ],
)
def test_input_schema(process: Callable[..., Any], schema: Any) -> None:
    assert Handler(process).input_schema() == schema


def test_a_parameter_without_a_schema_leaves_none(caplog: pytest.LogCaptureFixture) -> None:
    def handler(a: int, lock: threading.Event) -> None: ...

    assert Handler(handler).input_schema() is None
    assert "no input schema for handler" in caplog.text


def test_names_that_pydantic_keeps_for_itself() -> None:
    def handler(model_config: int, schema: str, _private: int = 1) -> None: ...

    published = Handler(handler).input_schema()
    assert published is not None
    assert list(published["properties"]) == ["model_config", "schema", "_private"]


def test_annotations_of_a_closure_are_resolved() -> None:
    class Local(BaseModel):
        a: int

    def handler(value: "Local") -> Any:
        return Local, value

    assert Handler(handler).bind({"a": 1}).args == (Local(a=1),)


def test_output_schema() -> None:
    class Answer(BaseModel):
        text: str = Field(description="what to say")

    assert output_schema(None) is None
    assert output_schema({"type": "string"}) == {"type": "string"}
    published = output_schema(Answer)
    assert published is not None
    assert published["properties"]["text"]["description"] == "what to say"


async def test_bad_input_fails_the_execution(bench: Bench) -> None:
    reason = await bench.failure(text, {})
    assert reason == "input_invalid: missing required input fields: value"
    assert bench.kernel.names() == ["get", "fail"]


async def test_a_validator_that_breaks_fails_the_execution(bench: Bench) -> None:
    class Strange(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def check(cls, value: int) -> int:
            raise RuntimeError("broken")

    def process(given: Strange) -> None: ...

    assert await bench.failure(process, {"a": 1}) == "agent_error: RuntimeError: broken"
