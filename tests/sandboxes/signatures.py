# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a provider's object: answers from a table, and refuses what the real one would."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

Call = tuple[str, dict[str, Any]]


def bind(
    function: Callable[..., Any], args: Any, kwargs: Any, *, options: Collection[str] = ()
) -> dict[str, Any]:
    """The arguments by name; TypeError if the function does not take them.

    A `self` that was not bound yet is left out. `options` are the names that its `**` may take.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name == "self":
        signature = signature.replace(parameters=parameters[1:])
    given = signature.bind(*args, **kwargs).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            more = given.pop(parameter.name, {})
            if unknown := set(more) - set(options):
                raise TypeError(f"{function.__name__} has no {', '.join(sorted(unknown))}")
            given |= more
    return dict(given)


class Double:
    """Its async methods are those of `functions`. `calls` gets each call, its arguments by name.

    An answer may be an exception, to be raised. Other attributes are given by keyword.
    """

    def __init__(
        self,
        calls: list[Call],
        functions: Mapping[str, Callable[..., Any]],
        answers: Mapping[str, Any] | None = None,
        *,
        options: Collection[str] = (),
        **attributes: Any,
    ) -> None:
        self._calls = calls
        self._functions = functions
        self._answers = answers or {}
        self._options = options
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            raise AttributeError(name)

        async def method(*args: Any, **kwargs: Any) -> Any:
            given = bind(self._functions[name], args, kwargs, options=self._options)
            self._calls.append((name, given))
            answer = self._answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return method
