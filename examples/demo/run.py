# SPDX-License-Identifier: Apache-2.0
"""A coding agent is killed, waits for a person, finishes, and is forked from the middle under a stricter policy.

Ends with a summary that is read from the logs, and exits 1 if anything in it is not as promised.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile

import facts
import show
import summary
from facts import Log
from follow import Follower, Striker, whole_log
from rebuno import Client
from rebuno.types import Event, Execution
from stage import KERNEL, Stage

TASK = "One of the tests fails. Make the tests pass."


async def work(stage: Stage, client: Client) -> Striker:
    """Act one: the agent does its job, whatever happens to it."""
    show.head("1. An agent fixes a failing test, and is killed on the way")
    model = "a script on this machine, so no account is needed" if stage.model else stage.env["LLM_MODEL"]
    show.tell(
        "A small repository has a test that fails. The agent (examples/demo/agent.py) works on it in a sandbox of its "
        f"own; the model is {model}. Every answer of the model and every tool call is recorded as a step before the "
        "next one begins, and the sandbox is captured whenever it may have changed."
    )
    print()
    created = await client.create("coder", {"task": TASK})
    show.line("run", f"{created.id[:18]}: {TASK}", show.BOLD)
    striker = Striker(stage, client, created.id)
    run = await striker.follow()
    show_end(run)
    return striker


def show_end(run: Execution) -> None:
    if run.status == "completed":
        show.note("run", f"completed: {run.output['answer']}", show.BOLD)
    else:
        show.note("run", f"{run.status}: {run.failure_reason}", show.RED)


def folder_of(events: list[Event]) -> pathlib.Path:
    """Where a run's sandbox is: its binding says so."""
    bound = Log(events).find("resource.bound")
    return pathlib.Path(bound.payload["binding"]["path"]) if bound else pathlib.Path()


async def compare(stage: Stage, left: str, right: str) -> str:
    """`diff -r` of two folders of the stage, without what Git keeps for itself."""
    show.command("diff", "-ru", "-x", ".git", left, right)
    code, text = await stage.output("diff", "-ru", "-x", ".git", left, right)
    show.difference(text if code else "(the same)")
    return text


async def differing(stage: Stage, execution_id: str) -> list[dict]:
    """The steps of a run that the stricter policy would decide otherwise."""
    words = ("policy", "test", "strict.yaml", "--execution", execution_id, "--agent-id", "coder")
    show.command("rebuno", *words[:4], execution_id[:18], *words[5:])
    _, text = await stage.ask(*words, "--json")
    results = json.loads(text)["results"]
    found = [result for result in results if not result["pass"]]
    show.tell(f"{len(found)} of {len(results)} steps would have been decided otherwise:")
    for one in found:
        about = one["args"].get("path") or one["args"].get("command") or one["args"].get("title") or ""
        decisions = f"{one['expect']} -> {one['decision']}, rule {one['rule_id']}"
        show.tell(f"{one['target']} {show.fit(about, 30)}: {decisions}", show.RED)
    return found


async def go_back(stage: Stage, client: Client, first: Striker) -> Follower | None:
    """Act two: the same run from a moment in the middle, under a stricter policy."""
    show.head("2. Back to a moment in the middle, under a stricter policy")
    (stage.folder / "first-run").symlink_to(folder_of(first.events))
    show.tell("What has the agent changed?")
    text = await compare(stage, "seed", "first-run")
    if stage.model and "tests/" in text:
        show.tell(
            "The tests pass because it made the test agree with the bug. Would a stricter policy have stopped that?"
        )
    found = await differing(stage, first.id)
    if not found:
        show.tell("The stricter policy changes nothing about this run, so there is nothing to go back for.")
        return None
    first.events = await whole_log(client, first.id)  # what is to be the same afterwards
    step_id = found[0]["step_id"]
    at = next(e.event_seq for e in first.events if e.payload.get("step_id") == step_id) - 1
    show.tell(
        f"So back to event #{at}, just before the first of them. The fork gets a sandbox as it was then; what had been "
        "recorded by then replays, and nothing is asked, run or paid again."
    )
    words = ("exec", "fork", first.id[:18], "--at", str(at), "--policy", "strict.yaml")
    show.command("rebuno", *words)
    if await stage.show(*words) != 0:
        raise SystemExit("the run could not be forked")
    print()
    runs = (await client.list(agent_id="coder")).executions
    fork = next(run for run in runs if run.forked_from == first.id)
    follower = Follower(stage, client, fork.id)
    run = await follower.follow()
    show_end(run)
    return follower


async def show_both(stage: Stage, client: Client, first: Follower, fork: Follower) -> str:
    """Act three: the two logs, and the two sandboxes. Returns how the sandboxes differ."""
    show.head("3. Two runs, side by side")
    left, right = [facts.rows(Log(one.events), await client.list_steps(one.id)) for one in (first, fork)]
    log = Log(fork.events)
    refused = next((effect.name for effect in log.live if effect.is_denied), None)
    turn = f"At {refused} the policy said no; the model read why, and went another way." if refused else ""
    show.tell(f"The fork begins with {len(log.copied)} steps of the first run. {turn}")
    show.tell("= the same step    | the same, with another outcome    the rest is each run's own")
    print()
    show.columns(f"first run {first.id[:18]}", f"fork {fork.id[:18]}", facts.side_by_side(left, right))
    show.command("rebuno", "exec", "diff", first.id[:18], fork.id[:18])
    _, text = await stage.ask("exec", "diff", first.id, fork.id)
    show.tell(f"... {text.strip().splitlines()[-1]}")
    (stage.folder / "fork").symlink_to(folder_of(fork.events))
    return await compare(stage, "first-run", "fork")


async def play(folder: pathlib.Path) -> int:
    async with Stage(folder) as stage, stage.client() as client:
        first = await work(stage, client)
        fork = await go_back(stage, client, first) if first.has_completed else None
        differs = await show_both(stage, client, first, fork) if fork is not None else ""
        show.head("What the logs say")
        good = summary.of_first(stage, first) and first.has_completed
        if fork is not None:
            good &= await summary.of_fork(client, first, fork, differs) and fork.has_completed
        good &= await summary.of_counts(stage, first, fork)
    print()
    end = 'All of it held. Now yours: README.md, "Five minutes".' if good else "Not all of it held."
    show.tell(end, show.GREEN if good else show.RED)
    return 0 if good else 1


async def play_in(keep: pathlib.Path | None) -> int:
    """Ctrl-C, SIGTERM or a closed terminal end the demo in order; a second one does not disturb that."""
    told: list[int] = []
    this = asyncio.current_task()

    def stop(number: int) -> None:
        if not told:
            told.append(number)
            this.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        if keep is not None:
            return await play(keep)
        with tempfile.TemporaryDirectory(prefix="rebuno-demo-") as folder:
            return await play(pathlib.Path(folder))
    except asyncio.CancelledError:
        if not told:
            raise
        with contextlib.suppress(OSError):
            print(f"\nstopped; its processes are ended{'' if keep else ', its files removed'}", flush=True)
        return 128 + told[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/demo", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep what is made in a new folder")
    keep = parser.parse_args().keep
    if keep is not None:
        keep = keep.absolute()
        try:
            keep.mkdir(parents=True)
        except OSError as exc:
            print(f"script/demo: --keep {keep}: {exc.strerror}: choose a new folder", file=sys.stderr)
            return 2
    code = asyncio.run(play_in(keep))
    if keep is not None:
        show.tell(f"All files are in {keep}. To look at the runs:")
        show.command(KERNEL, "dev", "--db", str(keep / "rebuno.db"))
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        sys.exit(1)
