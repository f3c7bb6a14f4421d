# SPDX-License-Identifier: Apache-2.0
"""Makes durable steps of the tools of an MCP server.

    async with ClientSession(…) as session:
        listed = await session.list_tools()
        tools = wrap_mcp_tools(listed.tools, call=session.call_tool, prefix="files")

Works with both major versions of the `mcp` package, which it does not import, and with
descriptors that are plain dicts.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from ._calls import call as call_either
from ._tools import wrap_tool

__all__ = ["wrap_mcp_tool", "wrap_mcp_tools"]


def wrap_mcp_tool(
    descriptor: Any,
    *,
    call: Callable[[str, dict[str, Any]], Any],
    prefix: str = "",
    idempotency: str = "safe_to_retry",
    to_result: Callable[[Any], Any] | None = None,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Makes a durable step of one tool; returns a coroutine function that takes keywords.

    descriptor: an object or dict with `name`, `description` and the schema of its input, as the
    server lists it. call: called as `call(name, args)`, sync or async, such as a session's
    `call_tool`; arguments that are None are left out. prefix: the step is named
    `<prefix>_<name>`, so that the tools of several servers differ. to_result: turns what the
    call returns into JSON; by default its structured content, else the text of its content.
    For `idempotency`, refusals and errors see `rebuno.tool`.
    """
    name = str(_field(descriptor, "name"))

    async def invoke(args: dict[str, Any]) -> Any:
        return await call_either(call, name, args)

    return wrap_tool(
        f"{prefix}_{name}" if prefix else name,
        invoke,
        description=_field(descriptor, "description") or "",
        args_schema=_field(descriptor, "input_schema", "inputSchema"),
        idempotency=idempotency,
        to_result=_to_result if to_result is None else to_result,
        transform_args=_given,
    )


def wrap_mcp_tools(
    descriptors: Iterable[Any],
    *,
    call: Callable[[str, dict[str, Any]], Any],
    prefix: str = "",
    idempotency: str = "safe_to_retry",
    to_result: Callable[[Any], Any] | None = None,
) -> list[Callable[..., Coroutine[Any, Any, Any]]]:
    """Makes durable steps of all the tools of a server; see `wrap_mcp_tool`."""
    return [
        wrap_mcp_tool(
            descriptor, call=call, prefix=prefix, idempotency=idempotency, to_result=to_result
        )
        for descriptor in descriptors
    ]


def _given(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not None}


def _to_result(raw: Any) -> Any:
    """What a session's `call_tool` returned, as JSON; anything else, a dict too, as it is."""
    for name in ("structured_content", "structuredContent"):
        if (structured := getattr(raw, name, None)) is not None:
            return structured
    content = getattr(raw, "content", None)
    if content is None:
        return raw
    return "\n".join(_text(block) for block in content)


def _text(block: Any) -> str:
    text = getattr(block, "text", None)
    return text if isinstance(text, str) else str(block)


def _field(descriptor: Any, *names: str) -> Any:
    """The first of the names that the descriptor has a value for, else None."""
    for name in names:
        is_dict = isinstance(descriptor, Mapping)
        found = descriptor.get(name) if is_dict else getattr(descriptor, name, None)
        if found is not None:
            return found
    return None
