"""`python -m rebuno.testing.replay`: what it says, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded import Run
from scripted_kernel import DEADLINE


class TestCommand:
    def go(self, folder: Path, run: Run, handler: str, *words: str) -> tuple[int, str]:
        (folder / "run.json").write_text(json.dumps(run.export()))
        (folder / "agent.py").write_text(
            "from rebuno import Agent, tool\n"
            "agent = Agent('coder')\n"
            "look = tool('look')(lambda n: n)\n"
            "async def process():\n    return [await look(1)]\n"
            "async def other():\n    return [await look(2)]\n"
            "async def fails():\n    await look(1)\n    raise ValueError('no\\x1b[2J luck')\n"
        )
        command = [sys.executable, "-m", "rebuno.testing.replay", "run.json", handler, *words]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=folder, timeout=DEADLINE
        )
        return done.returncode, done.stdout + done.stderr

    def run(self, **fields: Any) -> Run:
        run = Run(**fields)
        run.step("look", {"n": 1}, result=1)
        return run

    def test_as_recorded(self, tmp_path: Path) -> None:
        code, said = self.go(tmp_path, self.run(output=[1]), "agent:process")
        assert (code, said) == (0, "1 of 1 steps of run.json replayed\nthe handler completed\n")

    def test_another_output(self, tmp_path: Path) -> None:
        code, said = self.go(tmp_path, self.run(output=[2]), "agent:process")
        assert code == 1
        assert said.endswith("than the run:\n- output[0]  2\n+ output[0]  1\n")

    def test_a_divergence(self, tmp_path: Path) -> None:
        code, said = self.go(tmp_path, self.run(output=[1]), "agent:other")
        assert code == 1
        assert "step 1 came with other arguments" in said
        assert "agent.py:7" in said

    def test_an_open_run(self, tmp_path: Path) -> None:
        run = Run(status="running")
        code, said = self.go(tmp_path, run, "agent:process")
        assert code == 0
        assert said.endswith("the recording ends here, and the handler goes on\n")

    def failed(self, reason: str) -> Run:
        return self.run(status="failed", failure_reason=reason)

    def test_a_failure_as_recorded(self, tmp_path: Path) -> None:
        reason = "agent_error: ValueError: no\x1b[2J luck"
        code, said = self.go(tmp_path, self.failed(reason), "agent:fails")
        assert (code, said) == (
            0,
            "1 of 1 steps of run.json replayed\n"
            "the handler failed as the run had: agent_error: ValueError: no\\x1b[2J luck\n",
        )

    @pytest.mark.parametrize(
        ("run", "handler", "came", "had"),
        [
            ("tool_error: x", "fails", "failed: agent_error: Val", "had failed: tool_error: x"),
            ("tool_error: x", "process", "completed\n", "had failed: tool_error: x"),
            ("", "fails", "failed: agent_error: ValueError: no\\x1b[2J", "had completed\n"),
        ],
    )
    def test_another_failure(
        self, tmp_path: Path, run: str, handler: str, came: str, had: str
    ) -> None:
        """What was recorded, and what came; and where, without an escape that is the terminal's."""
        recorded = self.failed(run) if run else self.run(output=[1])
        code, said = self.go(tmp_path, recorded, f"agent:{handler}")
        assert code == 1
        assert f"the handler {came}" in said
        assert f"the run {had}" in said
        assert (f"(in fails, {tmp_path}/agent.py:10)" in said) is (handler == "fails")
        assert "\x1b" not in said

    @pytest.mark.parametrize(
        ("handler", "says"),
        [
            ("agent:nothing", "agent has no function 'nothing': name it as MODULE:FUNCTION"),
            ("nothing:process", "there is no module nothing in "),
            ("agent", "'agent': name the handler as MODULE:FUNCTION, such as agent:process"),
            ("agent.py:other", "name the handler as MODULE:FUNCTION, such as agent:other"),
            ("broken:process", "broken cannot be imported: ModuleNotFoundError: No module named"),
            ("unset:process", "unset cannot be imported: KeyError: 'NO_SUCH', at <module>, {}/uns"),
        ],
    )
    def test_no_such_handler(self, tmp_path: Path, handler: str, says: str) -> None:
        (tmp_path / "broken.py").write_text("import no_such_package\n")
        (tmp_path / "unset.py").write_text("import os\nNAME = os.environ['NO_SUCH']\n")
        says = says.format(tmp_path)
        code, said = self.go(tmp_path, self.run(), handler)
        assert code == 2
        assert f"error: {says}" in said or f"error: {handler!r}: {says}" in said
        assert "Traceback" not in said
