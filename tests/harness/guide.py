"""A guide that is followed: its files are written, its agents served, its commands run in order.

A block of `python` or `yaml` is a file; its first line, a comment, names it. `py` is a part of one.
A block whose lines begin with `$ ` is commands with their output (harness.transcript).
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from harness.cli import Cli
from harness.documents import Block, Document
from harness.kernel import TOKEN, Kernel
from harness.transcript import Session, commands
from harness.waiting import eventually

NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")
AGENT = re.compile(r'Agent\("([\w-]+)"\)\.run\(\w+, port=(\d+)\)')
URL = re.compile(r"http://127\.0\.0\.1:\d+")
SECRET = "secret-of-a-guide"
Json = dict[str, Any]
TERMINAL = ("completed", "failed", "cancelled")


def files(document: Document) -> dict[str, str]:
    """The named blocks, by name."""
    found: dict[str, str] = {}
    for block in document.blocks:
        named = NAME.match(block.text)
        if block.language not in ("python", "yaml") or named is None:
            known = block.language in ("", "bash", "json", "py")
            assert known, f"line {block.line}: a file without name"
            continue
        assert named[1] not in found, f"line {block.line}: {named[1]} is there already"
        found[named[1]] = block.text
    return found


def transcripts(document: Document) -> list[Block]:
    return [b for b in document.blocks if b.language == "" and b.text.startswith("$ ")]


class AgentProcess:
    """A guide's agent, run as its reader would run it, on a free port."""

    def __init__(self, kernel: Kernel, folder: Path, program: str) -> None:
        text = (folder / program).read_text()
        found = AGENT.search(text)
        assert found is not None, f"{program} serves no agent"
        self.agent_id = found[1]
        moved = text.replace(f"port={found[2]}", 'host="127.0.0.1", port=0')
        (folder / program).write_text(moved)
        self.log = folder / f"{program}.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, program],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **inherited,
                    "REBUNO_URL": kernel.url,
                    "REBUNO_AGENT_SECRET": SECRET,
                    "REBUNO_API_KEY": TOKEN,
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
            )
        try:
            body = {"id": self.agent_id, "webhook_url": f"{self._url()}/webhook", "secret": SECRET}
            kernel.client().post("/v0/agents", body).expect(201)
        except BaseException:
            self.stop()
            raise

    def _url(self) -> str:
        def url() -> str:
            text = self.log.read_text(errors="replace")
            assert self.process.poll() is None, text
            found = URL.search(text)
            return found[0] if found else ""

        return eventually(url, 20.0, what="the agent serves")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Walk:
    """One reader with a kernel. After each command the runs come to rest: they end, or wait."""

    def __init__(self, document: Document, kernel: Kernel, folder: Path) -> None:
        self.document, self.kernel, self.folder = document, kernel, folder
        self.client = kernel.client()
        self.session = Session(Cli(kernel, folder))
        self.agents: list[AgentProcess] = []
        for name, text in files(document).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def serve(self, *programs: str) -> None:
        for program in programs:
            self.agents.append(AgentProcess(self.kernel, self.folder, program))

    def follow(self, *blocks: Block) -> None:
        for block in blocks or transcripts(self.document):
            for command, expected in commands(block):
                try:
                    self.session.run(command, expected)
                except AssertionError as error:
                    raise AssertionError(f"line {block.line}: {error}{self._logs()}") from None
                self.rest()

    def rest(self) -> None:
        def at_rest() -> bool:
            found = {one["id"]: one for one in self.executions()}
            busy = [one for one in found.values() if not _rests(one, found)]
            assert not busy, f"{busy}{self._logs()}"
            return True

        eventually(at_rest, 30.0)

    def executions(self) -> list[Json]:
        answer = self.client.get("/v0/executions?limit=200").expect(200)
        found: list[Json] = answer.json["executions"]
        return found

    def _logs(self) -> str:
        return "".join(f"\n{a.agent_id}: {a.log.read_text()[-3000:]}" for a in self.agents)

    def close(self) -> None:
        for agent in self.agents:
            agent.stop()


def _rests(one: Json, all_: dict[str, Json]) -> bool:
    """It has ended, or waits for a person, for a subagent that rests, or for such a session."""
    if one["status"] in TERMINAL:
        return True
    if one["status"] == "pending":
        return any(
            o["status"] == "blocked" and o.get("session") == one["session"] for o in all_.values()
        )
    return one["status"] == "blocked" and any(
        wait["kind"] == "approval"
        or (wait["kind"] == "subagent" and all_[wait["id"]]["status"] not in TERMINAL)
        for wait in one["waiting_on"]
    )


class Followed(Protocol):
    """Makes a reader of a guide, with these of its agents served."""

    def __call__(self, document: Document, *programs: str) -> Walk: ...
