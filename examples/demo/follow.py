# SPDX-License-Identifier: Apache-2.0
"""Shows a run as it happens, asks the person, and kills what is to be killed."""

import asyncio
import json
import sys

import facts
import rebuno
import show
from facts import Log, counted
from rebuno import Client
from rebuno.types import Event, Execution, Step
from stage import LEASE_S, Stage

VIEWER = sys.stdin.isatty() and show.IS_TERMINAL
INTO_IT_S = 0.4  # so that the command is well on its way
ENDED = ("completed", "failed", "cancelled")
ANSWERS = ("g", "grant", "d", "deny")
PATIENCE_S = {True: 900.0, False: 150.0}  # for one run; a viewer reads, and may have brought a slow model


async def whole_log(client: Client, execution_id: str) -> list[Event]:
    events: list[Event] = []
    while more := await client.events(execution_id, after_seq=len(events), limit=500):
        events += more
    return events


async def read_line() -> str:
    """A line from the terminal; while it is waited for, the demo goes on."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()
    loop.add_reader(sys.stdin, lambda: line.done() or line.set_result(sys.stdin.readline()))
    try:
        return await line
    finally:
        loop.remove_reader(sys.stdin)


def said(step: Step) -> str:
    """What a step was about and what came of it, in a line."""
    args, result = step.args or {}, step.result
    if step.kind == "llm_call":
        try:
            message = json.loads(result["body"])["choices"][0]["message"]
        except (KeyError, IndexError, TypeError, ValueError):
            return f"no answer: {step.error or result}"
        calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls") or [])
        return f'"{message.get("content") or ""}"' + (f" -> {calls}" if calls else "")
    about = args.get("command") or args.get("path") or args.get("title") or ""
    if step.status == "denied":
        return f"{about} -> NOT ALLOWED: {(step.error or {}).get('reason', '')}"
    if step.error is not None:
        return f"{about} -> {(step.error or {}).get('message', step.error)}"
    lines = str(result).strip().splitlines() or [""]
    if step.target == "shell":
        return f"{about} -> {lines[0]}: {lines[-1]}"
    return f"{about} -> {lines[0] if len(lines) == 1 else f'{len(lines)} lines'}"


class Follower:
    """Shows a run as it happens, and what of it came from the record."""

    def __init__(self, stage: Stage, client: Client, execution_id: str) -> None:
        self.stage = stage
        self.client = client
        self.id = execution_id
        self.events: list[Event] = []
        self.deciding: asyncio.Task[None] | None = None
        self._delivery: Event | None = None  # of which nothing new has come yet

    @property
    def has_completed(self) -> bool:
        return self.events[-1].type == "execution.completed"

    async def follow(self) -> Execution:
        try:
            async with asyncio.timeout(PATIENCE_S[VIEWER]):
                return await self._follow()
        except TimeoutError:
            raise SystemExit(f"{self.stage.log('agent')}\nthe run did not end") from None
        finally:
            if self.deciding is not None:
                self.deciding.cancel()

    async def _follow(self) -> Execution:
        while True:
            try:
                run = await self.client.get(self.id)  # before its log: one that has ended has all of it
                events = await self.client.events(self.id, after_seq=len(self.events))
                for event in events:
                    self.events.append(event)
                    await self.saw(event)
                if not events and run.status in ENDED:
                    return run
            except rebuno.NetworkError:  # the kernel is away
                pass
            if self.deciding is not None and self.deciding.done() and not self.deciding.cancelled():
                self.deciding.result()  # what failed in it
            await asyncio.sleep(0.05)

    async def saw(self, event: Event) -> None:
        area = event.type.partition(".")[0]
        if self._delivery is not None and area in ("step", "execution"):
            self._tell_of_replay()
        if event.type in facts.SETTLED and self._has_started:
            await self._settled(event)
        elif event.type == "dispatch.acked":
            self._delivery = event
        elif event.type == "resource.bound":
            show.line("sandbox", f"made at {event.payload['binding']['path']}", show.DIM)
        elif event.type == "approval.requested":
            self.deciding = asyncio.create_task(decide(self.stage, event.payload["approval_id"]))
        elif event.type == "approval.expired" and self.deciding is not None:
            self.deciding.cancel()
            show.line("demo", "nobody decided in time, which is a refusal", show.YELLOW)

    @property
    def _has_started(self) -> bool:
        """Until then, a fork's log holds what was copied."""
        return any(one.type == "execution.started" for one in self.events)

    async def _settled(self, event: Event) -> None:
        step = await self.client.get_step(self.id, event.payload["step_id"])
        name = "model" if step.kind == "llm_call" else step.target
        if event.type == "step.succeeded":
            show.line(name, said(step), show.CYAN if name == "model" else show.PLAIN)
        else:
            show.note(name, said(step), show.RED)
        if name == "shell" and (warning := self.stage.news_of_isolation()):
            show.note("agent", warning, show.YELLOW)

    def _tell_of_replay(self) -> None:
        delivery, self._delivery = self._delivery, None
        log = Log(self.events)
        now = next(one for one in log.deliveries if one.seq == delivery.event_seq)
        if now.replayed:
            what = f"{len(now.replayed)} steps from the record in {now.replay_s:.2f} s: {counted(now.replayed)}"
            show.note("replay", f"the agent ran from the top; {what}", show.GREEN)


