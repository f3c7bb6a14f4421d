"""docs/drivers.md: its driver keeps the contract, and does in a run what the guide says."""

import os
import subprocess
import sys
from pathlib import Path

from rebuno.testing import CHECKS

from harness.documents import code, read
from harness.guide import Followed, files

GUIDE = read("docs/drivers.md")


def test_its_test_passes(tmp_path: Path) -> None:
    for name, text in files(GUIDE).items():
        (tmp_path / name).write_text(text)
    (block,) = (b for b in GUIDE.blocks if b.language == "bash")
    install, test = (line.split() for line in block.text.splitlines())
    assert install == ["pip", "install", "pytest"]
    done = subprocess.run(
        [sys.executable, "-m", *test, "-q", "-p", "no:cacheprovider"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CHECKS)} passed" in done.stdout


def test_every_rule_of_the_contract_is_named() -> None:
    names = [code(row.cells[0]) for row in GUIDE.rows("What it must keep", "test")]
    assert names == [getattr(check, "__name__", "") for check in CHECKS]


def test_its_agent_and_a_fork(followed: Followed) -> None:
    walk = followed(GUIDE, "agent.py")
    source = walk.client.create("librarian", input={"names": ["a", "b"]})["id"]
    walk.rest()
    assert walk.client.execution(source)["output"] == ["a", "b"]
    first = next(
        event["event_seq"]
        for event in walk.client.events(source)
        if event["type"] == "step.succeeded"
    )
    fork = walk.client.fork(source, first)
    walk.rest()
    assert fork["restoration"]["shelf"]["covered"] is True
    assert walk.client.execution(fork["id"])["output"] == ["a", "b"]
    checkpoints = walk.folder / "store"
    reference = fork["restoration"]["shelf"]["checkpoint_ref"]
    assert [path.name for path in (checkpoints / reference).iterdir()] == ["a"]
