# SPDX-License-Identifier: Apache-2.0
"""The driver of the Vercel example: the published package against the fake, calls by signature."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from example import module_of
from fake_vercel import FakeVercel
from github import GitHub
from rebuno import CheckpointUnavailable
from rebuno.testing import DriverContract, Subject
from signatures import Call, Double, bind
from vercel.sandbox import (
    Sandbox,
    SandboxApiError,
    SandboxClient,
    SandboxServiceOptions,
    SandboxStreamError,
    SnapshotSource,
)
from web import served

driver = module_of("vercel")


@pytest.fixture
def fake(tmp_path: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVercel]:
    fake = FakeVercel(tmp_path / "vercel", github)
    with served(fake.app()) as fake.url:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        yield fake


def resource(fake: FakeVercel, github: GitHub) -> Any:
    client = SandboxClient.create(options=SandboxServiceOptions(base_url=fake.url))
    return driver.VercelResource(github.repo, github.token, client)


async def run(handle: Any, command: str) -> Any:
    words = ["-c", command]
    return await handle.run_process(
        "bash", words, cwd=driver.WORKDIR, kill_after=60, capture_output=True
    )


class TestContract(DriverContract):
    @pytest.fixture(autouse=True)
    def _given(self, fake: FakeVercel, github: GitHub) -> None:
        self.fake = fake
        self.github = github

    def subject(self) -> Subject:
        return Subject(
            driver=lambda: resource(self.fake, self.github),
            write=lambda handle, name, text: handle.fs.write_text(f"{driver.WORKDIR}/{name}", text),
            read=lambda handle, name: handle.fs.read_text(f"{driver.WORKDIR}/{name}"),
            missing_ref="snap_that_is_gone",
            discard=lambda handle: handle.sandbox.destroy(),
            is_paused=lambda handle: (
                handle.paused and not self.fake.boxes[handle.sandbox.name].running
            ),
            secrets=[self.github.token, self.github.basic],
        )


async def test_a_refused_checkout_leaves_no_sandbox(fake: FakeVercel, github: GitHub) -> None:
    one = resource(fake, github)
    github.token = "another token"
    with pytest.raises(RuntimeError, match=r"no checkout of https://github.com/acme/middle: fatal"):
        await one.create()
    assert fake.boxes == {}


async def test_a_branch_in_the_middle_of_a_merge(fake: FakeVercel, github: GitHub) -> None:
    """What was captured in any state of Git can be restored, and stays in that state."""
    one = resource(fake, github)
    handle, _ = await one.create()
    conflict = (
        "git checkout -q -b other; echo o >f; git add f; git commit -qm o;"
        "git checkout -q -; echo m >f; git add f; git commit -qm m; git merge other || true"
    )
    await run(handle, conflict)
    before, branch = await handle.fs.read_text(f"{driver.WORKDIR}/f"), await handle.branch()
    assert "<<<<<<<" in before
    restored, _ = await one.create(await one.checkpoint(handle))
    assert await restored.fs.read_text(f"{driver.WORKDIR}/f") == before
    assert await restored.branch() != branch


async def test_no_branch(fake: FakeVercel, github: GitHub) -> None:
    handle, _ = await resource(fake, github).create()
    await run(handle, "git checkout -q --detach")
    with pytest.raises(RuntimeError, match="no branch is checked out"):
        await handle.branch()


async def test_open_brings_the_token_of_today(fake: FakeVercel, github: GitHub) -> None:
    """Also to the sessions that the package starts by itself, after the time of one is over."""
    _, binding = await resource(fake, github).create()
    assert binding == {"name": "box-1"}
    github.token = "another"
    handle = await resource(fake, github).open(binding)
    assert (await run(handle, "git fetch")).returncode == 0
    fake.time_out("box-1")
    assert (await run(handle, "git fetch")).returncode == 0
    assert fake.boxes["box-1"].starts == 2


async def test_a_checkpoint_keeps_the_token(fake: FakeVercel, github: GitHub) -> None:
    one = resource(fake, github)
    handle, _ = await one.create()
    await one.checkpoint(handle)
    assert fake.named("snapshot") == [{"expiration": 0}]
    assert fake.boxes["box-1"].running
    assert (await run(handle, "git fetch")).returncode == 0


async def test_a_sandbox_that_is_still_stopping(
    fake: FakeVercel, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PAUSE_SECONDS", 0)
    one = resource(fake, github)
    handle, binding = await one.create()
    await handle.pause()
    fake.settle_slowly(3)
    handle = await one.open(binding)
    assert len(fake.named("get")) == 4
    await handle.pause()
    fake.settle_slowly(1_000_000)
    monkeypatch.setattr(driver, "SETTLE_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=r"the sandbox box-1 has not stopped after 0.2 seconds"):
        await one.open(binding)


async def test_open_of_a_lost_sandbox(fake: FakeVercel, github: GitHub) -> None:
    with pytest.raises(driver.SandboxGone, match="the sandbox box-9 is gone"):
        await resource(fake, github).open({"name": "box-9"})


async def test_open_while_the_service_fails(fake: FakeVercel, github: GitHub) -> None:
    _, binding = await resource(fake, github).create()
    fake.fail_next("get", 500)
    with pytest.raises(SandboxApiError, match="told to fail"):
        await resource(fake, github).open(binding)


async def test_a_missing_snapshot_makes_no_sandbox(fake: FakeVercel, github: GitHub) -> None:
    with pytest.raises(CheckpointUnavailable, match="the snapshot snap_9 is gone"):
        await resource(fake, github).create("snap_9")
    assert fake.named("create") == []


async def test_a_failed_capture_of_a_paused_sandbox_leaves_it_paused(
    fake: FakeVercel, github: GitHub
) -> None:
    one = resource(fake, github)
    handle, _ = await one.create()
    await handle.pause()
    fake.fail_next("snapshot", 500)
    with pytest.raises(SandboxApiError, match="told to fail"):
        await one.checkpoint(handle)
    assert handle.paused
    assert fake.history("box-1") == ["running", "stopped", "running", "stopped"]


async def test_pausing_after_the_time_of_a_session(fake: FakeVercel, github: GitHub) -> None:
    handle, binding = await resource(fake, github).create()
    fake.time_out(binding["name"])
    await handle.pause()
    assert handle.paused


async def test_a_command_in_which_the_session_ends(fake: FakeVercel, github: GitHub) -> None:
    handle, _ = await resource(fake, github).create()
    fake.cut_short("sandbox_stopped")
    assert (await run(handle, "git fetch && echo done")).stdout == "done\n"
    assert fake.boxes["box-1"].starts == 2
    fake.cut_short("out_of_memory")
    with pytest.raises(SandboxStreamError, match="the session has ended"):
        await run(handle, "echo done")


async def test_a_service_that_does_not_answer(
    fake: FakeVercel, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = await resource(fake, github).create()
    monkeypatch.setattr(driver, "GRACE_SECONDS", 0)
    fake.command_limit = 2
    with pytest.raises(TimeoutError, match=r"Vercel has not answered after 0.3 seconds"):
        await handle.run_process("sleep", ["60"], kill_after=0.3)


def test_a_repository_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"owner/name, not 'https://github.com/a/b'"):
        driver.VercelResource("https://github.com/a/b", "t")


# Without a server: what the driver calls, against the signatures that the package has.
OF_CLIENT = {
    name: getattr(SandboxClient, name)
    for name in ("create_sandbox", "resume_sandbox", "get_snapshot")
}
OF_SANDBOX = {
    name: getattr(Sandbox, name)
    for name in ("run_process", "snapshot", "stop", "destroy", "update")
}


def doubles(calls: list[Call], returncode: int = 0, **answers: Any) -> Any:
    """A driver whose client and sandboxes only note what they are asked for."""
    snapshot = SimpleNamespace(id="snap_1", status="created")
    ran = SimpleNamespace(returncode=returncode, stdout="b\n", stderr="no")
    own = {"run_process": ran, "snapshot": snapshot} | answers
    sandbox = Double(calls, OF_SANDBOX, own, name="box")
    known = {"create_sandbox": sandbox, "resume_sandbox": sandbox, "get_snapshot": snapshot}
    return driver.VercelResource("a/b", "t", Double(calls, OF_CLIENT, known | answers))


async def test_every_call_has_the_form_that_the_package_takes() -> None:
    calls: list[Call] = []
    one = doubles(calls)
    handle, binding = await one.create("snap_0")
    await one.open(binding)
    assert await handle.branch() == "b"
    await handle.pause()
    assert await one.checkpoint(handle) == "snap_1"
    policy = driver.network_policy("t")
    resumed = [("resume_sandbox", {"name": "box"}), ("update", {"network_policy": policy})]
    assert [call for call in calls if call[0] != "run_process"] == [
        ("get_snapshot", {"snapshot_id": "snap_0"}),
        (
            "create_sandbox",
            {
                "source": SnapshotSource(snapshot_id="snap_0"),
                "execution_time_limit": 600,
                "persistent": True,
                "network_policy": policy,
            },
        ),
        *resumed,
        ("stop", {}),
        *resumed,
        ("snapshot", {"expiration": 0}),
    ]
    setup, _ = [given for name, given in calls if name == "run_process"]
    assert setup["args"][-1] == ""  # no URL: the checkout is there


async def test_a_new_sandbox_without_a_branch_is_destroyed() -> None:
    calls: list[Call] = []
    with pytest.raises(RuntimeError, match=r"box: no checkout of https://github.com/a/b: no"):
        await doubles(calls, returncode=1).create()
    assert calls[-1] == ("destroy", {})


@pytest.mark.parametrize("status", ["deleted", "failed"])
async def test_a_snapshot_that_is_no_more(status: str) -> None:
    gone = SimpleNamespace(id="snap_1", status=status)
    with pytest.raises(CheckpointUnavailable, match=f"the snapshot snap_1 is {status}"):
        await doubles([], get_snapshot=gone).create("snap_1")
    one = doubles([], snapshot=gone)
    handle, _ = await one.create()
    with pytest.raises(RuntimeError, match=f"the snapshot snap_1 is {status}"):
        await one.checkpoint(handle)


async def test_another_failure_of_the_service_is_no_missing_snapshot() -> None:
    error = SandboxApiError(httpx2.Response(500), "out of order")
    with pytest.raises(SandboxApiError, match="out of order"):
        await doubles([], get_snapshot=error).create("snap_1")


def test_a_double_refuses_what_the_package_refuses() -> None:
    with pytest.raises(TypeError, match="create_sandbox has no netwrk"):
        bind(SandboxClient.create_sandbox, (), {"netwrk": {}})
    with pytest.raises(TypeError, match="on_timeout"):
        bind(Sandbox.run_process, ("ls",), {"on_timeout": 1})
