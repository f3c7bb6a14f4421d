# SPDX-License-Identifier: Apache-2.0
"""The READMEs of examples/integrations/models: what they show is there, and can be followed."""

import ast
import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from real_kernel import BIN, FREE_PORT, Process
from shop import FOLDER, VARIANTS, Shop, commands, exported

NAMES = sorted(path.name for path in FOLDER.iterdir() if (path / "agent.py").exists())
FIRST_OF = {variant.name: variant for variant in reversed(VARIANTS)}
ANSWER = "Your money is on its way."

every_example = pytest.mark.parametrize("name", NAMES)


def test_each_example_is_tested() -> None:
    assert set(NAMES) == FIRST_OF.keys()


@every_example
def test_the_snippets_are_the_agents(name: str) -> None:
    agent = (FOLDER / name / "agent.py").read_text()
    readme = (FOLDER / name / "README.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert snippets
    for snippet in snippets:
        assert snippet in agent, snippet


def imported(folder: Path) -> set[str]:
    """The packages that the folder's programs import."""
    names: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module))
    own = {path.stem for path in folder.glob("*.py")} | {"rebuno"}
    tops = {name.partition(".")[0] for name in names}
    return tops - sys.stdlib_module_names - own


@every_example
def test_the_requirements_are_what_is_imported_and_tested(name: str) -> None:
    lines = (FOLDER / name / "requirements.txt").read_text().splitlines()
    wanted = {canonicalize_name(one.name): one for one in map(Requirement, lines)}
    named = {"agents": "openai-agents", "pydantic_ai": "pydantic-ai-slim"}
    for module in imported(FOLDER / name) - {"langchain_core"}:  # langchain's own
        assert named.get(module, module.replace("_", "-")) in wanted
    for package, requirement in wanted.items():
        assert requirement.specifier.contains(version(package)), requirement


@every_example
def test_the_registration_is_the_agents(name: str) -> None:
    manifest = (FOLDER / name / "rebuno.yaml").read_text()
    agent = (FOLDER / name / "agent.py").read_text()
    assert f"- id: {name}\n" in manifest
    assert f'Agent(\n        "{name}",' in agent
    (secret,) = re.findall(r"secret: (\S+)", manifest)
    assert f'or "{secret}",' in agent


async def cli(shop: Shop, line: str) -> str:
    """Runs a command of the README to its end; returns what it printed."""
    process = Process([BIN, *shlex.split(line)[1:]], shop.example, REBUNO_URL=shop.url)
    await asyncio.to_thread(process.child.wait, 30)
    await asyncio.to_thread(process.end, signal.SIGTERM)
    assert process.child.returncode == 0, process.output
    return "".join(process.output)


def question_of(create: str) -> str:
    (question,) = re.findall(r'"question": "(.*?)"', create)
    return question


@pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")
@pytest.mark.parametrize("decision", ["grant", "deny"])
@every_example
async def test_it_can_be_followed(name: str, decision: str) -> None:
    variant = FIRST_OF[name]
    lines = list(commands(FOLDER / name / "README.md"))
    assert lines.count(f"cd {(FOLDER / name).relative_to(Path(__file__).parents[2])}") == 2
    assert {"rebuno dev --config rebuno.yaml", "python agent.py"} <= set(lines)  # which Shop runs
    (create,) = [line for line in lines if line.startswith("rebuno exec create ")]
    (decide,) = [line for line in lines if line.startswith(f"rebuno approval {decision} ")]
    script = [
        {"tools": [variant.call("find_order", number="A2")]},
        {"tools": [variant.call("check_stock", item="kettle")]},
        {"tools": [variant.call("refund", number="A2", amount=25)]},
        ANSWER,
    ]
    async with Shop(variant) as shop:
        shop.script(question_of(create), *script)
        created = asyncio.create_task(cli(shop, create))
        run = await shop.first_run()
        approval = await shop.pending(run)
        listed = await cli(shop, "rebuno approval ls")
        assert variant.target("refund") in listed
        assert listed.splitlines()[1].split()[0] == approval.id[:18]
        await cli(shop, decide.replace("<approval-id>", approval.id[:18]))
        assert ANSWER in await created
        assert len(shop.requests(run)) == 4
        told = str(shop.requests(run)[3].body)
    if decision == "grant":
        assert "25.00 paid back for order A2" in told
    else:
        text = (FOLDER / name / "README.md").read_text()
        (sentence,) = re.findall(r"the model reads `(.*?)`", text)
        assert sentence in told


@every_example
def test_a_missing_variable_is_named(name: str) -> None:
    """Each ends the agent at its start, not a run later."""
    folder = FOLDER / name
    needed = exported(folder / "README.md")
    # Its client knows other credentials too, and looks for them at the first call.
    for missing in set(needed) - {"ANTHROPIC_API_KEY"}:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI", "ANTHROPIC"))}
        given = {one: "openai:m" for one in needed if one != missing}
        ended = subprocess.run(
            [sys.executable, "-c", FREE_PORT],
            cwd=folder,
            env=kept | given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1
        assert missing in ended.stderr.splitlines()[-1]
