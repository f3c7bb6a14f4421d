"""docs/testing.md: its agent runs on its scripted model, and its tests pass against the export."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import rebuno.testing
from rebuno.testing import CHECKS

from harness.documents import Block, code, read
from harness.guide import Followed, Walk, transcripts
from harness.transcript import commands
from harness.waiting import eventually

GUIDE = read("docs/testing.md")
S = 60.0


def block(language: str, containing: str) -> Block:
    (found,) = [b for b in GUIDE.blocks if b.language == language and containing in b.text]
    return found


def python(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Without a kernel: nothing of one is in the environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
    return subprocess.run(
        [sys.executable, *words],
        check=False, capture_output=True, text=True, cwd=folder, timeout=S,
        env={**environment, "MODEL_URL": "http://localhost:8090/v1", "TMPDIR": str(folder)},
    )  # fmt: skip


class Model:
    """The scripted model, on a free port."""

    def __init__(self, folder: Path) -> None:
        command = block("bash", "rebuno.testing.model").text
        _, *words, port = shlex.split(command)
        assert words[-1] == "--port" and port == "8090"
        (folder / "script.json").write_text(block("json", '"turns"').text)
        self.log = folder / "model.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words, "0"], cwd=folder, stdout=log, stderr=log
            )

    def url(self) -> str:
        def said() -> str:
            text = self.log.read_text()
            assert self.process.poll() is None, text
            return text.partition("scripted model at ")[2].strip()

        return eventually(said, 20.0, what="the model serves")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(S)


def test_it_can_be_followed(
    followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tmp_path)
    try:
        monkeypatch.setenv("MODEL_URL", model.url())
        walk = followed(GUIDE, "agent.py")
        shown = [b for b in transcripts(GUIDE) if not b.text.startswith("$ python")]
        walk.follow(*shown)
    finally:
        model.stop()
    for agent in walk.agents:
        agent.stop()
    replays(walk)


def replays(walk: Walk) -> None:
    """What needs neither the agent's process nor the model."""
    (test,) = (line for b in GUIDE.blocks for line in b.text.splitlines() if line[:7] == "pytest ")
    done = python(walk.folder, "-m", *test.split(), "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr

    _, *words = shlex.split(block("bash", "rebuno.testing.replay").text)
    done = python(walk.folder, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "5 of 5 steps of run.json replayed\nthe handler completed\n"

    (shown,) = [b for b in transcripts(GUIDE) if b.text.startswith("$ python")]
    ((command, expected),) = commands(shown)
    done = python(walk.folder, *shlex.split(command)[1:])
    assert done.returncode == 1
    walk.session.check(expected, done.stderr.replace(f"{walk.folder}/", ""))


def test_its_driver_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "test_notes.py").write_text(block("python", "# test_notes.py").text)
    done = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_notes.py")
    assert f"{len(CHECKS)} passed" in done.stdout, done.stdout + done.stderr


def test_every_kind_of_divergence_is_named() -> None:
    text = Path(str(rebuno.testing.__file__)).with_name("_divergence.py").read_text()
    rows = GUIDE.rows("What a replay complains of", "`kind`")
    kinds = [code(row.cells[0]) for row in rows]
    assert sorted(kinds) == sorted(
        {w.split('"')[1] for w in text.split("kind=")[1:] if w[0] == '"'}
    )


def test_the_format_is_what_is_written() -> None:
    source = (Path(__file__).parents[2] / "src/cli/exec_export.c").read_text()
    rows = GUIDE.rows("The format of an export", "field")
    for row in rows:
        name = code(row.cells[0])
        assert f'"{name}"' in source or f'\\"{name}\\"' in source, name
