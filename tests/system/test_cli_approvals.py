"""Approvals on the command line: what a person sees, decides, and is told afterwards."""

import json
import os
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from harness import Attempt, FakeAgent, Kernel, eventually
from harness.cli import Cli, Following
from harness.policies import bundle, rule

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
Follow = Callable[..., Following]
SHORT = 18


def gated(kernel: Kernel, agent: FakeAgent, **config: Any) -> None:
    """The agent's `fs_` tools wait for a person; the rest is allowed."""
    rules = [
        rule(
            "gate",
            "require_approval",
            {"target": "fs_*"},
            reason="writes need a look",
            approval_config=config or {"timeout": "10m"},
        )
    ]
    text = bundle(*rules, default="allow")
    kernel.client().post(f"/v0/policies/{agent.id}", {"bundle": text}).expect(204)


def hold(run: Attempt, target: str = "fs_write", args: Any = None) -> str:
    """Submits a step that a person must decide on; the approval's id."""
    decision = run.submit(target, args).expect(200).json
    assert decision["decision"] == "blocked", decision
    return str(decision["approval_id"])


@pytest.fixture
def agent(new_agent: NewAgent, kernel: Kernel) -> FakeAgent:
    made = new_agent(kernel)
    gated(kernel, made)
    return made


def start(cli: Cli, agent: FakeAgent) -> Attempt:
    """A run whose ack is recorded, so that its log has one order."""
    identity = cli.json("exec", "create", agent.id)["id"]
    run = agent.take_attempt(identity)
    client = cli.kernel.client()
    eventually(lambda: "dispatch.acked" in client.event_types(identity))
    return run


@pytest.fixture
def run(cli: Cli, agent: FakeAgent) -> Attempt:
    return start(cli, agent)


def approval(cli: Cli, identity: str) -> dict[str, Any]:
    found: dict[str, Any] = cli.kernel.client().get(f"/v0/approvals/{identity}").expect(200).json
    return found


def own_rows(cli: Cli, agent: FakeAgent, *words: str) -> list[str]:
    lines = cli.out("approval", "ls", "--limit", "1000", *words).splitlines()
    return [lines[0], *(line for line in lines if agent.id in line)]


