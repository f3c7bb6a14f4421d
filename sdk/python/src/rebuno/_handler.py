# SPDX-License-Identifier: Apache-2.0
"""A handler as its signature describes it: how it gets its input, and the schema of that."""

import contextlib
import inspect
import logging
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, Field, create_model
from pydantic import ValidationError as ModelError

from ._calls import call, name_of
from .errors import RebunoError

logger = logging.getLogger("rebuno")

_EMPTY = inspect.Parameter.empty
_RAW = (_EMPTY, Any, dict)  # annotations that take any input as it is
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class InputInvalid(RebunoError):
    """The execution's input does not fit the handler."""


@dataclass
class Result:
    """What a handler returns to store a state beside its output, both any JSON.

    `state` is what `previous()` gives to the session's next turn.
    """

    output: Any = None
    state: Any = None


class Handler:
    """A user's function, sync or async, that runs an execution."""

    def __init__(self, process: Callable[..., Any]) -> None:
        self._process = process
        self._signature = inspect.signature(process)
        self._annotations = _annotations(process)
        parameters = tuple(self._signature.parameters.values())
        self._named = [param for param in parameters if param.kind not in _VARIADIC]
        self._sole = self._named[0] if len(parameters) == len(self._named) == 1 else None
        self._model = self._sole_model()
        self._raw = self._sole is not None and self._annotation(self._sole) in _RAW

    def bind(self, value: Any) -> inspect.BoundArguments:
        """Returns the arguments made from an execution's input; raises InputInvalid."""
        if self._sole is not None and self._raw:
            return self._arguments({self._sole.name: value})
        fields = value if isinstance(value, dict) else {}
        if self._sole is None or self._model is None:
            return self._by_name(fields)
        try:
            made = self._model.model_validate(fields)
        except ModelError as exc:
            raise InputInvalid(f"input validation failed: {exc}") from exc
        return self._arguments({self._sole.name: made})

    async def run(self, arguments: inspect.BoundArguments) -> Any:
        """Calls the function; returns what it returns."""
        return await call(self._process, *arguments.args, **arguments.kwargs)

    def input_schema(self) -> dict[str, Any] | None:
        """Returns the JSON Schema of the input, None if any input will do or none can be made."""
        if self._raw:
            return None
        try:
            return (self._model or self._model_of_parameters()).model_json_schema()
        except Exception as exc:  # whatever pydantic has to say about the user's annotations
            logger.warning("no input schema for %s: %s", name_of(self._process), exc)
            return None

    def _sole_model(self) -> type[BaseModel] | None:
        annotation = None if self._sole is None else self._annotation(self._sole)
        is_model = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
        return annotation if is_model else None

    def _annotation(self, parameter: inspect.Parameter) -> Any:
        return self._annotations.get(parameter.name, parameter.annotation)

    def _schema_type(self, parameter: inspect.Parameter) -> Any:
        annotation = self._annotation(parameter)
        return Any if annotation is _EMPTY or isinstance(annotation, str) else annotation

    def _by_name(self, fields: dict[str, Any]) -> inspect.BoundArguments:
        names = [param.name for param in self._named]
        missing = [
            param.name
            for param in self._named
            if param.default is _EMPTY and param.name not in fields
        ]
        if missing:
            raise InputInvalid(f"missing required input fields: {', '.join(missing)}")
        return self._arguments({name: fields[name] for name in names if name in fields})

    def _arguments(self, values: dict[str, Any]) -> inspect.BoundArguments:
        """Binds by name, whether the parameter takes a position or a keyword."""
        bound = self._signature.bind_partial()
        bound.arguments.update(values)
        bound.apply_defaults()
        return bound

    def _model_of_parameters(self) -> type[BaseModel]:
        # The fields get names of ours and the parameter's as alias: pydantic reserves some names.
        fields: dict[str, Any] = {
            f"field_{position}": (
                self._schema_type(param),
                Field(... if param.default is _EMPTY else param.default, alias=param.name),
            )
            for position, param in enumerate(self._named)
        }
        return create_model(name_of(self._process), **fields)


def output_schema(schema: dict[str, Any] | type[BaseModel] | None) -> dict[str, Any] | None:
    """Returns the JSON Schema that an agent was given for its output, as dict or as model."""
    if inspect.isclass(schema) and issubclass(schema, BaseModel):
        return schema.model_json_schema(mode="serialization")
    return schema if isinstance(schema, dict) else None


def _annotations(process: Callable[..., Any]) -> dict[str, Any]:
    """Returns the parameters' annotations, those written as text resolved.

    Names are looked up in the function's module and in what it closes over. One that is found
    in neither (imported for type checkers only, say) is left as text.
    """
    if isinstance(process, types.MethodType):
        process = process.__func__
    elif not isinstance(process, types.FunctionType):
        process = type(process).__call__
    process = inspect.unwrap(process)
    closed = _closed_over(process)
    hints = dict(getattr(process, "__annotations__", {}))
    for name, hint in hints.items():
        holder = types.SimpleNamespace(__annotations__={name: hint})
        try:
            found = getattr(process, "__globals__", {})
            hints[name] = get_type_hints(holder, found, closed, include_extras=True)[name]
        except Exception as exc:  # any text may stand there
            logger.warning(
                "handler %s: annotation of %s counts as none: %s", name_of(process), name, exc
            )
    return hints


def _closed_over(process: Callable[..., Any]) -> dict[str, Any]:
    names = getattr(getattr(process, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, getattr(process, "__closure__", None) or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            found[name] = cell.cell_contents
    return found
