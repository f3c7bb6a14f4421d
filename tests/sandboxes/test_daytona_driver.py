# SPDX-License-Identifier: Apache-2.0
"""The driver of the Daytona example: the published package against the fake, and signatures."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daytona import AsyncDaytona, AsyncSandbox, DaytonaError, SandboxState
from daytona._async.filesystem import AsyncFileSystem
from daytona._async.process import AsyncProcess
from daytona._async.secret import AsyncSecretService
from daytona._async.snapshot import AsyncSnapshotService
from daytona_api_client_async.exceptions import ConflictException
from example import module_of
from fake_daytona import FakeDaytona
from github import GitHub
from rebuno import CheckpointUnavailable
from rebuno.testing import DriverContract, Subject
from signatures import Call, Double
from web import served

driver = module_of("daytona")


@pytest.fixture
def fake(tmp_path: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaytona]:
    fake = FakeDaytona(tmp_path / "daytona", github)
    with served(fake.app()) as fake.url:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        yield fake


def resource(github: GitHub) -> Any:
    return driver.DaytonaResource(github.repo, github.token)


class TestContract(DriverContract):
    @pytest.fixture(autouse=True)
    def _given(self, fake: FakeDaytona, github: GitHub) -> None:
        self.fake = fake
        self.github = github

    def subject(self) -> Subject:
        async def read(handle: Any, name: str) -> str:
            return str((await handle.fs.download_file(f"{driver.WORKDIR}/{name}")).decode())

        return Subject(
            driver=lambda: resource(self.github),
            write=lambda handle, name, text: handle.fs.upload_file(
                text.encode(), f"{driver.WORKDIR}/{name}"
            ),
            read=read,
            missing_ref="rebuno-0",
            discard=lambda handle: handle.sandbox.delete(),
            is_paused=lambda handle: (
                handle.paused and self.fake.history(handle.sandbox.id)[-1] == "stopped"
            ),
            secrets=[self.github.token, self.github.basic],
        )


async def test_the_secret_holds_the_token_for_github_only(
    fake: FakeDaytona, github: GitHub
) -> None:
    old = fake.add_secret("rebuno-github-old", "old", [])
    await resource(github).create()
    (secret,) = [one for one in fake.secrets.values() if one.name == "rebuno-github"]
    assert (secret.value, secret.hosts) == (github.basic, ["github.com"])
    assert old.value == "old"
    assert fake.named("create")[0]["secrets"] == [{"GITHUB_AUTH": "rebuno-github"}]


async def test_a_secret_that_exists_is_updated(fake: FakeDaytona, github: GitHub) -> None:
    """It is found among others, on a later page; and limited to GitHub, whoever made it."""
    fake.add_secret("rebuno-github-old", "old", [])
    secret = fake.add_secret("rebuno-github", "old", ["*.example.com"])
    await resource(github).create()
    assert (secret.value, secret.hosts) == (github.basic, ["github.com"])
    assert fake.named("create_secret") == []


async def test_another_agent_makes_the_secret_first(fake: FakeDaytona, github: GitHub) -> None:
    fake.before["create_secret"] = lambda: fake.add_secret("rebuno-github", "old", []) and None
    await resource(github).create()
    assert [secret.value for secret in fake.secrets.values()] == [github.basic]


async def test_a_refused_checkout_leaves_no_sandbox(fake: FakeDaytona, github: GitHub) -> None:
    with pytest.raises(RuntimeError, match=r"no checkout of https://\S+/acme/middle: fatal"):
        await driver.DaytonaResource(github.repo, "another token").create()
    assert fake.sandboxes == {}


async def test_a_branch_in_the_middle_of_a_merge(fake: FakeDaytona, github: GitHub) -> None:
    """What was captured in any state of Git can be restored, and stays in that state."""
    one = resource(github)
    handle, _ = await one.create()
    conflict = (
        "git checkout -q -b other; echo o >f; git add f; git commit -qm o;"
        "git checkout -q -; echo m >f; git add f; git commit -qm m; git merge other || true"
    )
    await handle.process.exec(conflict, cwd=driver.WORKDIR)
    before, branch = await handle.fs.download_file(f"{driver.WORKDIR}/f"), await handle.branch()
    assert b"<<<<<<<" in before
    restored, _ = await one.create(await one.checkpoint(handle))
    assert await restored.fs.download_file(f"{driver.WORKDIR}/f") == before
    assert await restored.branch() != branch


async def test_no_branch(fake: FakeDaytona, github: GitHub) -> None:
    handle, _ = await resource(github).create()
    await handle.process.exec("git checkout -q --detach", cwd=driver.WORKDIR)
    with pytest.raises(RuntimeError, match="no branch is checked out"):
        await handle.branch()


async def test_open_brings_the_token_of_today(fake: FakeDaytona, github: GitHub) -> None:
    _, binding = await resource(github).create()
    (sandbox,) = fake.sandboxes
    assert binding == {"sandbox_id": sandbox}
    github.token = "another"
    handle = await resource(github).open(binding)
    result = await handle.process.exec("git fetch", cwd=driver.WORKDIR)
    assert result.exit_code == 0, result.result


@pytest.mark.parametrize("state", ["stopped", "archived", "paused"])
async def test_open_starts_what_rests(fake: FakeDaytona, github: GitHub, state: str) -> None:
    _, binding = await resource(github).create()
    sandbox = fake.sandboxes[binding["sandbox_id"]]
    sandbox.become(state)
    await resource(github).open(binding)
    assert sandbox.history == ["started", state, "started"]


@pytest.mark.parametrize(
    ("through", "to", "starts"),
    [("starting", "started", 0), ("stopping", "stopped", 1), ("snapshotting", "started", 0)],
)
async def test_open_waits_for_what_changes(
    fake: FakeDaytona, github: GitHub, through: str, to: str, starts: int
) -> None:
    _, binding = await resource(github).create()
    sandbox = fake.sandboxes[binding["sandbox_id"]]
    sandbox.begin(through, to)
    sandbox.looks = 3
    await resource(github).open(binding)
    assert sandbox.state == "started"
    assert len(fake.named("start")) == starts


@pytest.mark.parametrize("state", ["error", "build_failed", "destroyed", "destroying"])
async def test_open_of_a_sandbox_that_cannot_start(
    fake: FakeDaytona, github: GitHub, state: str
) -> None:
    _, binding = await resource(github).create()
    sandbox = fake.sandboxes[binding["sandbox_id"]]
    sandbox.become(state)
    sandbox.error_reason = "the disk is full"
    with pytest.raises(driver.SandboxGone, match=f"{sandbox.id} is {state}: the disk is full"):
        await resource(github).open(binding)


async def test_open_of_a_lost_sandbox(fake: FakeDaytona, github: GitHub) -> None:
    with pytest.raises(driver.SandboxGone, match="the sandbox sandbox-0009 is gone"):
        await resource(github).open({"sandbox_id": "sandbox-0009"})


async def test_snapshots_that_are_not_active(fake: FakeDaytona, github: GitHub) -> None:
    one = resource(github)
    handle, _ = await one.create()
    name = await one.checkpoint(handle)
    assert name.startswith("rebuno-")
    fake.snapshot_states[name] = "inactive"
    await one.create(name)
    assert fake.snapshot_states[name] == "active"
    fake.snapshot_states[name] = "error"
    with pytest.raises(CheckpointUnavailable, match=f"{name} is error"):
        await one.create(name)


async def test_a_failed_capture_of_a_stopped_sandbox_leaves_it_stopped(
    fake: FakeDaytona, github: GitHub
) -> None:
    one = resource(github)
    handle, binding = await one.create()
    await handle.pause()
    fake.fail_next("snapshot", 500)
    with pytest.raises(DaytonaError, match="told to fail"):
        await one.checkpoint(handle)
    assert fake.history(binding["sandbox_id"]) == ["started", "stopped", "started", "stopped"]


async def test_a_capture_of_a_sandbox_that_was_idle_for_long(
    fake: FakeDaytona, github: GitHub
) -> None:
    one = resource(github)
    handle, binding = await one.create()
    fake.time_out(binding["sandbox_id"])
    assert await one.checkpoint(handle) in fake.snapshots
    assert fake.history(binding["sandbox_id"]) == ["started", "stopped", "started"]


def test_the_client_is_shared_and_closed_with_the_event_loop(
    fake: FakeDaytona, github: GitHub
) -> None:
    seen: list[AsyncDaytona] = []

    async def use() -> None:
        seen.extend([await driver.client(), await driver.client()])
        await resource(github).create()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(use())
    assert seen[0] is seen[1]
    assert seen[0]._shared_session.session.closed


def test_a_repository_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"owner/name, not 'https://github\.com/a/b'"):
        driver.DaytonaResource("https://github.com/a/b", "t")


# Without a server: what the driver and the tools call, against the signatures that the package has.
OF_SANDBOX = {
    name: getattr(AsyncSandbox, name)
    for name in ("start", "stop", "create_snapshot", "delete", "refresh_data")
}
RAN = SimpleNamespace(exit_code=0, result="b\n")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []
    process = Double(calls, {"exec": AsyncProcess.exec}, {"exec": RAN})
    files = Double(calls, {"upload_files": AsyncFileSystem.upload_files})
    sandbox = Double(
        calls, OF_SANDBOX, id="s1", state=SandboxState.STARTED, process=process, fs=files
    )
    secrets = {name: getattr(AsyncSecretService, name) for name in ("list", "create", "update")}
    nothing = SimpleNamespace(items=[], next_cursor=None)
    taken = ConflictException(status=409)
    snapshots = {"get": AsyncSnapshotService.get, "activate": AsyncSnapshotService.activate}
    found = SimpleNamespace(state="inactive")
    daytona = Double(
        calls,
        {"create": AsyncDaytona.create, "get": AsyncDaytona.get},
        {"create": sandbox, "get": sandbox},
        secret=Double(calls, secrets, {"list": nothing, "create": taken}),
        snapshot=Double(calls, snapshots, {"get": found}),
    )

    async def client() -> Any:
        return daytona

    monkeypatch.setattr(driver, "client", client)
    return calls


async def test_every_call_has_the_form_that_the_package_takes(calls: list[Call]) -> None:
    one = driver.DaytonaResource("a/b", "t")
    handle, binding = await one.create("rebuno-1")
    await one.open(binding)
    await handle.pause()
    await one.checkpoint(handle)
    assert [name for name, _ in calls] == [
        *("get", "activate"),  # the snapshot
        *("list", "create", "list"),  # the secret, which another agent made first
        *("create", "exec", "exec"),
        *("list", "create", "list", "get"),
        "stop",
        *("refresh_data", "create_snapshot", "stop"),
    ]
    created = [given for name, given in calls if name == "create"][1]
    assert created["params"].snapshot == "rebuno-1"
    assert created["params"].secrets == {"GITHUB_AUTH": "rebuno-github"}

    configured, setup = [given["command"] for name, given in calls if name == "exec"]
    assert configured == (
        "git config --global http.https://github.com/.extraheader"
        ' "Authorization: Basic $GITHUB_AUTH"'
    )
    assert setup.endswith(" ''")  # no URL: the checkout is there