class TestLs:
    def test_pending_ones(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        first = hold(run, "fs_write", {"path": "/a"})
        second = hold(run, "fs_edit")
        title, *lines = own_rows(cli, agent)
        assert title.split() == ["ID", "EXECUTION", "AGENT", "TARGET", "LEFT", "MESSAGE"]
        wanted = {first[:SHORT]: "fs_write", second[:SHORT]: "fs_edit"}
        for line in lines:
            identity, execution, agent_id, target, left, *message = line.split()
            assert (execution, agent_id, target) == (run.id[:SHORT], agent.id, wanted[identity])
            assert left == "10m00s" or left.startswith("9m5")
            assert " ".join(message) == "writes need a look"
        assert len(lines) == 2
        listed = cli.json("approval", "ls")
        assert {first, second} <= {entry["id"] for entry in listed}

    def test_decided_ones(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        first, second = hold(run, "fs_a"), hold(run, "fs_b")
        cli.out("approval", "deny", first, "--by", "bob")
        assert [line.split()[0] for line in own_rows(cli, agent)[1:]] == [second[:SHORT]]
        title, line = own_rows(cli, agent, "--status", "denied")
        assert "STATUS" in title and "denied by bob" in line and first[:SHORT] in line
        both = own_rows(cli, agent, "--status=all")[1:]
        assert sorted(line.split()[0] for line in both) == sorted([first[:SHORT], second[:SHORT]])
        assert any("pending, 9m5" in line or "pending, 10m00s left" in line for line in both)
        gated(cli.kernel, agent, timeout="50ms")
        third = hold(run, "fs_c")
        eventually(lambda: approval(cli, third)["status"] == "expired")
        _, line = own_rows(cli, agent, "--status", "expired")
        assert "expired" in line and line.startswith(third[:SHORT])

    def test_says_that_there_are_more(self, cli: Cli, run: Attempt) -> None:
        hold(run, "fs_a")
        hold(run, "fs_b")
        done = cli.run("approval", "ls", "--limit", "1")
        assert len(done.stdout.splitlines()) == 2
        assert done.stderr == b"there are more: --limit N\n"
        assert len(cli.json("approval", "ls", "--limit", "1")) == 1

    def test_none(self, new_kernel: NewKernel, cli: Cli) -> None:
        empty = Cli(new_kernel(), cli.folder)
        assert empty.run("approval", "ls").stderr == b"nothing waits for a person\n"
        assert empty.run("approval", "ls", "--status", "all").stderr == b"no approvals\n"
        assert empty.json("approval", "ls") == []


class TestGet:
    def test_shows_what_is_decided_on(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        gated(
            cli.kernel, agent, approvers=["alice", "bob"], message="check the\npath", timeout="5m"
        )
        args = {"path": "/etc/passwd", "text": 'root\n"x"\n', "mode": {"append": True, "n": 1.50}}
        identity = hold(run, "fs_write", args)
        shown = cli.out("approval", "get", identity).splitlines()
        assert shown[:9] == [
            f"id              {identity}",
            "status          pending",
            f"agent           {agent.id}",
            f"execution       {run.id}",
            "asks for        tool_call fs_write",
            "message         check the",
            "                path",
            "approvers       alice, bob",
            shown[8],
        ]
        assert shown[8].startswith("requested       2") and shown[8].endswith("s ago)")
        assert shown[9].startswith("expires         2") and " (in 4m5" in shown[9]
        assert shown[10:] == [
            "arguments",
            '  path: "/etc/passwd"',
            "  text:",
            "    │ root",
            '    │ "x"',
            "    │",
            "  mode:",
            "    append: true",
            "    n: 1.5",
            "",
            f"to grant it     rebuno approval grant {identity[:SHORT]}",
            f"to deny it      rebuno approval deny {identity[:SHORT]} --reason TEXT",
        ]
        assert cli.json("approval", "get", identity) == approval(cli, identity)

    def test_nothing_of_an_agent_drives_the_terminal(self, cli: Cli, run: Attempt) -> None:
        """Escape sequences, right-to-left overrides and blanks of no width, in names and values."""
        args = {
            "a\x1b[2J": "\x1b]0;title\x07\u202etxt\u200b\u009b1m",
            "b": ["\r\n\x00", {"\u2066c": "\x7f"}],
            "forged": "x\n\nto grant it     rebuno approval grant 00000000\x1b[A",
        }
        identity = hold(run, "fs_write", args)
        plain = {ord(c) for c in "\n"} | set(range(0x20, 0x7F)) | {ord("│")}
        for text in (
            cli.out("approval", "get", identity),
            cli.out("exec", "steps", run.id),
            cli.out("exec", "events", run.id),
        ):
            assert {ord(c) for c in text} - plain - {ord("…")} == set()
        shown = cli.out("approval", "get", identity).splitlines()
        assert [line for line in shown if line.startswith("to grant it")] == [
            f"to grant it     rebuno approval grant {identity[:SHORT]}"
        ]

    def test_by_prefix(self, cli: Cli, run: Attempt) -> None:
        one, two = hold(run, "fs_a"), hold(run, "fs_b")
        cli.out("approval", "deny", two)
        for given in (one, one[:-1], one.upper()):
            assert cli.json("approval", "get", given)["id"] == one
        assert cli.json("approval", "get", two[:-1])["id"] == two  # decided ones are found as well
        common = os.path.commonprefix([one, two])
        error = cli.error("approval", "grant", common)
        assert error.startswith(f"error: '{common}' is the beginning of more than one approval's")
        assert one in error and two in error and "fs_a" in error and "denied" in error
        assert cli.error("approval", "get", "fff") == "error: no approval's id begins with 'fff'\n"
        assert "is no approval's id" in cli.error("approval", "deny", "../executions")
        assert "(not_found)" in cli.error("approval", "grant", "0" * 8 + one[8:])

    def test_a_decided_one(self, cli: Cli, run: Attempt) -> None:
        identity = hold(run)
        cli.out("approval", "deny", identity, "--by", "bob", "--reason", "no\nway")
        shown = cli.out("approval", "get", identity).splitlines()
        assert "status          denied" in shown
        assert "decided by      bob, as stated by bootstrap" in shown
        at = shown.index("reason          no")
        assert shown[at + 1] == "                way"
        assert any(line.startswith("decided         2") for line in shown)
        assert not any("rebuno approval" in line for line in shown)


def columns_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


class TestTerminal:
    """A line that the terminal broke by itself could look like another one."""

    @pytest.mark.parametrize("columns", [80, 200])
    def test_no_line_is_wider(self, cli: Cli, agent: FakeAgent, run: Attempt, columns: int) -> None:
        gated(cli.kernel, agent, message="a long message " * 20, approvers=["x" * 200])
        args = {
            "command": "make build test install " * 30,
            "blanks": "ls" + " " * 1000 + "; rm -rf /",
            "wide": "日本語" * 100,
            "k" * 300: [1, {"deep": [["y" * 500]]}],
            "many": [f"item {n}" for n in range(50)],
        }
        identity = hold(run, "fs_" + "z" * 500, args)
        shown = cli.on_terminal(columns, "approval", "get", identity, NO_COLOR="1")
        assert max(columns_of(line) for line in shown) <= columns
        assert any("; rm -rf /" in line for line in shown)
        for words in (["approval", "ls"], ["approval", "ls", "--status", "all"]):
            listed = cli.on_terminal(columns, *words, NO_COLOR="1")
            assert max(columns_of(line) for line in listed) <= columns
            assert any(identity[:SHORT] in line for line in listed)


class TestDecide:
    def test_grant(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        identity = hold(run, "fs_write", {"path": "/a"})
        out = cli.out("approval", "grant", identity[:-2], "--reason", "fine", USER="zoe")
        assert out == f"granted {identity[:SHORT]}: tool_call fs_write of {agent.id}\n"
        found = approval(cli, identity)
        assert (found["status"], found["decided_by"]) == ("granted", "zoe")
        assert (found["rationale"], found["asserted_by"]) == ("fine", "bootstrap")
        again = agent.take_attempt(run.id)
        assert again.submit("fs_write", {"path": "/a"}).expect(200).json["decision"] == "proceed"

    def test_deny_tells_the_agent_why(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        identity = hold(run)
        out = cli.out("approval", "deny", identity, "--by", "ann", "--reason", "use a copy")
        assert out == f"denied {identity[:SHORT]}: tool_call fs_write of {agent.id}\n"
        decision = agent.take_attempt(run.id).submit("fs_write", None).expect(200).json
        assert (decision["decision"], decision["reason"]) == ("denied", "use a copy")

    @pytest.mark.parametrize("user", [None, ""])
    def test_without_a_user_the_key_decides(self, cli: Cli, run: Attempt, user: str | None) -> None:
        identity = hold(run)
        decided = json.loads(cli.run("approval", "grant", identity, "--json", USER=user).stdout)
        assert decided == approval(cli, identity)
        assert decided["decided_by"] == "bootstrap" and "asserted_by" not in decided

    def test_the_loser_is_told_what_won(self, cli: Cli, run: Attempt) -> None:
        identity = hold(run)
        cli.out("approval", "deny", identity, "--by", "bob")
        for verb in ("grant", "deny"):
            assert cli.error("approval", verb, identity) == "error: already denied by bob\n"
        assert approval(cli, identity)["status"] == "denied"

    def test_after_its_time(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        gated(cli.kernel, agent, timeout="50ms")
        identity = hold(run)
        eventually(lambda: approval(cli, identity)["status"] == "expired")
        assert cli.error("approval", "grant", identity) == "error: already expired\n"
        shown = cli.out("approval", "get", identity)
        assert "status          expired\n" in shown and "rebuno approval" not in shown

    def test_only_approvers(self, cli: Cli, agent: FakeAgent, run: Attempt) -> None:
        gated(cli.kernel, agent, approvers=["alice"])
        identity = hold(run)
        assert cli.error("approval", "grant", identity, "--by", "mallory") == (
            "error: mallory is not one of the approvers (forbidden); "
            "they are alice: --by NAME says who decides\n"
        )
        error = cli.error("approval", "deny", identity, USER="bob")
        assert error.startswith("error: bob is not one of the approvers") and "--by NAME" in error
        assert approval(cli, identity)["status"] == "pending"
        cli.out("approval", "grant", identity, "--by", "alice")

    def test_an_empty_name_is_none(self, cli: Cli, run: Attempt) -> None:
        identity = hold(run)
        assert "decided_by" in cli.error("approval", "grant", identity, "--by", "")


class TestExecutions:
    def test_get_says_how_to_go_on(self, cli: Cli, run: Attempt) -> None:
        ids = sorted([hold(run, "fs_a"), hold(run, "fs_b")])
        shown = cli.out("exec", "get", run.id)
        for identity in ids:
            assert f"approval {identity[:SHORT]} (expires in 9m" in shown
            for verb in ("get", "grant", "deny"):
                assert f" rebuno approval {verb} {identity[:SHORT]}\n" in shown
        assert shown.count("to decide") == 1
        _, line = cli.out("exec", "ls", "--agent", run.agent.id).splitlines()
        assert line.startswith(run.id[:SHORT])
        assert "blocked" in line and f"waits for approval {ids[0][:SHORT]}" in line

    def test_steps_and_events(self, cli: Cli, run: Attempt) -> None:
        identity = hold(run)
        assert "awaiting_approval" in cli.out("exec", "steps", run.id)
        cli.out("approval", "deny", identity, "--by", "bob", "--reason", "no")
        log = cli.out("exec", "events", run.id)
        for name in ("step.awaiting_approval", "approval.requested", "approval.denied"):
            assert f"  {name}  {{" in log
        assert f'"approval_id":"{identity}"' in log and '"decided_by":"bob"' in log
        (step,) = [line for line in cli.out("exec", "steps", run.id).splitlines() if "fs_" in line]
        assert "denied" in step and step.endswith("no")


class TestWatch:
    def test_shows_and_goes_on(
        self, cli: Cli, agent: FakeAgent, run: Attempt, follow: Follow
    ) -> None:
        watch = follow(cli, "exec", "watch", run.id)
        identity = hold(run, "fs_write", {"path": "/a", "text": "one\ntwo\x1b[m"})
        short = identity[:SHORT]
        watch.wait_for(f"      rebuno approval deny {short}")
        at = next(n for n, line in enumerate(watch.lines) if "asks for" in line)
        asked = [line.rstrip("\n") for line in watch.lines[at:]]
        assert asked[0].startswith(f"      {agent.id} asks for tool_call fs_write until 2")
        assert " (in 9m5" in asked[0]
        assert asked[1:] == [
            "      writes need a look",
            '        path: "/a"',
            "        text:",
            "          │ one",
            "          │ two\\x1b[m",
            f"      rebuno approval grant {short}",
            f"      rebuno approval deny {short}",
        ]
        cli.out("approval", "deny", identity, "--by", "bob", "--reason", "not there")
        watch.wait_for("tool_call fs_write  by bob: not there")
        watch.wait_for("execution.resumed")
        again = agent.take_attempt(run.id)
        assert (
            again.submit("fs_write", {"path": "/a", "text": "one\ntwo\x1b[m"})
            .expect(200)
            .json["decision"]
            == "denied"
        )
        again.complete("gave up").expect(204)
        assert watch.ended() == 0
        assert sum("asks for" in line for line in watch.lines) == 1
        assert watch.errors == []

    def test_several_at_once(self, cli: Cli, run: Attempt, follow: Follow) -> None:
        watch = follow(cli, "exec", "watch", run.id, "--url", cli.kernel.url)
        ids = [hold(run, f"fs_{name}") for name in "abc"]
        for identity, name in zip(ids, "abc", strict=True):
            watch.wait_for(f"asks for tool_call fs_{name} until")
            watch.wait_for(f"rebuno approval grant {identity[:SHORT]} --url {cli.kernel.url}\n")

    def test_a_log_is_not_asked_again(
        self, cli: Cli, agent: FakeAgent, run: Attempt, follow: Follow
    ) -> None:
        """What was decided before is history; what waits is asked for, whoever comes."""
        first = hold(run, "fs_a")
        cli.out("approval", "grant", first)
        second = hold(agent.take_attempt(run.id), "fs_b")
        watch = follow(cli, "exec", "watch", run.id)
        watch.wait_for(f"rebuno approval deny {second[:SHORT]}")
        assert sum("asks for" in line for line in watch.lines) == 1
        cli.out("exec", "cancel", run.id)
        assert watch.ended() == 1
        assert not any("asks for tool_call fs_a" in line for line in watch.lines)
        assert watch.lines[-1].endswith(": client_cancelled\n")

    def test_long_arguments_are_cut_and_say_so(
        self, cli: Cli, run: Attempt, follow: Follow
    ) -> None:
        watch = follow(cli, "exec", "watch", run.id)
        identity = hold(run, "fs_write", {"text": "\n".join(f"line {n}" for n in range(500))})
        more = watch.wait_for("more lines")
        assert more == f"        … and 481 more lines: rebuno approval get {identity[:SHORT]}\n"
        assert len(watch.lines) < 60
        assert "    │ line 499\n" in cli.out("approval", "get", identity)

    def test_as_json_it_is_events(
        self, cli: Cli, agent: FakeAgent, run: Attempt, follow: Follow
    ) -> None:
        watch = follow(cli, "exec", "watch", run.id, "--json")
        identity = hold(run)
        watch.wait_for('"approval.requested"')
        cli.out("approval", "grant", identity)
        agent.take_attempt(run.id).complete().expect(204)
        assert watch.ended() == 0
        events = [json.loads(line) for line in watch.lines]
        assert [e["event_seq"] for e in events] == list(range(1, len(events) + 1))

    def test_a_kernel_that_restarts_asks_once(
        self, new_kernel: NewKernel, new_agent: NewAgent, follow: Follow, cli: Cli
    ) -> None:
        kernel = new_kernel()
        agent, own = new_agent(kernel), Cli(kernel, cli.folder)
        gated(kernel, agent)
        run = start(own, agent)
        watch = follow(own, "exec", "watch", run.id)
        identity = hold(run)
        watch.wait_for(f"rebuno approval deny {identity[:SHORT]}")
        kernel.restart(kill=True)
        own.out("approval", "grant", identity, "--by", "ann")
        watch.wait_for("by ann")
        agent.take_attempt(run.id).complete().expect(204)
        assert watch.ended() == 0
        assert sum("asks for" in line for line in watch.lines) == 1

    def test_a_parked_step(self, cli: Cli, agent: FakeAgent, run: Attempt, follow: Follow) -> None:
        limit = {"max_calls": 1, "window": "10m", "max_wait": "1h"}
        text = bundle(rule("slow", "allow", {"target": "search"}, rate_limit=limit))
        cli.kernel.client().post(f"/v0/policies/{agent.id}", {"bundle": text}).expect(204)
        watch = follow(cli, "exec", "watch", run.id)
        run.record("search", 1)
        assert run.submit("search", 2).expect(200).json["decision"] == "blocked"
        line = watch.wait_for("step.rate_limited")
        assert "tool_call search  waits until " in line and line.endswith(", by rule slow\n")
        assert "its rate limit (free in 9m5" in cli.out("exec", "get", run.id)
