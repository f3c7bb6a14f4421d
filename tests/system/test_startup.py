"""Starting: what is refused, and what must never show."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import FakeAgent, Kernel
from harness.kernel import BINARY, TOKEN

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]

BAD_VALUES = {
    "REBUNO_DISPATCH_MAX_ATTEMPTS": "many",
    "REBUNO_DISPATCH_TIMEOUT": "30 parsecs",
    "REBUNO_DISPATCH_CONCURRENCY": "-1",
    "REBUNO_DISPATCH_LEASE_TIMEOUT": "soon",
    "REBUNO_DEADLINE_TIMEOUT": "x",
    "REBUNO_DEADLINE_CHECK_INTERVAL": "",
    "REBUNO_CLEANUP_INTERVAL": "10",
    "REBUNO_RETENTION": "a month",
    "REBUNO_MAX_BODY_BYTES": "10MB?",
    "REBUNO_WEBHOOK_PRIVATE": "maybe",
    "REBUNO_DB_MAX_CONNS": "0.5",
    "REBUNO_LOG_LEVEL": "loud",
    "REBUNO_LOG_FORMAT": "xml",
    "REBUNO_LISTEN_ADDR": "nowhere",
}


def rebuno(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end, which must come."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
    return subprocess.run(
        [str(BINARY), *words],
        env={**inherited, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=20,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, v in BAD_VALUES.items() if v])
def test_bad_value_is_named(name: str, value: str, tmp_path: Path) -> None:
    words = ("server", "--db-url", f"sqlite:///{tmp_path / 'x.db'}", "--bearer-token", "t")
    done = rebuno(*words, env={"REBUNO_LISTEN_ADDR": "127.0.0.1:0", name: value}, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert name in done.stderr
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["--db-url", "sqlite:///x.db"], "token"),
        (["--bearer-token", "t"], "db-url"),
        ([], "db-url"),
        (["--db-url", "mysql://x/y", "--bearer-token", "t"], "db-url"),
        (["--db-url", "sqlite:///x.db", "--bearer-token", ""], "token"),
        (["--db-url", "sqlite:///x.db", "--bearer-token", "t", "--nonsense"], "nonsense"),
    ],
)
def test_server_needs_its_settings(words: list[str], missing: str, tmp_path: Path) -> None:
    done = rebuno("server", *words, "--listen-addr", "127.0.0.1:0", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert missing in done.stderr.lower()
    assert not (tmp_path / "x.db").exists()


def test_port_in_use(launch: NewKernel, tmp_path: Path) -> None:
    first = launch(database_url=f"sqlite:///{tmp_path / 'a.db'}")
    url = f"sqlite:///{tmp_path / 'b.db'}"
    words = ("server", "--db-url", url, "--bearer-token", "t")
    done = rebuno(*words, "--listen-addr", f"127.0.0.1:{first.port}", cwd=tmp_path)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{first.port}: another program listens there" in done.stderr
    first.client().get("/v0/health").expect(200)


def test_settings_from_the_environment(tmp_path: Path, launch: NewKernel) -> None:
    kernel = launch(mode="dev", args=["--memory"], env={"REBUNO_BEARER_TOKEN": "from-env"})
    kernel.client(token="from-env").get("/v0/agents").expect(200)
    kernel.client(token="another").get("/v0/agents").expect(401)


def test_token_from_a_file(launch: NewKernel, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-a-file\n")
    kernel = launch(mode="dev", args=["--memory", "--bearer-token-file", str(path)])
    kernel.client(token="from-a-file").get("/v0/agents").expect(200)
    kernel.client(token=TOKEN).get("/v0/agents").expect(401)


def test_dev_says_which_agents_there_are(launch: NewKernel, tmp_path: Path) -> None:
    """None only when there is none: a database may have some from before."""
    kernel = launch(mode="dev")
    reach = f" --url http://127.0.0.1:{kernel.port}"
    assert f"  no agents yet: add some with 'rebuno agent add MANIFEST{reach}'" in kernel.log_text()
    for name in ("one", "two"):
        agent = {"id": name, "webhook_url": "http://127.0.0.1:1/", "secret": "abc"}
        kernel.client(token=None).post("/v0/agents", agent).expect(201)
    kernel.restart()
    assert "no agents" not in kernel.log_text()
    assert f"  agents    2, from before: rebuno agent ls{reach}\n" in kernel.log_text()

    manifest = tmp_path / "agents.yaml"
    manifest.write_text("agents: [{id: m, webhook_url: 'http://127.0.0.1:1/', secret: abc}]\n")
    kernel.stop()
    kernel.args = ["--config", str(manifest)]
    kernel.start()
    assert f"  try       rebuno exec create m INPUT --watch{reach}   (" in kernel.log_text()


def test_secrets_do_not_show(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    """Neither in the process list nor in the log, at the most talkative level."""
    kernel = new_kernel(env={"REBUNO_LOG_LEVEL": "debug"})
    agent = new_agent(kernel, secret="agent-secret-value")
    execution = kernel.client().create(agent.id, input={"private": "input-value"})
    run = agent.take_attempt(execution["id"])
    run.record("x", {"private": "argument-value"}, {"private": "result-value"})
    run.fail_step(run.proceed("y"), {"message": "error-value"}).expect(200)
    run.complete({"private": "output-value"}).expect(204)
    kernel.client(token="wrong-token-value").get("/v0/agents").expect(401)
    assert kernel.process is not None
    command_line = Path(f"/proc/{kernel.process.pid}/cmdline").read_bytes()
    assert TOKEN.encode() not in command_line
    log = kernel.log_text()
    assert log
    for secret in (TOKEN, "agent-secret-value", "wrong-token-value"):
        assert secret not in log
    for payload in ("input-value", "argument-value", "result-value", "error-value", "output-value"):
        assert payload not in log


def test_log_can_be_json(launch: NewKernel) -> None:
    import json

    kernel = launch(mode="dev", args=["--memory"], env={"REBUNO_LOG_FORMAT": "json"})
    kernel.client(token=None).get("/v0/agents").expect(200)
    kernel.stop()
    lines = [line for line in kernel.log_text().splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert isinstance(json.loads(line), dict)
