"""A kernel, and an agent written on the published SDK, as processes."""

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

import rebuno
from rebuno import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = os.environ.get("REBUNO_BIN", str(ROOT / "build" / "rebuno"))
HERE = pathlib.Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("the condition did not come true in time")


class World:
    def __init__(
        self, folder: pathlib.Path, agent: str = "agent.py", policy: str = "", helper: str = ""
    ) -> None:
        """`helper`: a program that serves the agent `helper` beside the agent `pub`."""
        self.program = str(HERE / agent)
        self.folder, self.port, self.agent_port = folder, free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.effects = folder / "effects"
        self.effects.touch()
        self.go = folder / "effects.go"  # lets what waits for it in an agent go on
        manifest = f"agents:\n  - id: pub\n    webhook_url: http://127.0.0.1:{self.agent_port}/webhook\n    secret: s3cret\n"
        if policy:
            (folder / "policy.yaml").write_text(policy)
            manifest += "    policy_file: policy.yaml\n"
        helper_port = free_port()
        if helper:
            manifest += f"  - id: helper\n    webhook_url: http://127.0.0.1:{helper_port}/webhook\n    secret: s3cret\n"
        (folder / "rebuno.yaml").write_text(manifest)
        self.env = dict(
            os.environ,
            REBUNO_URL=self.url,
            REBUNO_AGENT_SECRET="s3cret",
            EFFECTS=str(self.effects),
            REBUNO_DISPATCH_LEASE_TIMEOUT="2s",
        )
        self.processes: list[subprocess.Popen] = []
        self.start_kernel()
        self.start_agent()
        if helper:
            self.spawn(sys.executable, str(HERE / helper), str(helper_port))
            until(lambda: answers(helper_port))

    def spawn(self, *argv: str) -> subprocess.Popen:
        log = open(self.folder / "log", "ab")
        process = subprocess.Popen(
            argv, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()
        self.processes.append(process)
        return process

    def start_kernel(self) -> None:
        self.kernel = self.spawn(
            KERNEL, "dev", "--config", "rebuno.yaml", "--listen-addr", f"127.0.0.1:{self.port}"
        )
        until(self.ready)

    def start_agent(self) -> None:
        self.agent = self.spawn(sys.executable, self.program, str(self.agent_port))
        until(lambda: answers(self.agent_port))

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/v0/ready") as answer:
                return answer.status == 200
        except OSError:
            return False

    def lines(self) -> list[str]:
        return self.effects.read_text().splitlines()

    def close(self) -> None:
        for p in self.processes:
            if p.poll() is None:
                p.terminate()
        for p in self.processes:
            try:
                p.wait(15)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


async def ended(client: Client, execution_id: str) -> rebuno.types.Execution:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        run = await client.get(execution_id)
        if run.status in ("completed", "failed", "cancelled"):
            return run
        await asyncio.sleep(0.05)
    raise AssertionError("the execution did not end in time")
