# SPDX-License-Identifier: Apache-2.0
"""What the demo plays on: a repository, a kernel, an agent, and the scripted model. All of it goes at the end."""

import asyncio
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import sys
from types import TracebackType
from typing import Self

import httpx2
import model as script
from rebuno import Client
from rebuno.testing import ScriptedModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
KERNEL = os.environ.get("REBUNO_BIN", str(ROOT / "build" / "rebuno"))
LEASE_S = 4  # so that nobody waits two minutes for the dead agent's lease
START_S = 20.0
STOP_S = 5.0
MANIFEST = f"""\
agents:
  - id: coder
    webhook_url: http://127.0.0.1:%s/webhook
    secret: demo-secret
    policy_file: {json.dumps(str(HERE / "policy.yaml"))}
"""
KERNEL_URL = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
AGENT_PORT = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
NOT_ISOLATED = re.compile(r"commands in local sandboxes are NOT isolated.*")
THINKING_S = 0.7  # the scripted model's, for an answer
PR_SET_CHILD_SUBREAPER = 36

Process = asyncio.subprocess.Process


class Stage:
    """Starts everything in a folder, on ports that are free; ends everything on the way out."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.repository = folder / "basket.git"
        self.model: ScriptedModel | None = None
        self.kernel: Process | None = None
        self.agent: Process | None = None
        self.url = ""
        for name in ("no_proxy", "NO_PROXY"):  # all that it talks to is on this machine
            os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("REBUNO_")}
        self.env |= {
            "REBUNO_DISPATCH_LEASE_TIMEOUT": f"{LEASE_S}s",
            "REPOSITORY": str(self.repository),
            "XDG_DATA_HOME": str(folder),  # where local sandboxes are kept
        }
        self._listen = "127.0.0.1:0"
        self._warned = False

    async def __aenter__(self) -> Self:
        # What a killed agent leaves behind becomes ours, so that the end can wait for it.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            await self._choose_model()
            await self._make_repository()
            await self.start_kernel()
            await self.start_agent()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        for process in (self.agent, self.kernel):
            await _end(process)
        if self.model is not None:
            await self.model.__aexit__()
        await _end_orphans()

    async def _choose_model(self) -> None:
        has_account = self.env.get("OPENAI_API_KEY") or self.env.get("OPENAI_BASE_URL")
        if has_account and self.env.get("LLM_MODEL"):
            return
        self.model = await ScriptedModel([_think] * 50, by="conversation").__aenter__()
        self.env.pop("OPENAI_API_KEY", None)
        self.env |= {"OPENAI_BASE_URL": self.model.url, "LLM_MODEL": "scripted"}

    async def _make_repository(self) -> None:
        """A bare repository, as a server would have it, with the project as its one commit."""
        seed = self.folder / "seed"
        await asyncio.to_thread(shutil.copytree, HERE / "project", seed, ignore=shutil.ignore_patterns("__pycache__"))
        who = ("-c", "user.name=demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false")
        for words in (
            ("init", "-q", "-b", "main", str(seed)),
            ("-C", str(seed), "add", "-A"),
            ("-C", str(seed), *who, "commit", "-q", "-m", "What a basket costs"),
            ("clone", "-q", "--bare", str(seed), str(self.repository)),
        ):
            await self._git(*words)

    async def _git(self, *words: str) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                "git", *words, env=self.env, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
        except FileNotFoundError:
            raise SystemExit("the demo needs git: apt-get install git") from None
        _, error = await process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"git {' '.join(words)}: {error.decode(errors='replace')}")

    async def _start(self, name: str, *command: str, env: dict[str, str]) -> Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=self.folder,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them in order
            )

    async def _said(self, name: str, process: Process, wanted: re.Pattern[str], start: int) -> str | None:
        """What the process says of its port. None: it ended instead."""
        log = self.folder / f"{name}.log"
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if said := wanted.search(log.read_text(errors="replace")[start:]):
                    return said[1]
                await asyncio.sleep(0.02)
        return None

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    async def start_kernel(self) -> None:
        """The first time on any port, then on that one: the agent knows no other."""
        command = (KERNEL, "dev", "--db", str(self.folder / "rebuno.db"), "--listen-addr", self._listen)
        async with asyncio.timeout(START_S):
            while True:
                start = len(self.log("kernel"))
                self.kernel = await self._start("kernel", *command, env=self.env)
                if url := await self._said("kernel", self.kernel, KERNEL_URL, start):
                    break
                if not self.url:
                    raise SystemExit(f"{self.log('kernel')}\nthe kernel did not start")
                await asyncio.sleep(0.1)  # somebody has its port for a moment
        self.url, self._listen = url, url.removeprefix("http://")
        self.env["REBUNO_URL"] = url

    async def start_agent(self) -> None:
        """On any port, which it is registered with."""
        start = len(self.log("agent"))
        env = self.env | {"PORT": "0", "REBUNO_AGENT_SECRET": "demo-secret"}
        self.agent = await self._start("agent", sys.executable, str(HERE / "agent.py"), env=env)
        port = await self._said("agent", self.agent, AGENT_PORT, start)
        if port is None:
            raise SystemExit(f"{self.log('agent')}\nthe agent did not start")
        (self.folder / "rebuno.yaml").write_text(MANIFEST % port)
        code, said = await self.ask("agent", "add", str(self.folder / "rebuno.yaml"))
        if code != 0:
            raise SystemExit(f"{said}\nthe agent was not registered")

    async def kill(self, process: Process) -> None:
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def show(self, *words: str) -> int:
        """Runs `rebuno` where the policies are; the viewer sees its output."""
        sys.stdout.flush()
        process = await asyncio.create_subprocess_exec(
            *(KERNEL, *words), cwd=HERE, env=self.env, stdin=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async def ask(self, *words: str) -> tuple[int, str]:
        """Runs `rebuno` where the policies are; returns its exit code and output."""
        return await self.output(KERNEL, *words, cwd=HERE)

    async def output(self, *command: str, cwd: pathlib.Path | None = None) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd or self.folder,
            env=self.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return await process.wait(), said.decode(errors="replace")

    def client(self) -> Client:
        return Client(self.url)

    def pull_requests(self) -> list[pathlib.Path]:
        return sorted(self.repository.glob("pulls/*.json"))

    def news_of_isolation(self) -> str:
        """What the agent warns of where bubblewrap does not work; once."""
        said = None if self._warned else NOT_ISOLATED.search(self.log("agent"))
        self._warned = self._warned or said is not None
        return said[0] if said else ""

    async def replays(self) -> int:
        """The submissions that this kernel process has answered from the record, by its own count."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            metrics = (await client.get(f"{self.url}/metrics")).text
        counted = re.search(r'^rebuno_replay_total\{hit="true"\} (\d+)', metrics, re.M)
        return int(counted[1]) if counted else 0


async def _think(request: object) -> dict[str, object]:
    await asyncio.sleep(THINKING_S)
    return script.turn(request)


async def _end(process: Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _end_orphans() -> None:
    """Commands of a killed agent end by themselves; the folder is removed after they have."""
    deadline = asyncio.get_running_loop().time() + STOP_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if asyncio.get_running_loop().time() > deadline:
                _kill_children()
            await asyncio.sleep(0.02)


def _kill_children() -> None:
    for task in pathlib.Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
