"""The package as a whole: its names, its documentation, its layout."""

import ast
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from conftest import README, Bench, readme_blocks

import rebuno
from rebuno import errors, types

SOURCE = Path(rebuno.__file__).parent


def test_the_index_is_complete() -> None:
    assert len(set(rebuno.__all__)) == len(rebuno.__all__)
    for name in rebuno.__all__:
        assert hasattr(rebuno, name)
    own = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    kinds = {name for name in own if issubclass(getattr(errors, name), Exception)}
    assert kinds <= set(rebuno.__all__)


def test_all_other_modules_are_private() -> None:
    modules = {module.name for module in pkgutil.iter_modules([str(SOURCE)])}
    public = {name for name in modules if not name.startswith("_")}
    assert public <= {"types", "errors", "mcp", "sandbox", "testing"}
    assert (SOURCE / "py.typed").exists()


def public_members() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [(name, getattr(rebuno, name)) for name in rebuno.__all__]
    for kind in (rebuno.Agent, rebuno.Client):
        found += [
            (f"{kind.__name__}.{name}", member)
            for name, member in vars(kind).items()
            if not name.startswith("_") and (callable(member) or isinstance(member, property))
        ]
    found += [
        (f"types.{name}", kind)
        for name, kind in vars(types).items()
        if inspect.isclass(kind) and kind.__module__ == "rebuno.types"
    ]
    return found


@pytest.mark.parametrize(
    ("name", "member"), public_members(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_public_name_is_documented(name: str, member: object) -> None:
    assert inspect.getdoc(member), name


def test_files_and_functions_stay_small() -> None:
    for path in SOURCE.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path.name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                assert node.end_lineno - node.lineno < 50, f"{path.name}: {node.name}"


async def test_the_agent_of_the_readme(bench: Bench) -> None:
    agent, *others = readme_blocks()
    module: dict[str, Any] = {"__name__": "agent"}
    exec(compile(agent, str(README), "exec"), module)
    bench.kernel.decide("ticket", decision="replay", result="1234")
    output = await bench.output(module["process"], {"name": "Ada"})
    assert output == {"ticket": "1234", "mail": "sent"}
    args = {"to": "ops@example.com", "text": "Hello Ada, your ticket is 1234"}
    assert bench.kernel.named("steps")[1].body["args"] == args
    for other in others:
        compile(other, str(README), "exec")
