"""Commands in local sandboxes: what they see and may use up, and that nothing outlives them."""

import asyncio
import hashlib
import logging
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import ISOLATIONS, SMALL, sandbox

from rebuno.sandbox import _bubblewrap, _runner
from rebuno.sandbox.local import Limits, LocalSandbox, SandboxError, Workspace

ETC_PASSWD = Path("/etc/passwd").read_bytes()
MARK = "rebuno-test-mark"  # in the arguments of processes that must not survive


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """With bubblewrap and without."""
    return str(request.param)


def driver_of(tmp_path: Path, isolation: str, **settings: Any) -> LocalSandbox:
    return sandbox(tmp_path, isolation=isolation, **settings)


async def box(tmp_path: Path, isolation: str, **settings: Any) -> Workspace:
    handle, _ = await driver_of(tmp_path, isolation, **settings).create()
    return handle


def alive(mark: str) -> list[int]:
    """The processes whose arguments have the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def until(condition: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A text for the arguments of processes; none may be left when the test ends."""
    text = f"{MARK}-{os.getpid()}-{tmp_path.name}"
    yield text
    assert alive(text) == []


def sleeper(mark: str) -> str:
    """A process that sleeps, ignores SIGTERM, and can be found."""
    code = "import signal, time; signal.signal(15, 1); time.sleep(60)"
    return f"/usr/bin/python3 -c '{code}' {mark}"


