"""What script/demo runs: an order waits for a person, and is shipped while its agent and then its kernel are killed with SIGKILL.

Ends with a count of the effects, and exits 1 unless each happened exactly once. When the viewer refuses the charge, the
agent puts the goods back instead, and nobody is killed.
"""

import asyncio
import collections
import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import rebuno
from rebuno import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
KERNEL = os.environ.get("REBUNO_BIN", str(ROOT / "build" / "rebuno"))
SECRET = "demo-secret"
SHIPPED = ["reserve_stock", "charge_card", "print_label", "book_courier", "send_mail"]
REFUSED = ["reserve_stock", "release_stock"]
VIEWER = sys.stdin.isatty() and sys.stdout.isatty()
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
started = time.monotonic()


def paint(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if COLOUR else text


def say(who: str, text: str, code: str = "0") -> None:
    print(f"{time.monotonic() - started:6.2f}s  {who:<7} {paint(code, text)}", flush=True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Demo:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.effects = folder / "effects.txt"
        self.effects.touch()
        self.kernel_port, self.agent_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.kernel_port}"
        self.kernel: subprocess.Popen | None = None
        self.agent: subprocess.Popen | None = None
        self.tails: list[asyncio.Task] = []
        (folder / "rebuno.yaml").write_text(
            "agents:\n"
            "  - id: shop\n"
            f"    webhook_url: http://127.0.0.1:{self.agent_port}/webhook\n"
            "    secret: ${REBUNO_AGENT_SECRET}\n"
            "    policy_file: policy.yaml\n"
        )
        shutil.copy(HERE / "policy.yaml", folder)
        self.env = dict(
            os.environ,
            REBUNO_URL=self.url,
            REBUNO_AGENT_SECRET=SECRET,
            REBUNO_DISPATCH_LEASE_TIMEOUT="2s",  # so that nobody waits two minutes for the dead agent's lease
            DEMO_EFFECTS=str(self.effects),
        )

    def start_kernel(self) -> None:
        with open(self.folder / "kernel.log", "ab") as log:
            self.kernel = subprocess.Popen(
                [KERNEL, "dev", "--config", "rebuno.yaml", "--listen-addr", f"127.0.0.1:{self.kernel_port}"],
                cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    def start_agent(self) -> None:
        log = open(self.folder / "agent.log", "ab")
        self.agent = subprocess.Popen(
            [sys.executable, str(HERE / "agent.py"), str(self.agent_port)],
            env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        )
        log.close()
        self.tails.append(asyncio.create_task(self.tail(self.agent)))

    async def tail(self, process: subprocess.Popen) -> None:
        """Shows what the agent says of itself."""
        while line := await asyncio.to_thread(process.stdout.readline):
            text = line.decode().rstrip()
            if text.startswith("INFO:"):  # the web server's own lines
                continue
            say("agent", text, "36" if text.startswith("replayed") else "0")

    async def ready(self, name: str, process: subprocess.Popen, port: int) -> None:
        """Returns when the port is listened on."""
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((self.folder / f"{name}.log").read_text() + f"\nthe {name} did not start")
            await asyncio.sleep(0.02)

    async def kernel_ready(self) -> None:
        await self.ready("kernel", self.kernel, self.kernel_port)

    def kill(self, process: subprocess.Popen) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def rebuno(self, *words: str) -> None:
        """Runs a command as the viewer would."""
        say("demo", f"$ rebuno {shlex.join(words)}", "1")
        subprocess.run([KERNEL, *words], env=self.env, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        for process in (self.agent, self.kernel):
            if process is not None and process.poll() is None:
                process.terminate()
        for process in (self.agent, self.kernel):
            if process is not None:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    self.kill(process)


async def read_line() -> str:
    """A line from the terminal; while it is waited for, the demo goes on."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()
    loop.add_reader(sys.stdin, lambda: line.done() or line.set_result(sys.stdin.readline()))
    try:
        return await line
    finally:
        loop.remove_reader(sys.stdin)


async def decide(demo: Demo, approval_id: str) -> None:
    """Shows what is asked for; the viewer decides, or the demo when nobody sits at the terminal."""
    say("demo", "its next step needs a person: the agent has stopped, and nothing runs, waits or is leased meanwhile", "33;1")
    short = approval_id[:18]
    demo.rebuno("approval", "get", short)
    answer = ""
    while VIEWER and answer not in ("g", "grant", "d", "deny"):
        print(paint("33;1", "grant or deny? [g/d] "), end="", flush=True)
        line = await read_line()
        if not line:  # the terminal is gone
            break
        answer = line.strip().lower()
    if answer in ("d", "deny"):
        demo.rebuno("approval", "deny", short, "--by", "viewer", "--reason", "not today")
    elif answer:
        demo.rebuno("approval", "grant", short, "--by", "viewer")
    else:
        say("demo", "nobody sits at this terminal, so the demo grants it by itself", "33;1")
        demo.rebuno("approval", "grant", short, "--by", "demo")


def show(event: rebuno.types.Event) -> None:
    p = event.payload
    detail = p.get("target") or (f"attempt {p['attempt']}" if "attempt" in p else p.get("status", ""))
    code = {"execution": "1", "dispatch": "90"}.get(event.type.split(".")[0], "0")
    say(f"#{event.event_seq}", f"{event.type:<22} {detail}", code)


class Strikes:
    """Kills the agent and the kernel, each once, where it hurts."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.left = {"charge_card": self.kill_agent, "book_courier": self.kill_kernel}

    async def at(self, event: rebuno.types.Event) -> None:
        target = event.payload.get("target")
        moment = {"charge_card": "step.succeeded", "book_courier": "step.executing"}.get(target)
        if event.type == moment and target in self.left:
            await self.left.pop(target)()

    async def kill_agent(self) -> None:
        say("demo", "kill -9 of the agent, between two steps; a new one starts", "31;1")
        self.demo.kill(self.demo.agent)
        self.demo.start_agent()
        say("demo", "its lease (2 s here) has to run out; then the kernel delivers the run again", "90")

    async def kill_kernel(self) -> None:
        say("demo", "kill -9 of the kernel, in the middle of a step; a new one starts", "31;1")
        self.demo.kill(self.demo.kernel)
        self.demo.start_kernel()
        await self.demo.kernel_ready()
        say("demo", "the kernel is back; the agent has not noticed", "31;1")


async def follow(demo: Demo, client: Client, execution_id: str) -> rebuno.types.Execution:
    """Shows the log as it grows, asks the person, and strikes on the way."""
    seq, strikes, deciding = 0, Strikes(demo), None
    while True:
        try:
            events = await client.events(execution_id, after_seq=seq)
            if not events and (run := await client.get(execution_id)).status in ("completed", "failed", "cancelled"):
                return run
        except rebuno.NetworkError:
            events = []
        for event in events:
            seq = event.event_seq
            show(event)
            if event.type == "approval.expired":
                deciding.cancel()
                say("demo", "nobody decided in time, which is a refusal", "33;1")
            await strikes.at(event)
        if (asked := [e for e in events if e.type == "approval.requested"]) and deciding is None:
            deciding = asyncio.create_task(decide(demo, asked[0].payload["approval_id"]))
        if deciding is not None and deciding.done() and not deciding.cancelled():
            deciding.result()  # what failed in it
        await asyncio.sleep(0.05)


def count(demo: Demo, shipped: bool) -> bool:
    """The effects, from the file they went to: did each happen once, and no other?"""
    wanted = SHIPPED if shipped else REFUSED
    seen = collections.Counter(line.split()[0] for line in demo.effects.read_text().splitlines())
    print("\neffects, counted in the file they were written to:")
    for name in [*wanted, *sorted(set(seen) - set(wanted))]:
        ok = seen[name] == 1 and name in wanted
        print(f"  {name:<15} {seen[name]}  {paint('32', 'once') if ok else paint('31', 'WRONG')}")
    if not shipped:
        print(f"  {'charge_card':<15} 0  refused")
    return seen == collections.Counter(wanted)


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="rebuno-demo-") as folder:
        demo = Demo(pathlib.Path(folder))
        try:
            demo.start_kernel()
            await demo.kernel_ready()
            demo.start_agent()
            await demo.ready("agent", demo.agent, demo.agent_port)
            say("demo", f"a kernel at {demo.url} and an agent that ships orders", "1")
            async with Client(demo.url) as client:
                created = await client.create("shop", {"order": "teapot", "customer": "ada@example.com"})
                say("demo", f"execution {created.id}", "1")
                async with asyncio.timeout(200 if VIEWER else 60):
                    run = await follow(demo, client, created.id)
            say("demo", f"{run.status}: {run.output or run.failure_reason}", "1")
            ok = count(demo, "refused" not in (run.output or {})) and run.status == "completed"
        finally:
            demo.stop()
    print(paint("32;1", "every effect happened once; now yours: README.md, \"Five minutes\"") if ok else paint("31;1", "something happened twice or not at all"))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
