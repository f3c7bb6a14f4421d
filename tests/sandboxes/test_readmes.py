# SPDX-License-Identifier: Apache-2.0
"""The READMEs of the sandbox examples, and the files beside them that must agree."""

import ast
import re
from pathlib import Path

import pytest
import yaml
from example import EXAMPLES
from packaging.requirements import Requirement

EVERY = sorted(path.parent.name for path in EXAMPLES.glob("*/agent.py"))
ALL = [name for name in EVERY if name != "local"]  # of the providers, which share some files
TESTED = Path(__file__).parent / "requirements.txt"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    text = (EXAMPLES / name / "README.md").read_text()
    return [code for kind, code in FENCE.findall(text) if kind == language]


def sources(name: str) -> list[ast.AST]:
    files = ("agent.py", "workspace_resource.py")
    return [ast.parse((EXAMPLES / name / file).read_text()) for file in files]


def imported(node: ast.ImportFrom | ast.Import) -> set[str]:
    return {alias.name for alias in node.names}


def stub(node: ast.AST) -> str:
    """A function without its body but its docstring, for one that is shown as `...`."""
    assert isinstance(node, ast.AsyncFunctionDef)
    what = [*node.decorator_list, node.args, node.returns, node.body[0]]
    return node.name + "".join(ast.dump(part) for part in what if part is not None)


def is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and getattr(node.value, "value", None) is ...


@pytest.mark.parametrize("name", EVERY)
def test_snippets_are_what_the_example_does(name: str) -> None:
    trees = sources(name)
    nodes = [node for tree in trees for node in ast.walk(tree)]
    dumps = {ast.dump(node) for node in nodes if isinstance(node, ast.stmt | ast.expr)}
    stubs = {stub(node) for node in nodes if isinstance(node, ast.AsyncFunctionDef)}
    known = {
        n for node in nodes if isinstance(node, ast.ImportFrom | ast.Import) for n in imported(node)
    }
    shown = [node for code in blocks(name, "python") for node in ast.parse(code).body]
    assert len(shown) > 10
    for node in shown:
        if isinstance(node, ast.ImportFrom | ast.Import):
            assert imported(node) <= known, ast.unparse(node)
        elif isinstance(node, ast.AsyncFunctionDef) and is_ellipsis(node.body[-1]):
            assert stub(node) in stubs, ast.unparse(node)
        elif not is_ellipsis(node):
            # The example may return at once what a snippet gives a name.
            value = getattr(node, "value", None)
            here = {ast.dump(node), ast.dump(value) if value is not None else ""}
            assert here & dumps, ast.unparse(node)


@pytest.mark.parametrize("name", ALL)
def test_the_policy_is_the_one_shown(name: str) -> None:
    (shown,) = blocks(name, "yaml")
    assert (EXAMPLES / name / "policy.yaml").read_text() == shown


@pytest.mark.parametrize("name", EVERY)
def test_exactly_the_variables_that_the_agent_needs_are_named(name: str) -> None:
    readme = (EXAMPLES / name / "README.md").read_text()
    told = readme.partition("## Run it\n")[2].partition("```")[0]
    code = (EXAMPLES / name / "agent.py").read_text()
    asked = set(
        re.findall(r"\b[A-Z0-9]+_(?:[A-Z]+_)*[A-Z]+\b|\bREPO\b", code.partition("\nREPO =")[0])
    )
    assert set(re.findall(r"`([A-Z0-9_]+)`", told)) == asked


@pytest.mark.parametrize("name", EVERY)
def test_the_commands_name_the_example(name: str) -> None:
    commands = "".join(blocks(name, "bash"))
    assert f"cd examples/integrations/sandbox/{name}\nrebuno dev --config rebuno.yaml\n" in commands
    assert commands.count(f"rebuno exec create {name} '") == 2
    (agent,) = yaml.safe_load((EXAMPLES / name / "rebuno.yaml").read_text())["agents"]
    assert agent["id"] == name
    assert agent["policy_file"] == "policy.yaml"
    code = (EXAMPLES / name / "agent.py").read_text()
    assert f'    Agent(\n        "{name}",\n' in code
    assert f'"{agent["secret"]}"' in code
    assert agent["webhook_url"] == "http://localhost:5000/webhook"
    assert "port=5000" in code


@pytest.mark.parametrize("name", EVERY)
def test_what_is_tested_is_in_the_ranges(name: str) -> None:
    lines = (EXAMPLES / name / "requirements.txt").read_text().split("\n")
    ranges = {one.name: one.specifier for one in map(Requirement, filter(None, lines))}
    tested = dict(line.split("==") for line in TESTED.read_text().split() if "==" in line)
    for package, specifier in ranges.items():
        assert specifier.contains(tested[package]), package
    commands = "".join(blocks(name, "bash"))
    if name in ALL:
        (line,) = re.findall(r"^pip install rebuno (.*)$", commands, re.MULTILINE)
        assert set(line.split()) <= set(ranges)
    else:
        assert "\npip install -r requirements.txt\npython agent.py\n" in commands


@pytest.mark.parametrize("file", ["policy.yaml", "pull_request.py"])
def test_what_they_have_in_common(file: str) -> None:
    assert len({(EXAMPLES / name / file).read_text() for name in ALL}) == 1
