"""examples/integrations/README.md: each example is there, with what its own README asks for."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from harness.documents import REPOSITORY, Row, code, read

FOLDER = REPOSITORY / "examples/integrations"
GUIDE = read("examples/integrations/README.md")
ROWS = {re.findall(r"\[(.+?)\]", row.cells[0])[0]: row for row in GUIDE.tables[0].rows}


def variables(readme: str) -> set[str]:
    """Those that a README has its reader set: in a shell's block, or in words."""
    exported = " ".join(re.findall(r"^export (.*)$", readme, re.MULTILINE))
    told = " ".join(part for part in readme.split("\n\n") if re.search(r"\b[Ss]et `[A-Z]", part))
    return {*re.findall(r"([A-Z_]+)=", exported), *re.findall(r"`([A-Z][A-Z0-9_]+)`", told)}


def test_every_example_has_a_row() -> None:
    found = {str(path.parent.relative_to(FOLDER)) for path in FOLDER.glob("*/*/agent.py")}
    assert found == set(ROWS)


@pytest.mark.parametrize(("name", "row"), ROWS.items(), ids=list(ROWS))
class TestEach:
    def test_needs_what_its_readme_says(self, name: str, row: Row) -> None:
        readme = (FOLDER / name / "README.md").read_text()
        assert set(code(row.cells[2]).split()) == variables(readme)

    def test_is_run_as_its_readme_says(self, name: str, row: Row) -> None:
        *command, agent, given = shlex.split(code(row.cells[3]))[:5]
        assert command == ["rebuno", "exec", "create"]
        (known,) = yaml.safe_load((FOLDER / name / "rebuno.yaml").read_text())["agents"]
        assert agent == known["id"] == Path(name).name
        readme = (FOLDER / name / "README.md").read_text()
        shown = [shlex.split(one) for one in re.findall(r"^rebuno exec create.*", readme, re.M)]
        assert {agent} == {words[3] for words in shown}
        assert {tuple(json.loads(words[4])) for words in shown} == {tuple(json.loads(given))}
