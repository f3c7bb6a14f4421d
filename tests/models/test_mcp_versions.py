# SPDX-License-Identifier: Apache-2.0
"""`rebuno.mcp` with both major versions of the `mcp` package, over a real session."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FIRST = Path(sys.prefix) / "mcp1"  # where run.sh puts version 1, beside version 2


def the_round(*before: Path) -> dict[str, Any]:
    paths = [*map(str, before), os.environ["PYTHONPATH"]]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run(
        [sys.executable, str(HERE / "mcp_round.py")],
        env=env,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("major", ["1", "2"])
def test_tools_of_a_session(major: str) -> None:
    seen = the_round(FIRST) if major == "1" else the_round()
    assert seen["version"].startswith(f"{major}.")
    live = seen["live"]
    assert live["one"] == {"total": 1, "terms": [1]}
    assert live["two"] == {"total": 3, "terms": [1, 2]}
    assert live["say"] == "said é"
    assert live["twice"] == "a\na"
    assert "no number" in live["error"] or "valid integer" in live["error"]
    assert seen["replayed"] == live
    assert len(seen["called"]) == 5
    assert seen["docs"]["x_add"] == "Adds two numbers."
    assert seen["signature"] == "(*, first, second=None)"
    assert seen["required"] == ["first"]
    assert seen["args"] == [{"first": 1}, {"first": 1, "second": 2}]
