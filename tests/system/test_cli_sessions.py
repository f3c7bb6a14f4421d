"""Sessions on the command line: created, listed, shown and followed."""

import subprocess
from collections.abc import Callable

from harness import FakeAgent, eventually
from harness.cli import COMMAND_S, Cli, Following
from harness.kernel import BINARY

Follow = Callable[..., Following]
NewAgent = Callable[..., FakeAgent]
SHORT = 18


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


class TestCreate:
    def test_waits_its_turn(self, cli: Cli, agent: FakeAgent, session: str) -> None:
        words = ("exec", "create", agent.id, "--session", session)
        first, second = cli.out(*words), cli.out(*words, '{"n": 1}')
        assert first.split()[0::2][:2] == ["created", "(running);"]
        short = second.split()[1]
        assert second == f"created {short} (pending); follow with 'rebuno exec watch {short}'\n"
        assert cli.json("exec", "get", short)["session"] == session

    def test_continues_the_one_that_is_named(
        self, cli: Cli, agent: FakeAgent, session: str
    ) -> None:
        parent = cli.json("exec", "create", agent.id, "--session", session)["id"]
        agent.take_attempt(parent).complete("o").expect(204)
        for given in (parent, parent[:-1], parent.upper()):
            made = cli.json("exec", "create", agent.id, "--parent", given)
            assert made["parent_execution_id"] == parent
            assert "session" not in made
        branch = f"{session}-2"
        made = cli.json("exec", "create", agent.id, f"--session={branch}", f"--parent={parent}")
        assert (made["session"], made["parent_execution_id"]) == (branch, parent)

    def test_refusals(self, cli: Cli, agent: FakeAgent, session: str) -> None:
        def error(*words: str) -> str:
            return cli.error("exec", "create", agent.id, *words)

        unknown = "00000000-0000-7000-8000-000000000000"
        assert "parent_execution_id: no such execution (not_found)" in error("--parent", unknown)
        assert error("--parent", "fff") == "error: no execution's id begins with 'fff'\n"
        assert "'x' is no execution's id" in error("--parent", "x")
        running = cli.json("exec", "create", agent.id, "--session", session)["id"]
        assert "it is running (conflict)" in error("--parent", running)
        agent.take_attempt(running).complete().expect(204)
        text = error("--parent", running, "--session", session)
        assert f"{session} is in use (conflict)" in text
        assert '"session" must not be empty' in error("--session", "")
        assert "no such agent" in cli.error("exec", "create", "nobody", "--session", session)
        text = cli.error("exec", "create", "nobody", "--parent", running)
        assert "no such agent" in text


class TestShow:
    def test_ls(self, cli: Cli, agent: FakeAgent, new_agent: NewAgent, session: str) -> None:
        other = new_agent()
        cli.json("exec", "create", agent.id)
        ids = [
            cli.json("exec", "create", one.id, "--session", session)["id"]
            for one in (agent, other, agent)
        ]
        table = rows(cli.out("exec", "ls", "--session", session))
        assert [row[0] for row in table[1:]] == [i[:SHORT] for i in reversed(ids)]
        assert table[1][1:3] + table[1][4:] == [
            agent.id, "pending", "waits", "for", "session", session,
        ]  # fmt: skip
        assert table[3][1:3] == [agent.id, "running"]
        words = ("exec", "ls", "--session", session)
        listed = cli.json(*words, "--agent", other.id, "--status", "pending")
        assert [e["id"] for e in listed["executions"]] == [ids[1]]
        listed = cli.json(*words, "--limit", "2")
        assert [e["id"] for e in listed["executions"]] == [ids[2], ids[1]]
        assert cli.json("exec", "ls", "--session", f"{session}&limit=1")["executions"] == []

    def test_get(self, cli: Cli, agent: FakeAgent, session: str) -> None:
        first = cli.json("exec", "create", agent.id, "--session", session)["id"]
        second = cli.json("exec", "create", agent.id, "--session", session)["id"]
        shown = rows(cli.out("exec", "get", second))
        assert ["status", "pending"] in shown
        assert ["waits", "for", "session", session] in shown
        assert ["session", session] in shown
        assert "parent" not in [row[0] for row in shown]
        agent.take_attempt(first).complete().expect(204)
        shown = rows(cli.out("exec", "get", second))
        assert ["status", "running"] in shown
        assert ["parent", first] in shown

    def test_a_name_reaches_no_terminal_as_it_is(
        self, cli: Cli, agent: FakeAgent, session: str
    ) -> None:
        """Control characters are refused, but what hides or turns text round is not."""
        name = f"{session}\u202e\u200bx"
        cli.json("exec", "create", agent.id, "--session", name)
        waiting = cli.json("exec", "create", agent.id, "--session", name)["id"]
        for words in (["get", waiting], ["ls", "--session", name], ["events", waiting]):
            shown = cli.out("exec", *words)
            assert session in shown
            assert not set("\u202e\u200b") & set(shown)


class TestWatch:
    def test_through_its_turn(
        self, cli: Cli, agent: FakeAgent, follow: Follow, session: str
    ) -> None:
        first = cli.json("exec", "create", agent.id, "--session", session)["id"]
        second = cli.json("exec", "create", agent.id, "--session", session)["id"]
        watch = follow(cli, "exec", "watch", second)
        line = watch.wait_for("execution.created")
        assert line.endswith(f"by bootstrap  in session {session}\n")
        agent.take_attempt(first).complete().expect(204)
        line = watch.wait_for("execution.started")
        assert line.endswith(f"continues {first[:SHORT]}\n")
        agent.take_attempt(second).complete(1).expect(204)
        assert watch.ended() == 0

    def test_one_that_is_cancelled_while_it_waits(
        self, cli: Cli, agent: FakeAgent, follow: Follow, session: str
    ) -> None:
        cli.json("exec", "create", agent.id, "--session", session)
        second = cli.json("exec", "create", agent.id, "--session", session)["id"]
        watch = follow(cli, "exec", "watch", second)
        watch.wait_for("execution.created")
        cli.out("exec", "cancel", second)
        assert watch.ended() == 1
        assert watch.lines[-1].endswith(": client_cancelled\n")

    def test_a_terminal_is_told_what_it_waits_for(
        self, cli: Cli, agent: FakeAgent, session: str
    ) -> None:
        first = cli.json("exec", "create", agent.id, "--session", session)["id"]
        second = cli.json("exec", "create", agent.id, "--session", session)["id"]
        eventually(lambda: agent.count(first) == 1)
        done = subprocess.run(
            ["script", "-qec", f"timeout 9 {BINARY} exec watch {second}", "/dev/null"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=cli.environment({"TERM": "xterm", "NO_COLOR": "1"}),
            timeout=COMMAND_S,
        )
        assert done.stdout.decode().count(f"waiting for its turn in session {session}") == 1
