"""The command line against a real kernel: what it prints, what it sends, and its exit codes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import FakeAgent, Kernel
from harness.cli import COMMAND_S, Cli, Following
from harness.kernel import BINARY, TOKEN

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
Follow = Callable[..., Following]
SHORT = 18


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


MANIFEST = """\
agents:
  - id: {id}
    webhook_url: {url}
    secret: ${{TEST_SECRET}}
    lease_timeout_seconds: 60
"""


class TestAgents:
    def test_add_get_ls_rm(self, cli: Cli, new_agent: NewAgent) -> None:
        agent = new_agent(register=False)
        manifest = cli.folder / "agents.yaml"
        manifest.write_text(MANIFEST.format(id=agent.id, url=agent.webhook_url))
        added = cli.out("agent", "add", "agents.yaml", TEST_SECRET=agent.secret)
        assert added == f"registered {agent.id} at {agent.webhook_url}\n"
        execution = cli.json("exec", "create", agent.id)
        run = agent.take_attempt(execution["id"])  # the secret in the manifest is the agent's
        run.complete(1).expect(204)

        agent.client().request(
            "PUT",
            f"/v0/agents/{agent.id}/metadata",
            body={"description": "says \x1b[1mhello", "input_schema": {"type": "object"}},
        ).expect(204)
        shown = cli.out("agent", "get", agent.id)
        assert ["lease", "60s"] in rows(shown)
        assert "says \\x1b[1mhello" in shown
        assert '{"type":"object"}' in shown
        assert agent.secret not in shown
        assert cli.json("agent", "get", agent.id)["id"] == agent.id
        assert agent.id in [row[0] for row in rows(cli.out("agent", "ls"))]
        assert agent.id in [a["id"] for a in cli.json("agent", "ls")]

        assert cli.out("agent", "rm", agent.id) == f"removed {agent.id}\n"
        assert "(not_found)" in cli.error("agent", "get", agent.id)

    def test_a_lease_that_is_too_short_is_named(self, cli: Cli, new_agent: NewAgent) -> None:
        agent = new_agent(register=False)
        text = MANIFEST.format(id=agent.id, url=agent.webhook_url)
        for seconds, ignored in ((9, True), (10, False)):
            (cli.folder / "a.yaml").write_text(text.replace("60", str(seconds)))
            done = cli.run("agent", "add", "a.yaml", TEST_SECRET=agent.secret)
            assert done.returncode == 0
            assert done.stderr.decode() == ignored * (
                f'warning: agent "{agent.id}": lease_timeout_seconds: 9 is ignored, for 10 is the '
                "least; the kernel's default counts\n"
            )
            shown = f"{seconds}s" + ignored * " (ignored)"
            assert f"lease           {shown}\n" in cli.out("agent", "get", agent.id)
            (line,) = (r for r in cli.out("agent", "ls").splitlines() if r.startswith(agent.id))
            assert f" {shown} " in line and ("(ignored)" in line) == ignored

    def test_add_says_where_a_manifest_is_wrong(self, cli: Cli) -> None:
        (cli.folder / "a.yaml").write_text("agents:\n  - id: x\n    webhok_url: y\n")
        error = cli.error("agent", "add", "a.yaml")
        assert error.startswith('error: a.yaml:3:5: agent "x": unknown key "webhok_url"')
        (cli.folder / "b.yaml").write_text(MANIFEST.format(id="x", url="http://localhost:1"))
        error = cli.error("agent", "add", "b.yaml")
        assert "b.yaml:4:13" in error and "TEST_SECRET is not set" in error

    def test_live_executions_keep_an_agent(self, cli: Cli, agent: FakeAgent) -> None:
        cli.out("exec", "create", agent.id)
        assert "(conflict)" in cli.error("agent", "rm", agent.id)


class TestCreate:
    def test_prints_exactly(self, cli: Cli, agent: FakeAgent) -> None:
        out = cli.out("exec", "create", agent.id, '{"task": 1}')
        short = out.split()[1]
        assert len(short) == SHORT
        assert out == f"created {short} (running); follow with 'rebuno exec watch {short}'\n"
        found = cli.json("exec", "get", short)
        assert found["id"].startswith(short) and found["input"] == {"task": 1}

    def test_a_repeat_is_found(self, cli: Cli, agent: FakeAgent) -> None:
        words = ("exec", "create", agent.id, "--idempotency-key", "k")
        first, second = cli.out(*words), cli.out(*words)
        short = first.split()[1]
        assert first.startswith(f"created {short} (running); follow")
        assert second == (
            f"found {short} (running), created earlier with this key; "
            f"follow with 'rebuno exec watch {short}'\n"
        )

    def test_a_repeat_with_another_input(self, cli: Cli, agent: FakeAgent) -> None:
        key = ("--idempotency-key", "k")
        words = ("exec", "create", agent.id)
        warning = b"warning: this input was not used: "
        warning += b"the run that was created with this key has another\n"
        cli.out(*words, '{"a": 1, "b": [2]}', *key)
        cli.out(*words, '{"b":[2],"a":1}', *key)
        for options in ((), ("--json",)):
            for other in (['{"a": 2, "b": [2]}'], []):
                done = cli.run(*words, *other, *key, *options)
                assert (done.returncode, done.stderr) == (0, warning), done

    @pytest.mark.parametrize("way", ["argument", "stdin"])
    def test_input_is_sent_as_it_is(self, cli: Cli, agent: FakeAgent, way: str) -> None:
        text = '{ "n": 1.00e0, "s":"\\u00e9\u00e9", "a" : [ ] }'
        given = text if way == "argument" else "-"
        made = cli.run("exec", "create", agent.id, given, "--json", stdin=text.encode())
        identity = json.loads(made.stdout)["id"]
        answer = cli.kernel.client().get(f"/v0/executions/{identity}").expect(200)
        assert text.encode() in answer.body

    def test_options(self, cli: Cli, agent: FakeAgent) -> None:
        words = ("exec", "create", agent.id, "-5", "--idempotency-key=k", "--on-behalf-of", "zoe")
        first, second = cli.json(*words), cli.json(*words)
        assert first["id"] == second["id"]
        assert (first["on_behalf_of"], first["idempotency_key"], first["input"]) == ("zoe", "k", -5)
        assert cli.json("exec", "create", agent.id)["input"] is None

    def test_bad_json_never_leaves(self, cli: Cli, agent: FakeAgent) -> None:
        error = cli.error(
            "exec", "create", agent.id, '{"a":\n nope}', code=2, REBUNO_URL="http://x.invalid"
        )
        assert "line 2, column 2" in error
        error = cli.error("exec", "create", agent.id, "-", code=2, stdin=b"")
        assert error.startswith("error: standard input: invalid JSON")

    def test_unknown_agent(self, cli: Cli) -> None:
        assert cli.error("exec", "create", "nobody") == (
            "error: no such agent \"nobody\": add it with 'rebuno agent add MANIFEST'\n"
        )

    def test_watch(self, cli: Cli, agent: FakeAgent, follow: Follow) -> None:
        watch = follow(cli, "exec", "create", agent.id, "--watch", "--json")
        created = json.loads(watch.wait_for(agent.id))
        run = agent.take_attempt(created["id"])
        run.complete({"x": 1}).expect(204)
        assert watch.ended() == 0
        events = [json.loads(line) for line in watch.lines[1:]]
        assert [e["event_seq"] for e in events] == list(range(1, len(events) + 1))
        assert "execution.completed" in [e["type"] for e in events]


class TestShow:
    def test_ls(self, cli: Cli, agent: FakeAgent) -> None:
        ids = [cli.json("exec", "create", agent.id)["id"] for _ in range(3)]
        assert cli.out("exec", "cancel", ids[0]) == f"cancelled {ids[0][:SHORT]}\n"
        table = rows(cli.out("exec", "ls", "--agent", agent.id))
        assert table[0] == ["ID", "AGENT", "STATUS", "AGE", "DETAIL"]
        assert [row[0] for row in table[1:]] == [i[:SHORT] for i in reversed(ids)]
        assert table[3][1:3] + table[3][4:] == [agent.id, "cancelled", "client_cancelled"]
        listed = cli.json("exec", "ls", "--agent", agent.id, "--status=running")
        assert [e["id"] for e in listed["executions"]] == ids[:0:-1]
        listed = cli.json("exec", "ls", "--agent", agent.id, "--limit", "1")
        assert len(listed["executions"]) == 1 and listed["next_cursor"]

    def test_ls_knows_the_statuses(self, cli: Cli) -> None:
        error = cli.error("exec", "ls", "--status", "nope", code=2, REBUNO_URL="http://x.invalid")
        assert error.startswith(
            "error: --status: expected one of pending, running, blocked, completed, failed, "
            'cancelled, not "nope"\n'
        )

    def test_ls_goes_past_one_page(self, cli: Cli, agent: FakeAgent) -> None:
        client = cli.kernel.client()
        ids = {client.create(agent.id)["id"] for _ in range(205)}
        listed = cli.json("exec", "ls", "--agent", agent.id, "--limit", "1000")
        assert {e["id"] for e in listed["executions"]} == ids
        assert len(listed["executions"]) == 205 and "next_cursor" not in listed

    def test_get_by_prefix(self, cli: Cli, agent: FakeAgent) -> None:
        one, two = (cli.json("exec", "create", agent.id)["id"] for _ in range(2))
        for given in (one, one[:SHORT], one[:-1], one.upper()):
            assert cli.json("exec", "get", given)["id"] == one
        shown = rows(cli.out("exec", "get", one))
        assert ["id", one] in shown and ["agent", agent.id] in shown
        common = os.path.commonprefix([one, two])
        error = cli.error("exec", "get", common)
        assert error.startswith(f"error: '{common}' is the beginning of more than one")
        assert one in error and two in error
        assert cli.error("exec", "get", "fff") == "error: no execution's id begins with 'fff'\n"
        assert "is no execution's id" in cli.error("exec", "get", "fff/../agents")
        assert "(not_found)" in cli.error("exec", "get", "0" * 8 + one[8:])

    def test_steps_and_events(self, cli: Cli, agent: FakeAgent) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        run = agent.take_attempt(identity)
        run.record("search", {"q": 1}, {"big": "result"})
        run.record("search", {"q": 1})
        run.fail_step(run.proceed("rm"), {"message": "no \x1b[2J\nluck"}).expect(200)
        run.proceed("slow", {"text": "x" * 5000}, kind="local")
        table = rows(cli.out("exec", "steps", identity))
        assert table[0] == ["KIND", "TARGET", "ARGS", "STATUS", "DURATION", "ERROR"]
        assert table[1][:4] == ["tool_call", "search", '{"q":1}', "succeeded"]
        assert table[2][:5] == ["tool_call", "search", "#2", '{"q":1}', "succeeded"]
        assert table[3][:2] == ["tool_call", "rm"] and "failed" in table[3]
        assert table[3][-2:] == ["no", "\\x1b[2J\\nluck"]
        assert table[4][:3] == ["local", "slow", '{"text":"' + "x" * 22 + "…"]
        steps = cli.json("exec", "steps", identity)
        assert steps == cli.kernel.client().steps(identity)
        lines = cli.out("exec", "events", identity).splitlines()
        events = cli.json("exec", "events", identity)
        assert events == cli.kernel.client().events(identity)
        assert len(lines) == len(events)
        assert all(e["type"] in line for e, line in zip(events, lines, strict=True))

    def test_long_logs_are_paged(self, cli: Cli, agent: FakeAgent) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        run = agent.take_attempt(identity)
        for n in range(205):
            run.record("x", n)
        assert len(cli.json("exec", "steps", identity)) == 205
        events = cli.json("exec", "events", identity)
        assert [e["event_seq"] for e in events] == list(range(1, len(events) + 1))
        assert len(events) >= 205 * 4

    def test_a_terminal_gets_colours(self, cli: Cli, agent: FakeAgent) -> None:
        cli.out("exec", "create", agent.id)
        shell = f"{BINARY} exec ls --agent {agent.id}"

        def on_terminal(**env: str) -> str:
            done = subprocess.run(
                ["script", "-qec", shell, "/dev/null"],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=cli.environment({"TERM": "xterm", "NO_COLOR": None, **env}),
                timeout=COMMAND_S,
            )
            return done.stdout.decode()

        os.environ.pop("NO_COLOR", None)
        assert "\x1b[33mrunning\x1b[0m" in on_terminal()
        assert "\x1b" not in on_terminal(NO_COLOR="1")
        assert "\x1b" not in on_terminal(TERM="dumb")


class TestWatch:
    def test_completed(self, cli: Cli, agent: FakeAgent, follow: Follow) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        watch = follow(cli, "exec", "watch", identity[:SHORT])
        run = agent.take_attempt(identity)
        open_id = run.proceed("search", 1)
        run.record("other", 2)
        watch.wait_for("step.succeeded")
        later = run.released()
        watch.wait_for("the agent starts over; 1 recorded step will replay")
        assert later.proceed("search", 1) == open_id
        watch.wait_for("tool_call search  executed again (run 2)")
        later.complete_step(open_id).expect(200)
        later.complete({"ship": "ped"}).expect(204)
        assert watch.ended() == 0
        assert watch.lines[-1].startswith("completed after ")
        assert watch.lines[-1].endswith(': {"ship": "ped"}\n')
        assert watch.errors == []

    def test_failed(self, cli: Cli, agent: FakeAgent) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        agent.take_attempt(identity).fail("agent_error: \x1b]0;x\x07").expect(204)
        out = cli.out("exec", "watch", identity, code=1)
        assert out.splitlines()[-1].startswith("failed after ")
        assert out.endswith(": agent_error: \\x1b]0;x\\x07\n")

    def test_cancelled(self, cli: Cli, agent: FakeAgent, follow: Follow) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        watch = follow(cli, "exec", "watch", identity)
        watch.wait_for("execution.started")
        cli.out("exec", "cancel", identity)
        assert watch.ended() == 1
        assert watch.lines[-1].endswith(": client_cancelled\n")

    def test_interrupt_is_quiet(self, cli: Cli, agent: FakeAgent, follow: Follow) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        watch = follow(cli, "exec", "watch", identity)
        watch.wait_for("execution.started")
        watch.process.send_signal(signal.SIGINT)
        assert watch.ended() == 130
        assert watch.errors == []

    @pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
    def test_outlives_the_kernel(
        self, new_kernel: NewKernel, new_agent: NewAgent, follow: Follow, tmp_path: Path, kill: bool
    ) -> None:
        kernel = new_kernel()
        agent, cli = new_agent(kernel), Cli(kernel, tmp_path)
        identity = cli.json("exec", "create", agent.id)["id"]
        watch = follow(cli, "exec", "watch", identity, "--json")
        run = agent.take_attempt(identity)
        run.record("before")
        watch.wait_for("step.succeeded")
        kernel.restart(kill=kill)
        run.record("after")
        run.complete().expect(204)
        assert watch.ended() == 0
        assert len(watch.errors) == 1 and "waiting for the kernel" in watch.errors[0]
        events = [json.loads(line) for line in watch.lines]
        assert [e["event_seq"] for e in events] == list(range(1, len(events) + 1))


class TestSilence:
    """An agent that says nothing: a terminal's reader is told what the run waits for."""

    def watch(self, cli: Cli, identity: str, shell: str) -> str:
        """What a terminal shows in the first seconds."""
        done = subprocess.run(
            ["script", "-qec", f"timeout 9 {BINARY} exec watch {identity} {shell}", "/dev/null"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=cli.environment({"TERM": "xterm", "NO_COLOR": "1"}),
            timeout=COMMAND_S,
        )
        return done.stdout.decode()

    def test_is_explained_once(self, cli: Cli, agent: FakeAgent) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        agent.take_attempt(identity)
        told = self.watch(cli, identity, "")
        line = "waiting for the agent; if it is gone, the run is delivered again when its lease "
        assert told.count(line + "ends, in ") == 1 and told.count("waiting for") == 1

    def test_is_for_terminals(self, cli: Cli, agent: FakeAgent) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        agent.take_attempt(identity)
        told = self.watch(cli, identity, f"2> {cli.folder}/errors")
        assert "dispatch.acked" in told and "waiting" not in told
        assert (cli.folder / "errors").read_text() == ""


class TestErrors:
    def test_https_to_plain_http(self, cli: Cli) -> None:
        url = cli.kernel.url.replace("http:", "https:")
        nobody = "00000000-0000-7000-8000-000000000000"
        for words in (["agent", "ls"], ["exec", "watch", nobody]):
            error = cli.error(*words, REBUNO_URL=url)
            assert url in error and error.endswith("; does it speak plain http?\n")

    def test_no_kernel(self, cli: Cli) -> None:
        nobody = "00000000-0000-7000-8000-000000000000"
        for words in (["agent", "ls"], ["exec", "watch", nobody], ["exec", "get", "0"]):
            assert cli.error(*words, REBUNO_URL="http://127.0.0.1:1/") == (
                "error: cannot reach the kernel at http://127.0.0.1:1: Connection refused; "
                "start one with 'rebuno dev', or say with --url or REBUNO_URL where it is\n"
            )

    def test_credentials(self, cli: Cli) -> None:
        error = cli.error("agent", "ls", REBUNO_API_KEY=None)
        assert "(unauthorized)" in error and "REBUNO_API_KEY" in error
        error = cli.error("agent", "ls", REBUNO_API_KEY="wrong")
        assert error.endswith("(unauthorized); it came from REBUNO_API_KEY\n")
        error = cli.error("agent", "ls", code=2, REBUNO_API_KEY="two\nlines")
        assert "control characters" in error and "two" not in error

    def test_url_flag_wins(self, cli: Cli, agent: FakeAgent) -> None:
        cli.out("agent", "ls", "--url", cli.kernel.url, REBUNO_URL="http://127.0.0.1:1")

    def test_full_disk(self, cli: Cli) -> None:
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [BINARY, "help"],
                check=False,
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=COMMAND_S,
            )
        assert done.returncode == 1 and b"No space left" in done.stderr