class Striker(Follower):
    """Kills the agent while a command runs after the first edit, and then the kernel while the model thinks."""

    def __init__(self, stage: Stage, client: Client, execution_id: str) -> None:
        super().__init__(stage, client, execution_id)
        self.agent_killed_at: int | None = None  # the event that it was seen by
        self.kernel_killed_at: int | None = None
        self.kernel_away_s = 0.0
        self.before_kernel_kill: list[Event] = []
        self.replays_before = 0  # that the killed kernel answered

    async def saw(self, event: Event) -> None:
        await super().saw(event)
        if event.type != "step.executing":
            return
        log = Log(self.events)
        edited = any(e.name == "write_file" and e.outcome is not None for e in log.effects.values())
        target = log.effects[event.payload["step_id"]].name
        if self.agent_killed_at is None and target == "shell" and edited:
            self.agent_killed_at = event.event_seq
            await self._kill_agent()
        elif self.agent_killed_at is not None and self.kernel_killed_at is None and target == "model":
            self.kernel_killed_at = event.event_seq
            await self._kill_kernel()

    async def _kill_agent(self) -> None:
        await asyncio.sleep(INTO_IT_S)
        await self.stage.kill(self.stage.agent)
        show.line("demo", f"kill -9 of the agent, {INTO_IT_S} s into that command", show.YELLOW)
        lease = f"When the dead one's lease has run out ({LEASE_S} s here), the kernel hands it the run."
        show.note("demo", f"A new agent starts, and knows nothing. {lease}", show.DIM)
        await self.stage.start_agent()

    async def _kill_kernel(self) -> None:
        clock = asyncio.get_running_loop().time
        self.replays_before = await self.stage.replays()
        self.before_kernel_kill = await whole_log(self.client, self.id)
        start = clock()
        await self.stage.kill(self.stage.kernel)
        show.line("demo", "kill -9 of the kernel, after the model was asked", show.YELLOW)
        await self.stage.start_kernel()
        self.kernel_away_s = clock() - start
        show.line("demo", f"it is back after {self.kernel_away_s:.2f} s; the agent goes on", show.DIM)


async def decide(stage: Stage, approval_id: str) -> None:
    """Shows what is asked for; the viewer decides, or the demo when nobody sits at the terminal."""
    why = "The policy has a person look at this. Until then nothing runs, and nothing is leased."
    show.note("demo", why, show.YELLOW)
    short = approval_id[:18]
    show.command("rebuno", "approval", "get", short)
    await stage.show("approval", "get", short)
    answer = ""
    while VIEWER and answer not in ANSWERS:
        print(show.paint("   grant or deny? [g/d] ", show.YELLOW), end="", flush=True)
        line = await read_line()
        if not line:  # the terminal is gone
            break
        answer = line.strip().lower()
        if answer not in ANSWERS:
            show.tell("g or d: g grants it, d denies it", show.YELLOW)
    if answer in ("d", "deny"):
        words = ("approval", "deny", short, "--by", "viewer", "--reason", "not like this")
    elif answer:
        words = ("approval", "grant", short, "--by", "viewer")
    else:
        show.note("demo", "Nobody sits at this terminal, so the demo grants it.", show.YELLOW)
        words = ("approval", "grant", short, "--by", "demo")
    show.command("rebuno", *words)
    await stage.show(*words)
