"""A port that cannot be had is one sentence: which address, who has it, what to do."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rebuno import Agent, _ports
from rebuno._ports import why_not

DEADLINE = 60.0
AGENT = """
import sys
from rebuno import Agent
Agent("coder", secret="s", base_url="http://127.0.0.1:1").run(
    lambda given: 1, host="127.0.0.1", port=int(sys.argv[1])
)
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_one_that_can_be_had(host: str) -> None:
    assert why_not(host, 0) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_busy_one_names_the_process(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        name = Path("/proc/self/comm").read_text().strip()
        assert why_not(host, port) == (
            f"cannot listen on {host}:{port}: process {os.getpid()} ({name}) listens there; end "
            "that, or take another port"
        )


def test_a_process_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ports, "_rows", lambda table: [])
    with socket.create_server(("127.0.0.1", 0)) as busy:
        said = why_not("127.0.0.1", busy.getsockname()[1])
    assert said.endswith(": another process listens there; end that, or take another port")


def test_other_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "from 0 to 65535" in why_not("127.0.0.1", 70000)
    # A network that is kept for documents.
    assert why_not("192.0.2.1", 5000).endswith(": this machine does not have that address")

    def unknown(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert why_not("nowhere", 1) == "cannot listen on nowhere:1: there is no such host"


def test_an_agent_says_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        for port in (busy.getsockname()[1], 70000):
            ended = subprocess.run(
                [sys.executable, "-c", AGENT, str(port)],
                check=False, capture_output=True, text=True, timeout=DEADLINE,
            )  # fmt: skip
            assert ended.returncode == 1
            last = ended.stderr.splitlines()[-1]
            assert last.startswith(f"agent coder: cannot listen on 127.0.0.1:{port}: ")
            assert (f"process {os.getpid()} " in last) is (port != 70000)
            assert "Traceback" not in ended.stderr


def test_a_program_that_ends_itself_is_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor may listen there already."""

    def stopped(*args: Any, **options: Any) -> None:
        sys.exit(0)

    monkeypatch.setattr("uvicorn.run", stopped)
    agent = Agent("coder", secret="s", base_url="http://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            agent.run(lambda given: 1, host="127.0.0.1", port=port)
    assert ended.value.code == 0