class TestKernelCommands:
    def test_secrets_leave_the_process_list(self, kernel: Kernel) -> None:
        assert kernel.process is not None
        shown = Path(f"/proc/{kernel.process.pid}/cmdline").read_bytes()
        assert b"--bearer-token" in shown
        assert TOKEN.encode() not in shown

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["server"], "the server needs a database"),
            (["server", "--db-url", "sqlite:///x"], "the server needs a token"),
            (["server", "--bearer-token", "t"], "the server needs a database"),
            (["dev", "--listen-addr", "nowhere"], "--listen-addr: expected an address"),
            (["dev", "--retention", "1h"], "unknown flag --retention"),
        ],
    )
    def test_refuses_to_start(self, cli: Cli, words: list[str], message: str) -> None:
        error = cli.error(*words, code=2)
        assert error.startswith("error: " + message)
        assert error.endswith(f"see 'rebuno {words[0]} --help'\n")

    def test_bad_variable_is_named(self, cli: Cli) -> None:
        error = cli.error("dev", "--memory", code=2, REBUNO_DISPATCH_TIMEOUT="soon")
        assert error.startswith("error: REBUNO_DISPATCH_TIMEOUT: expected a duration")

    def test_manifest_at_start(self, cli: Cli) -> None:
        (cli.folder / "a.yaml").write_text("agents:\n  - id: a\n    policy_file: p\n")
        done = cli.run("dev", "--memory", "--listen-addr", "127.0.0.1:0", "--config", "a.yaml")
        assert done.returncode == 1
        assert b'a.yaml:3:18: agent "a": policy_file: cannot read p: ' in done.stderr