async def test_a_command_answers(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    await workspace.write_file("a", "content\n")
    result = await workspace.shell("cat a; echo error >&2; exit 3")
    assert (result.exit_code, result.output) == (3, "content\nerror\n")
    assert not result.timed_out
    assert (await workspace.shell("echo made > new")).exit_code == 0
    assert await workspace.read_file("new") == "made\n"
    assert (await workspace.shell("kill -9 $$")).exit_code == 128 + 9
    assert (await workspace.shell("printf '\\377'; cat")).output == "\ufffd"


async def test_commands_may_run_at_once(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    results = await asyncio.gather(*(workspace.shell(f"echo {n}; sleep 0.2") for n in range(8)))
    assert [result.output for result in results] == [f"{n}\n" for n in range(8)]


async def test_only_a_few_variables_are_passed_on(
    tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REBUNO_AGENT_SECRET", "hunter2")
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/hunter2")
    monkeypatch.setenv("LC_TIME", "C")
    workspace = await box(tmp_path, isolation, env={"CI": "yes"})
    seen = (await workspace.shell("env; cat /proc/*/environ | tr '\\0' '\\n'")).output
    if isolation == "required":
        assert "hunter2" not in seen
    own = (await workspace.shell("env")).output
    assert "hunter2" not in own
    names = {line.partition("=")[0] for line in own.splitlines()}
    assert {"PATH", "HOME", "TMPDIR", "LC_TIME", "CI"} <= names
    allowed = {
        "PATH",
        "HOME",
        "TMPDIR",
        "CI",
        "PWD",
        "SHLVL",
        "_",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
    }
    assert {name for name in names if not name.startswith("LC_")} <= allowed


async def test_home_and_tmp_are_the_commands_own(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    result = await workspace.shell(
        'echo x > "$HOME/h" && echo y > "$TMPDIR/t" && cat "$HOME/h" "$TMPDIR/t"'
    )
    assert result.output == "x\ny\n"
    assert (await workspace.shell('ls -A "$HOME" "$TMPDIR"; cat "$TMPDIR/t"')).exit_code != 0
    assert sorted(path.name for path in (tmp_path / "store" / "aside").iterdir()) == []


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_the_rest_of_the_machine_can_only_be_read(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "beside").write_text("beside")
    workspace = await box(tmp_path, isolation, hidden=["/var/lib"])
    other = await box(tmp_path, isolation)
    shell = workspace.shell
    assert (await shell("pwd")).output == "/workspace\n"
    assert (await shell("sha256sum /etc/passwd")).output.split()[0] == hashlib.sha256(
        ETC_PASSWD
    ).hexdigest()
    for path in ("/x", "/etc/x", "/usr/x", "/home/x", "/dev/x", "/var/x", "/run/x"):
        result = await shell(f"touch {path}")
        assert result.exit_code != 0, path
    for hidden in (tmp_path / "beside", tmp_path / "store", other.path):
        assert (await shell(f"test -e {hidden}")).exit_code == 1, hidden
    assert (await shell(f"ls -A {Path.home()} 2>/dev/null")).output == ""
    assert (await shell("ls -A /home /root /run /var/lib")).output.split() == [
        "/home:",
        "/root:",
        "/run:",
        "/var/lib:",
    ]


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_files_can_be_hidden_too(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation, hidden=["/etc/hostname", "/etc/no-such-file"])
    assert (await workspace.shell("cat /etc/passwd")).exit_code == 0
    result = await workspace.shell("cat /etc/hostname 2>/dev/null")
    assert (result.exit_code, result.output) == (1, "")


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_the_isolation_cannot_be_undone(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    for command in (
        "mount -o remount,rw /usr",
        "mount -o bind /tmp /etc",
        "umount /home",
        "umount -l /run",
        "unshare -Ur true",
        "mknod node c 1 3",
        "chown 12345 .",
        "mount -t tmpfs none /mnt",
    ):
        assert (await workspace.shell(command)).exit_code != 0, command
    caps = (await workspace.shell("grep ^Cap /proc/self/status")).output
    assert {line.split()[1] for line in caps.splitlines()} == {"0" * 16}
    assert "NoNewPrivs:\t1" in (await workspace.shell("cat /proc/self/status")).output


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_there_is_no_network_unless_asked_for(tmp_path: Path, isolation: str) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"reached")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"
        off = await (await box(tmp_path, isolation)).shell(connect)
        on = await (await box(tmp_path, isolation, network=True)).shell(connect)
    assert off.exit_code != 0
    assert "reached" not in off.output
    assert on.output == "reached"


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_other_processes_are_not_to_be_seen(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    result = await workspace.shell("ls -d /proc/[0-9]* | wc -l")
    assert int(result.output) < 8
    assert (await workspace.shell(f"kill -0 {os.getpid()}")).exit_code != 0


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_folders_below_a_home_can_be_shown(tmp_path: Path, isolation: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tool").write_text("a tool")
    workspace = await box(tmp_path, isolation, readable=[tools])
    assert (await workspace.shell(f"cat {tools}/tool")).output == "a tool"
    assert (await workspace.shell(f"touch {tools}/x")).exit_code != 0


async def test_the_time_limit_ends_everything(tmp_path: Path, isolation: str, mark: str) -> None:
    workspace = await box(tmp_path, isolation)
    stubborn = sleeper(mark)
    command = f"trap '' TERM; {stubborn} & setsid {stubborn} & (setsid {stubborn} &) ; {stubborn}"
    began = time.monotonic()
    result = await workspace.shell(f"echo begun; {command}", timeout=1)
    assert time.monotonic() - began < 15
    assert result.timed_out
    assert result.exit_code == 124
    assert result.output.startswith("begun\n")
    assert "longer than 1 seconds" in result.output


async def test_sigterm_comes_first(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    result = await workspace.shell(
        "trap 'echo tidied > tidy; exit' TERM; while :; do sleep 0.05; done", timeout=1
    )
    assert result.timed_out
    assert await workspace.read_file("tidy") == "tidied\n"


async def test_nothing_runs_on_after_a_command(tmp_path: Path, isolation: str, mark: str) -> None:
    workspace = await box(tmp_path, isolation)
    stubborn = sleeper(mark)
    began = time.monotonic()
    result = await workspace.shell(
        f"{stubborn} & (setsid {stubborn} &); nohup {stubborn} & echo ok"
    )
    assert time.monotonic() - began < 15
    assert result.output == "ok\n"
    assert result.exit_code == 0


async def test_a_cancelled_call_ends_its_command(tmp_path: Path, isolation: str, mark: str) -> None:
    workspace = await box(tmp_path, isolation)
    call = asyncio.ensure_future(workspace.shell(f"setsid -w {sleeper(mark)}"))
    await until(lambda: alive(mark))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert alive(mark) == []


async def test_a_pause_ends_commands_and_keeps_files(
    tmp_path: Path, isolation: str, mark: str
) -> None:
    driver = driver_of(tmp_path, isolation)
    workspace, _ = await driver.create()
    await workspace.write_file("a", "one")
    call = asyncio.ensure_future(workspace.shell(sleeper(mark)))
    await until(lambda: alive(mark))
    await workspace.pause()
    assert alive(mark) == []
    assert "paused" in (await call).output
    assert workspace.paused
    restored, _ = await driver.create(await driver.checkpoint(workspace))
    assert workspace.paused
    assert await restored.read_file("a") == "one"
    assert (await workspace.shell("cat a")).output == "one"
    assert not workspace.paused


async def test_a_pause_also_ends_what_is_about_to_start(
    tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await box(tmp_path, isolation)
    begun, go = asyncio.Event(), asyncio.Event()

    async def held_up(work: Any, *args: Any) -> Any:
        begun.set()
        await go.wait()
        return work(*args)

    monkeypatch.setattr(_runner, "in_thread", held_up)
    call = asyncio.ensure_future(workspace.shell("echo > ran"))
    await begun.wait()
    pausing = asyncio.ensure_future(workspace.pause())
    await asyncio.sleep(0)  # it has seen what runs
    go.set()
    await pausing
    result = await call
    assert (result.exit_code, workspace.paused) == (128 + 9, True)
    assert "the workspace was paused" in result.output
    assert not (workspace.path / "ran").exists()


AGENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sandboxes import sandbox

async def main():
    handle, _ = await sandbox(Path(sys.argv[2]), isolation=sys.argv[3]).create()
    await handle.shell(sys.argv[4])

asyncio.run(main())
"""


async def test_a_killed_agent_leaves_nothing_running(
    tmp_path: Path, isolation: str, mark: str
) -> None:
    tests = str(Path(__file__).parent)
    command = f"setsid {sleeper(mark)} & echo > begun; {sleeper(mark)}"
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AGENT, tests, str(tmp_path), isolation, command)
    )
    try:
        await until(lambda: list((tmp_path / "store" / "sandboxes").glob("*/workspace/begun")))
    finally:
        agent.kill()
        await agent.wait()
    await until(lambda: alive(mark) == [])


async def test_output_is_cut_in_the_middle(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    result = await workspace.shell(
        "echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo last"
    )
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("xxx\nlast\n")
    assert SMALL.output_bytes <= len(result.output) < SMALL.output_bytes + 100
    dropped = 50_000_000 + len("first\n\nlast\n") - SMALL.output_bytes
    assert f"\n[{dropped} bytes are left out here]\n" in result.output
    whole = await workspace.shell(f"head -c {SMALL.output_bytes} /dev/zero | tr '\\0' x")
    assert whole.output == "x" * SMALL.output_bytes


async def test_an_endless_flood_ends_with_the_time(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await workspace.shell("yes", timeout=1)
    assert result.timed_out
    assert "bytes are left out here" in result.output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


async def test_a_large_file_is_cut_short(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    result = await workspace.shell("head -c 1073741824 /dev/zero > big; truncate -s 1G other")
    assert result.exit_code != 0
    assert (workspace.path / "big").stat().st_size == SMALL.file_bytes
    assert (workspace.path / "other").stat().st_size <= SMALL.file_bytes


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
async def test_tmp_is_bounded(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        half = SMALL.tmp_bytes // 2
        result = await workspace.shell(
            f"for i in 1 2 3; do head -c {half} /dev/zero > {folder}/$i || exit 7; done"
        )
        assert result.exit_code == 7, folder


# 2^11 processes at most, so that a limit that fails does no harm.
BOMB = "b() { if [ $1 -gt 0 ]; then b $(($1-1)) & b $(($1-1)) & wait; else sleep 30; fi; }; b 10"
LINE = "for i in $(seq 1500); do sleep 30 & done; wait"
LONERS = "for i in $(seq 1500); do setsid sleep 30 & done; wait"


@pytest.mark.parametrize("bomb", [BOMB, LINE, LONERS], ids=["tree", "line", "loners"])
async def test_a_fork_bomb_is_ended(tmp_path: Path, isolation: str, bomb: str) -> None:
    workspace = await box(tmp_path, isolation)
    began = time.monotonic()
    result = await workspace.shell(f"echo {tmp_path.name} > /dev/null; {bomb}")
    assert time.monotonic() - began < 25
    assert f"more than {SMALL.processes} processes" in result.output
    assert not result.timed_out
    assert "could not be ended" not in result.output


async def test_a_busy_but_modest_command_is_left_alone(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    result = await workspace.shell("for i in $(seq 60); do sleep 0.5 & done; wait; echo fine")
    assert result.output == "fine\n"


async def test_the_longest_command(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    longest = "#" * 131064 + "\necho é"
    assert len(longest.encode()) == 131072
    with pytest.raises(SandboxError, match=r"131072 bytes, more than the 131071 .* to a file"):
        await workspace.shell(longest)
    result = await workspace.shell(longest[1:])
    assert (result.exit_code, result.output) == (0, "é\n")


async def test_commands_that_cannot_be_run_say_so(tmp_path: Path, isolation: str) -> None:
    workspace = await box(tmp_path, isolation)
    with pytest.raises(SandboxError, match="null byte"):
        await workspace.shell("echo a\0b")
    with pytest.raises(ValueError, match="positive"):
        await workspace.shell("true", timeout=0)
    assert (await workspace.shell("no-such-program")).exit_code == 127


async def test_without_bubblewrap_it_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _runner._warn.cache_clear()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "rm", "cat"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    workspace = await box(tmp_path, "auto")
    with caplog.at_level(logging.WARNING, "rebuno"):
        for _ in range(2):
            assert (await workspace.shell("echo ran")).output == "ran\n"
    (record,) = caplog.records
    assert "NOT isolated" in record.getMessage()
    assert "bubblewrap is not installed" in record.getMessage()
    with pytest.raises(SandboxError, match="bubblewrap is not installed"):
        await (await box(tmp_path, "required")).shell("echo ran")


async def test_a_bubblewrap_that_does_not_work_is_like_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container that may not make namespaces."""
    _runner._warn.cache_clear()
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = tmp_path / "calls"
    (programs / "bwrap").write_text(
        f"#!/bin/sh\necho call >> {calls}\n"
        '[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit 0\n'
        "echo 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    workspace = await box(tmp_path, "auto")
    with caplog.at_level(logging.WARNING, "rebuno"):
        for _ in range(3):
            assert (await workspace.shell("echo ran")).output == "ran\n"
    assert "No permissions to create new namespace" in caplog.records[0].getMessage()
    assert calls.read_text().split() == ["call", "call"]  # its version, one trial


@pytest.mark.parametrize("isolation", ISOLATIONS[:1])
def test_older_versions_get_the_options_that_they_know(tmp_path: Path, isolation: str) -> None:
    view = _bubblewrap.View(network=False, tmp_bytes=1)
    options = {
        version: _bubblewrap.Bubblewrap("bwrap", version).argv(view, tmp_path, ["true"])
        for version in ((0, 6, 1), (0, 7), (0, 8), (0, 11))
    }
    assert ["--size" in argv for argv in options.values()] == [False, True, True, True]
    assert ["--disable-userns" in argv for argv in options.values()] == [False, False, True, True]
    for argv in options.values():
        assert argv[argv.index("--cap-drop") + 1] == "ALL"


def test_other_isolations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sometimes"):
        sandbox(tmp_path, isolation="sometimes")


def test_the_supervisor_needs_nothing_of_the_package() -> None:
    supervisor = Path(_runner.__file__).with_name("_supervisor.py")
    listing = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); "
        "print([name for name in sys.modules if 'rebuno' in name])"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", listing, str(supervisor)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "[]\n"


def test_limits_have_the_documented_defaults() -> None:
    assert Limits() == Limits(
        seconds=120,
        processes=512,
        file_bytes=512 << 20,
        tmp_bytes=512 << 20,
        output_bytes=64 << 10,
        read_bytes=10 << 20,
    )
