# SPDX-License-Identifier: Apache-2.0
"""The driver of the E2B example: the published package against the fake, and signatures."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2b import AsyncSandbox, CommandResult, SandboxException, SandboxNotFoundException
from e2b.connection_config import ApiParams
from e2b.sandbox_async.commands.command import Commands
from example import module_of
from fake_e2b import FakeE2B
from github import GitHub
from rebuno.testing import DriverContract, Subject
from signatures import Call, Double, bind
from web import served

driver = module_of("e2b")


@pytest.fixture
def fake(tmp_path: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeE2B]:
    fake = FakeE2B(tmp_path / "e2b", github)
    with served(fake.app()) as fake.url:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        yield fake


def resource(github: GitHub, **options: Any) -> Any:
    return driver.E2BResource(github.repo, github.token, **options)


class TestContract(DriverContract):
    @pytest.fixture(autouse=True)
    def _given(self, fake: FakeE2B, github: GitHub) -> None:
        self.fake = fake
        self.github = github

    def subject(self) -> Subject:
        return Subject(
            driver=lambda: resource(self.github),
            write=lambda handle, name, text: handle.files.write(f"{driver.WORKDIR}/{name}", text),
            read=lambda handle, name: handle.files.read(f"{driver.WORKDIR}/{name}"),
            missing_ref="snapshot-999999:default",
            discard=lambda handle: handle.sandbox.kill(),
            is_paused=lambda handle: (
                handle.paused and self.fake.history(handle.sandbox.sandbox_id)[-1] == "paused"
            ),
            secrets=[self.github.token, self.github.basic],
        )


async def test_a_refused_checkout_leaves_no_sandbox(fake: FakeE2B, github: GitHub) -> None:
    with pytest.raises(RuntimeError, match=r"no checkout of https://\S+/acme/middle: fatal"):
        await driver.E2BResource(github.repo, "another token").create()
    assert fake.sandboxes == {}


async def test_a_branch_in_the_middle_of_a_merge(fake: FakeE2B, github: GitHub) -> None:
    """What was captured in any state of Git can be restored, and stays in that state."""
    one = resource(github)
    handle, _ = await one.create()
    conflict = (
        "git checkout -q -b other; echo o >f; git add f; git commit -qm o;"
        "git checkout -q -; echo m >f; git add f; git commit -qm m; git merge other || true"
    )
    await handle.commands.run(conflict, cwd=driver.WORKDIR)
    before, branch = await handle.files.read(f"{driver.WORKDIR}/f"), await handle.branch()
    assert "<<<<<<<" in before
    restored, _ = await one.create(await one.checkpoint(handle))
    assert await restored.files.read(f"{driver.WORKDIR}/f") == before
    assert await restored.branch() != branch


async def test_no_branch(fake: FakeE2B, github: GitHub) -> None:
    handle, _ = await resource(github).create()
    await handle.commands.run("git checkout -q --detach", cwd=driver.WORKDIR)
    with pytest.raises(RuntimeError, match="no branch is checked out"):
        await handle.branch()


async def test_open_brings_the_token_of_today(fake: FakeE2B, github: GitHub) -> None:
    _, binding = await resource(github).create()
    assert binding == {"sandbox_id": "isb000001"}
    github.token = "another"
    handle = await resource(github).open(binding)
    await handle.commands.run("git fetch", cwd=driver.WORKDIR)


async def test_open_of_a_lost_sandbox(fake: FakeE2B, github: GitHub) -> None:
    with pytest.raises(SandboxNotFoundException, match="isb000009"):
        await resource(github).open({"sandbox_id": "isb000009"})


async def test_a_failed_capture_of_a_paused_sandbox_leaves_it_paused(
    fake: FakeE2B, github: GitHub
) -> None:
    one = resource(github)
    handle, binding = await one.create()
    await handle.pause()
    fake.fail_next("snapshot", 500)
    with pytest.raises(SandboxException, match="told to fail"):
        await one.checkpoint(handle)
    assert fake.history(binding["sandbox_id"]) == ["running", "paused", "running", "paused"]


async def test_pausing_after_the_time_out(fake: FakeE2B, github: GitHub) -> None:
    handle, binding = await resource(github).create()
    fake.time_out(binding["sandbox_id"])
    await handle.pause()
    assert handle.paused


def test_a_repository_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"owner/name, not 'https://github\.com/a/b'"):
        driver.E2BResource("https://github.com/a/b", "t")


# Without a server: what the driver calls, against the signatures that the package has.
OPTIONS = ApiParams.__annotations__
OF_CLASS = {"create": AsyncSandbox.create, "connect": AsyncSandbox._cls_connect_sandbox}
OF_SANDBOX = {
    name: getattr(AsyncSandbox, name)
    for name in ("create_snapshot", "kill", "pause", "update_network")
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []
    commands = Double(calls, {"run": Commands.run}, {"run": CommandResult("", "b\n", 0, None)})
    sandbox = Double(
        calls,
        OF_SANDBOX,
        {"create_snapshot": SimpleNamespace(snapshot_id="snap:1")},
        options=OPTIONS,
        sandbox_id="isb1",
        commands=commands,
    )
    answers = {"create": sandbox, "connect": sandbox}
    double = Double(calls, OF_CLASS, answers, options=OPTIONS)
    monkeypatch.setattr(driver, "AsyncSandbox", double)
    return calls


async def test_every_call_has_the_form_that_the_package_takes(calls: list[Call]) -> None:
    network = driver.network("t")
    one = driver.E2BResource("a/b", "t", timeout=60)
    handle, binding = await one.create("snap:0")
    await one.open(binding)
    await handle.pause()
    assert await one.checkpoint(handle) == "snap:1"
    named = [(name, given) for name, given in calls if name != "run"]
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    connected = ("connect", {"sandbox_id": "isb1", "timeout": 60})
    assert named == [
        (
            "create",
            {"template": "snap:0", "timeout": 60, "network": network, "lifecycle": lifecycle},
        ),
        connected,
        ("update_network", {"network": network}),
        ("pause", {}),
        connected,
        ("create_snapshot", {}),
        connected,
        ("pause", {}),
    ]
    (setup,) = [given for name, given in calls if name == "run"]
    assert setup["cwd"] == "/home/user"
    assert setup["cmd"].endswith(" ''")  # no URL: the checkout is there


def test_a_double_refuses_what_the_package_would_only_ignore() -> None:
    with pytest.raises(TypeError, match="create has no netwrk"):
        bind(AsyncSandbox.create, (), {"netwrk": {}}, options=OPTIONS)
    with pytest.raises(TypeError, match="on_timeout"):
        bind(Commands.run, ("ls",), {"on_timeout": 1})
