"""script/demo's programme: nobody at the terminal, and a viewer who grants or refuses."""

import os
import pty
import re
import select
import subprocess
import sys

import pytest

from harness.kernel import BINARY, REPOSITORY
from harness.waiting import Deadline

DEMO_S = 60.0
COMMAND = [sys.executable, str(REPOSITORY / "examples" / "demo" / "run.py")]
SHIPPED = ["reserve_stock", "charge_card", "print_label", "book_courier", "send_mail"]


def environment() -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
    return {**own, "REBUNO_BIN": str(BINARY), "NO_COLOR": "1", "TERM": "xterm"}


def effects(text: str) -> list[tuple[str, str, str]]:
    """(effect, how often, verdict) of the count at the end."""
    return re.findall(r"^  (\w+) +(\d+)  (\w+)\s*$", text.split("effects, counted")[1], re.M)


def watched(answers: list[str]) -> tuple[int, str]:
    """Runs the demo on a terminal and answers its question, one line each time that it asks."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        COMMAND, env=environment(), stdin=slave, stdout=slave, stderr=slave, close_fds=True
    )
    os.close(slave)
    shown, asked, deadline = b"", 0, Deadline(DEMO_S)
    try:
        while not deadline.passed:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                shown += os.read(master, 65536)
            except OSError:  # the other side is closed: it has ended
                return process.wait(DEMO_S), shown.decode()
            if shown.count(b"grant or deny? [g/d]") > asked:
                os.write(master, answers[asked].encode() + b"\n")
                asked += 1
        raise AssertionError(f"still running after {DEMO_S} s:\n{shown.decode()}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


def test_nobody_is_there() -> None:
    done = subprocess.run(
        COMMAND,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEMO_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the demo grants it by itself" in done.stdout and "[g/d]" not in done.stdout
    assert effects(done.stdout) == [(name, "1", "once") for name in SHIPPED]


@pytest.mark.parametrize("answer", ["g", "deny"])
def test_a_viewer_decides(answer: str) -> None:
    code, shown = watched(["", answer])
    assert code == 0, shown
    assert "asks for        tool_call charge_card" in shown
    if answer == "g":
        assert effects(shown) == [(name, "1", "once") for name in SHIPPED]
        assert "kill -9 of the kernel" in shown
    else:
        assert "charge_card not allowed. reason: not today" in shown
        assert effects(shown) == [
            ("reserve_stock", "1", "once"),
            ("release_stock", "1", "once"),
            ("charge_card", "0", "refused"),
        ]
