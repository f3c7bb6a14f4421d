"""Forks, resources and subagents on the command line."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Attempt, FakeAgent, bundle, eventually
from harness.cli import Cli, Following
from harness.policies import rule
from harness.scripted import ScriptedExecution, ScriptedKernel

Follow = Callable[..., Following]
NewAgent = Callable[..., FakeAgent]
SHORT = 18
A = "0199c2a4-7d10-7c4e-8abc-0123456789ab"
B = "0199c2a4-91b3-7f02-8abc-0123456789ab"
ALLOW = rule("all", "allow", {"target": "*"})
AGO = r"\(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, \d+s ago\)"


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture
def run(cli: Cli, agent: FakeAgent) -> Attempt:
    """Its log holds still: the ack of its delivery is there."""
    attempt = agent.take_attempt(cli.json("exec", "create", agent.id)["id"])
    client = cli.kernel.client()
    eventually(lambda: "dispatch.acked" in client.event_types(attempt.id))
    return attempt


class Resourceful:
    """A run with a resource that it changes and captures; it knows the numbers of its events."""

    def __init__(self, cli: Cli, run: Attempt) -> None:
        self.client = cli.kernel.client()
        self.run = run
        run.register("workspace", every_steps=1).expect(200)
        self.registered = self.latest()
        self.generation = 0

    def latest(self) -> int:
        return int(self.client.events(self.run.id)[-1]["event_seq"])

    def last(self, kind: str) -> int:
        return int(
            [e for e in self.client.events(self.run.id) if e["type"] == kind][-1]["event_seq"]
        )

    def change(self, path: str, ref: str | None = None) -> None:
        """A step that changes it, and is captured if there is a reference."""
        step = self.run.proceed("write", {"path": path}, resources=["workspace"])
        self.generation += 1
        captured = {"key": "workspace", "generation": self.generation, "checkpoint_ref": ref}
        self.run.complete_step(step, "ok", **({"captures": [captured]} if ref else {})).expect(200)


@pytest.fixture
def source(cli: Cli, run: Attempt) -> Resourceful:
    return Resourceful(cli, run)


class TestFork:
    def test_without_resources(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        run.record("search", {"q": 1}, "found")
        out = cli.out("exec", "fork", run.id[:-1], "--at", "8")
        short = out.split()[1]
        assert len(short) == SHORT and out == (
            f"created {short} (running), a fork of {run.id[:SHORT]} at event 8; "
            f"follow with 'rebuno exec watch {short}'\n"
        )
        forked = cli.json("exec", "get", short)
        assert (forked["forked_from"], forked["fork_seq"]) == (run.id, 8)
        assert agent.take_attempt(forked["id"]).replay("search", {"q": 1})["result"] == "found"
        assert ["forked", "from", run.id, "at", "event", "8"] in rows(cli.out("exec", "get", short))

    def test_options(self, cli: Cli, run: Attempt, session: str) -> None:
        forked = cli.json("exec", "fork", run.id, "--at=3", "--session", session)
        assert (forked["session"], forked["forked_from"]) == (session, run.id)
        again = cli.error("exec", "fork", run.id, "--at", "3", "--session", session)
        assert "(conflict)" in again

    def test_policy(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        held = bundle(rule("ask", "require_approval", {"target": "write"}), ALLOW)
        (cli.folder / "stricter.yaml").write_text(held)
        out = cli.out("exec", "fork", run.id, "--at", "3", "--policy", "stricter.yaml")
        first, second = out.splitlines()
        assert re.fullmatch("policy: its own, 2 rules, hash [0-9a-f]{12}…", second)
        fork = cli.json("exec", "get", first.split()[1])
        agent.take_attempt(fork["id"]).hold("write")
        run.record("write")  # the source goes on under the agent's

    def test_a_policy_is_compiled_first(self, cli: Cli, run: Attempt) -> None:
        (cli.folder / "bad.yaml").write_text("rules:\n  - id: a\n    whem: {}\n")
        nowhere = "http://127.0.0.1:1"
        words = ("exec", "fork", run.id, "--at", "3", "--policy")
        assert cli.error(*words, "bad.yaml", REBUNO_URL=nowhere).startswith("error: bad.yaml:3:5:")
        assert "none.yaml" in cli.error(*words, "none.yaml", REBUNO_URL=nowhere)

    def test_refusals(self, cli: Cli, run: Attempt) -> None:
        events = len(cli.kernel.client().events(run.id))
        assert "(validation_error)" in cli.error("exec", "fork", run.id, "--at", "1000")
        for given in ("0", "-1", "x", "1.5", ""):
            error = cli.error("exec", "fork", run.id, f"--at={given}", code=2)
            assert error.startswith("error: --at: expected an event's number, from 1, not ")
        assert cli.error("exec", "fork", run.id, code=2).startswith("error: --at is missing")
        assert cli.error("exec", "fork", "fff", "--at", "1").endswith("begins with 'fff'\n")
        assert len(cli.kernel.client().events(run.id)) == events

    def test_says_what_was_restored(self, cli: Cli, source: Resourceful) -> None:
        source.change("a", "snap-1")
        covered = source.last("step.succeeded")
        out = cli.out("exec", "fork", source.run.id, "--at", str(source.latest()))
        _, restored = out.splitlines()
        assert re.fullmatch(
            f"workspace: restored from checkpoint snap-1, captured after event {covered} {AGO}",
            restored,
        )
        short = out.split()[1]
        (line,) = [r for r in cli.out("exec", "get", short).splitlines() if "workspace" in r]
        assert line.startswith("resources  ") and restored.rpartition(",")[0] in line
        assert "not covered" not in line

    def test_warns_when_the_point_is_not_covered(self, cli: Cli, source: Resourceful) -> None:
        source.change("a", "snap-1")
        covered = source.last("step.succeeded")
        source.change("b")
        ended, at = source.last("step.executing"), source.latest()
        done = cli.run("exec", "fork", source.run.id, "--at", str(at))
        assert done.returncode == 0
        restored = done.stdout.decode().splitlines()[1]
        assert restored.startswith(
            f"workspace: restored from checkpoint snap-1, captured after event {covered} ("
        )
        warning, remark = done.stderr.decode().splitlines()
        assert warning == (
            f"warning: event {at} is not covered for workspace: its checkpoint ended at event "
            f"{ended}, when tool_call write ran"
        )
        assert remark.startswith(
            "copied results may describe changes that the restored state lacks"
        )
        short = done.stdout.decode().split()[1]
        assert "; not covered there" in cli.out("exec", "get", short)

    def test_warns_when_nothing_was_captured(self, cli: Cli, source: Resourceful) -> None:
        done = cli.run("exec", "fork", source.run.id, "--at", str(source.registered))
        text = done.stdout.decode() + done.stderr.decode()
        assert "workspace: starts from its initial environment\n" in text
        assert (
            f"warning: event {source.registered} is not covered for workspace: nothing of it had "
            "been captured by then\n"
        ) in text

    def test_json_has_it_all_and_nothing_is_said(self, cli: Cli, source: Resourceful) -> None:
        forked = cli.json("exec", "fork", source.run.id, "--at", str(source.latest()))
        assert forked["restoration"] == {"workspace": {"covered": False}}

    def test_a_turn_s_inheritance(self, cli: Cli, agent: FakeAgent, session: str) -> None:
        """The checkpoint of an earlier turn, and whose it is."""
        first = cli.json("exec", "create", agent.id, "--session", session)["id"]
        before = Resourceful(cli, agent.take_attempt(first))
        before.change("a", "snap-1")
        covered = before.last("step.succeeded")
        before.run.complete().expect(204)
        second = cli.json("exec", "create", agent.id, "--session", session)["id"]
        at = len(cli.kernel.client().events(second))
        done = cli.run("exec", "fork", second, "--at", str(at))
        assert re.search(
            f"workspace: restored from checkpoint snap-1 of an earlier turn, {first[:SHORT]}, "
            f"captured after event {covered} there {AGO}\n",
            done.stdout.decode(),
        )
        assert "this turn had captured nothing of it by then" in done.stderr.decode()


class TestPoints:
    def test_table(self, cli: Cli, source: Resourceful) -> None:
        source.run.bind("workspace", {"dir": "/tmp/x"}).expect(204)
        covered_0 = source.latest()
        snap = {"key": "workspace", "generation": 0, "checkpoint_ref": "snap-0"}
        source.run.capture(snap).expect(204)
        source.change("a", "snap-1")
        ended = source.last("step.executing")
        covered = source.last("step.succeeded")
        latest = source.latest()
        registered = source.registered
        shown = cli.out("exec", "fork-points", source.run.id[:-1])
        first, second = f"{covered_0} to {ended - 1}", f"{covered} on"
        ranges = f"1 to {registered - 1}, {first}, {covered} to {latest}"
        assert shown.splitlines() == [
            "RESOURCE   REGISTERED  COVERED EVENTS  CHECKPOINT",
            f"workspace  {registered:10}  {first:14}  snap-0",
            f"{'':9}  {'':10}  {second:14}  snap-1",
            "",
            f"covered         {ranges}, of {latest} events",
            f"to fork there   rebuno exec fork {source.run.id[:SHORT]} --at {latest}",
        ]
        points = cli.json("exec", "fork-points", source.run.id)
        assert points == cli.kernel.client().fork_points(source.run.id)

    def test_never_captured(self, cli: Cli, source: Resourceful) -> None:
        done = cli.run("exec", "fork-points", source.run.id)
        table = rows(done.stdout.decode())
        assert table[1] == ["workspace", str(source.registered), "none", "never", "captured"]
        last = source.registered - 1
        assert table[3] == ["covered", "1", "to", f"{last},", "of", str(source.latest()), "events"]
        assert done.stderr.decode().startswith("a fork at any later event begins with an earlier")

    def test_no_resources(self, cli: Cli, run: Attempt) -> None:
        done = cli.run("exec", "fork-points", run.id)
        events = len(cli.kernel.client().events(run.id))
        assert done.stdout.decode() == f"covered         1 to {events}, of {events} events\n"
        assert done.stderr.decode().startswith("it has no resources")

    def test_events_show_them(self, cli: Cli, source: Resourceful) -> None:
        source.change("a", "snap-1")
        source.change("b")
        done = cli.run("exec", "events", source.run.id)
        points = cli.kernel.client().fork_points(source.run.id)
        (one,) = points["checkpoints"]
        for number, line in enumerate(done.stdout.decode().splitlines(), 1):
            covered = number < source.registered or (
                one["covered_seq"] <= number < one["invalidated_seq"]
            )
            assert re.match(rf" *{number}  ({'●' if covered else ' '}) \d{{4}}-", line), line
        assert done.stderr.decode().startswith("● ")
        events = cli.json("exec", "events", source.run.id)
        assert events == cli.kernel.client().events(source.run.id)


class TestWatch:
    def test_a_fork_with_resources(
        self, cli: Cli, agent: FakeAgent, source: Resourceful, follow: Follow
    ) -> None:
        source.change("a", "snap-1")
        at = source.latest()
        fork = cli.json("exec", "fork", source.run.id, "--at", str(at))["id"]
        watch = follow(cli, "exec", "watch", fork)
        line = watch.wait_for("execution.forked")
        assert f"from {source.run.id[:SHORT]} at event {at}" in line
        assert "workspace restored from checkpoint snap-1, captured after event" in line
        assert "workspace  from checkpoint snap-1" in watch.wait_for("resource.initialized")
        later = agent.take_attempt(fork)
        later.bind("workspace", {"dir": "/tmp/x"}).expect(204)
        assert '{"dir":"/tmp/x"}' in watch.wait_for("resource.bound")
        later.complete().expect(204)
        assert watch.ended() == 0


class TestSubagents:
    @pytest.fixture
    def child(self, cli: Cli, agent: FakeAgent, run: Attempt) -> str:
        step = run.proceed("research", {"q": 1})
        spawner = {"execution_id": run.id, "step_id": step}
        return str(cli.kernel.client().create(agent.id, spawned_by=spawner)["id"])

    def test_shown(self, cli: Cli, agent: FakeAgent, run: Attempt, child: str) -> None:
        shown = rows(cli.out("exec", "get", run.id))
        assert ["subagents", child[:SHORT], "(running)", agent.id] in shown
        (line,) = [r for r in rows(cli.out("exec", "get", child)) if r[:2] == ["spawned", "by"]]
        assert line[2] == f"{run.id},"
        listed = cli.json("exec", "ls", "--spawned-by", run.id[:-1])
        assert [e["id"] for e in listed["executions"]] == [child]
        assert cli.json("exec", "ls", "--spawned-by", child)["executions"] == []
        error = cli.error("exec", "ls", "--spawned-by", "fff")
        assert error == "error: no execution's id begins with 'fff'\n"

    def test_waited_for(
        self, cli: Cli, agent: FakeAgent, run: Attempt, child: str, follow: Follow
    ) -> None:
        assert run.suspend().expect(200).json == {"suspended": True}
        shown = rows(cli.out("exec", "get", run.id))
        assert ["waits", "for", "subagent", child[:SHORT]] in shown
        watch = follow(cli, "exec", "watch", run.id)
        assert watch.wait_for("execution.blocked").endswith("waits for its subagents\n")
        line = follow(cli, "exec", "watch", child).wait_for("execution.created")
        assert line.endswith(f"for a step of {run.id[:SHORT]}\n")
        agent.take_attempt(child).complete("o").expect(204)
        watch.wait_for("execution.resumed")
        agent.take_attempt(run.id).complete().expect(204)
        assert watch.ended() == 0


class TestDiff:
    def test_a_fork_under_another_policy(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        run.record("read", {"path": "a"}, "text")
        run.record("write", {"path": "b"}, "ok")
        run.complete({"done": True}).expect(204)
        at = str(cli.kernel.client().event_types(run.id).index("step.succeeded") + 1)
        (cli.folder / "p.yaml").write_text(
            bundle(rule("no-writes", "deny", {"target": "write"}), ALLOW)
        )
        words = ("exec", "fork", run.id, "--at", at, "--policy", "p.yaml")
        fork = cli.json(*words)["id"]
        later = agent.take_attempt(fork)
        later.replay("read", {"path": "a"})
        later.denied("write", {"path": "b"})
        later.complete({"done": False}).expect(204)
        shown = cli.out("exec", "diff", run.id, fork, code=1).splitlines()
        assert shown[1].endswith(f"  {agent.id}, completed, a fork of the other at event {at}")
        assert shown[2:4] == ["  1 step is the same", '  step 2  tool_call write  {"path":"b"}']
        assert "-   decision  allowed, no policy" in shown
        assert "+   decision  denied by rule no-writes" in shown
        assert "- output.done  true" in shown and "+ output.done  false" in shown
        assert cli.out("exec", "diff", run.id, run.id).startswith("--- ")
        told = cli.json("exec", "diff", fork, run.id, code=1)
        assert told["same_steps_before"] == 1
        (only,) = told["differences"]
        assert {"decision", "status", "result"} <= set(only["differs_in"])
        assert (only["a"]["rule_id"], only["b"]["rule_id"]) == ("no-writes", "permissive")


class TestScripted:
    """What is not easily had from a kernel."""

    @pytest.fixture
    def kernel(self) -> Iterator[ScriptedKernel]:
        source = ScriptedExecution(A)
        for _ in range(12):
            source.step("write", {"p": "\x1b[2J"})
        restoration = {
            "gone": {"checkpoint_ref": "s\x1b[1m\n", "checkpoint_seq": 999, "covered": True},
            "odd": {"checkpoint_ref": "s-2", "checkpoint_seq": 5, "covered": False},
        }
        fork = ScriptedExecution(B, forked_from=A, fork_seq=9, restoration=restoration)
        kernel = ScriptedKernel(source, fork)
        kernel.on[f"POST /v0/executions/{A}/fork"] = lambda _: (201, fork.body)
        yield kernel
        kernel.close()

    def test_what_is_sent(self, kernel: ScriptedKernel, tmp_path: Path) -> None:
        text = "default_action: allow  # all\n"
        (tmp_path / "p.yaml").write_text(text)
        words = ("exec", "fork", A, "--at", "9", "--session", "s", "--policy", "p.yaml", "--json")
        done = kernel.run(*words, cwd=tmp_path)
        assert json.loads(done.stdout)["id"] == B and done.stderr == ""
        ((line, body),) = kernel.requests
        assert line == f"POST /v0/executions/{A}/fork"
        assert json.loads(body) == {"at_seq": 9, "session": "s", "policy_bundle": text}

    def test_what_cannot_be_asked_is_left_out(self, kernel: ScriptedKernel) -> None:
        """The source's log may be gone or not for the caller, an older kernel has no points."""
        done = kernel.run("exec", "fork", A, "--at", "9")
        assert done.returncode == 0
        assert (
            "gone: restored from checkpoint s\\x1b[1m\\n, captured after event 999\n" in done.stdout
        )
        assert (
            "warning: event 9 is not covered for odd: its checkpoint is of an earlier"
            in done.stderr
        )
        events = kernel.run("exec", "events", A)
        assert (events.returncode, events.stderr) == (0, "") and "●" not in events.stdout
        assert kernel.run("exec", "fork-points", A).returncode == 1

    def test_colours(self, kernel: ScriptedKernel) -> None:
        shown = kernel.on_terminal(80, "exec", "fork", A, "--at", "9")
        assert "\x1b[33mwarning: \x1b[0mevent 9 is not covered" in shown
        assert "\x1b" not in kernel.on_terminal(80, "exec", "fork", A, "--at", "9", NO_COLOR="1")

    @pytest.mark.parametrize(
        "points", [{}, [], {"latest_seq": 1, "resources": {}, "checkpoints": {}}], ids=str
    )
    def test_points_that_are_none(self, kernel: ScriptedKernel, points: Any) -> None:
        kernel.on[f"GET /v0/executions/{A}/fork-points"] = lambda _: (200, points)
        done = kernel.run("exec", "fork-points", A)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "error: the kernel's answer has no fork points\n"
