# SPDX-License-Identifier: Apache-2.0
"""docs/cloud-sandboxes.md: its examples, variables and versions are those of the examples."""

import re
from pathlib import Path

import pytest
from example import EXAMPLES, module_of
from packaging.requirements import Requirement
from test_readmes import ALL, TESTED

GUIDE = (Path(__file__).parents[2] / "docs" / "cloud-sandboxes.md").read_text()
MODEL = {"LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY"}


def rows(heading: str) -> dict[str, list[str]]:
    """A section's table by its first column, which may be a link or code."""
    section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {re.sub(r"^\[(.*?)\].*|^`(.*)`$", r"\1\2", first): rest for first, *rest in cells}


@pytest.mark.parametrize("heading", ["The examples", "Where they differ"])
def test_every_example_is_there(heading: str) -> None:
    assert sorted(rows(heading)) == sorted([*ALL, "local"])


@pytest.mark.parametrize("name", [*ALL, "local"])
def test_the_variables_are_those_of_the_readme(name: str) -> None:
    readme = (EXAMPLES / name / "README.md").read_text()
    told = readme.partition("## Run it\n")[2].partition("```")[0]
    asked = set(re.findall(r"`([A-Z0-9_]+)`", told)) - MODEL
    assert set(re.findall(r"`([A-Z0-9_]+)`", rows("The examples")[name][1])) == asked


def test_the_versions_are_those_of_the_requirements() -> None:
    tested = dict(line.split("==") for line in TESTED.read_text().split() if "==" in line)
    ranges = {
        one.name: one.specifier
        for name in ALL
        for line in (EXAMPLES / name / "requirements.txt").read_text().splitlines()
        for one in [Requirement(line)]
    }
    shown = rows("Versions")
    assert set(shown) == set(ranges)
    for package, (range, version) in shown.items():
        assert Requirement(f"{package}{range.strip('`')}").specifier == ranges[package]
        assert version == tested[package]


def test_the_drivers_have_names_of_their_own() -> None:
    drivers = [module_of(name) for name in ALL]
    ids = {
        value.driver_id
        for driver in drivers
        for value in vars(driver).values()
        if hasattr(value, "driver_id")
    }
    assert len(ids) == len(ALL)
