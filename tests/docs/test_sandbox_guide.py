"""docs/sandbox.md: what it says of commands, limits and names."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rebuno.sandbox._bubblewrap import find
from rebuno.sandbox.local import Limits, LocalSandbox, Workspace

from harness.documents import Row, code, read
from harness.guide import files

GUIDE = read("docs/sandbox.md")
COMMANDS = GUIDE.rows("What a command can do", "`python try.py …`")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


@pytest.mark.parametrize("row", COMMANDS, ids=[code(row.cells[0]) for row in COMMANDS])
def test_a_command_prints_what_is_shown(row: Row, tmp_path: Path) -> None:
    found, why_not = find()
    if found is None:
        pytest.skip(why_not)
    (tmp_path / "try.py").write_text(files(GUIDE)["try.py"])
    done = subprocess.run(
        [sys.executable, "try.py", code(row.cells[0])],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert " ".join(done.stdout.split()) == code(row.cells[1]), done.stderr


def test_the_limits_are_the_defaults() -> None:
    rows = GUIDE.rows("What a command can do", "`Limits`")
    shown = {}
    for row in rows:
        number, unit = re.match(r"(\d+)(?: (\wiB))?", row.cells[1]).groups()  # type: ignore[union-attr]
        shown[code(row.cells[0])] = int(number) * UNITS.get(unit, 1)
    assert shown == dataclasses.asdict(Limits())


def test_every_argument_is_named() -> None:
    parameters = list(inspect.signature(LocalSandbox).parameters.values())
    rows = GUIDE.rows("The driver", "argument")
    assert [code(row.cells[0]) for row in rows] == [one.name for one in parameters]
    for row, parameter in zip(rows, parameters, strict=True):
        default = code(row.cells[1])
        if isinstance(parameter.default, str | bool):
            assert default == repr(parameter.default).replace("'", '"'), row.line


def test_every_member_of_a_workspace_is_named() -> None:
    shown = set(re.findall(r"`(?:await )?(\w+)", "".join(
        row.cells[0] for row in GUIDE.rows("The workspace", "")
    )))  # fmt: skip
    public = {name for name in dir(Workspace) if not name.startswith("_")}
    assert public - {"snapshot"} | {"path", "branch"} == shown
