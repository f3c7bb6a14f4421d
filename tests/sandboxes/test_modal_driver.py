# SPDX-License-Identifier: Apache-2.0
"""The driver of the Modal example: the published package against the fake, calls by signature."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import modal
import modal.experimental
import pytest
from example import module_of
from fake_modal import TOKEN_SECRET, FakeModal, served
from github import GitHub, local_github
from grpclib import Status
from modal.exception import NotFoundError, PermissionDeniedError
from rebuno import CheckpointUnavailable
from rebuno.testing import DriverContract, Subject
from signatures import Call, Double, bind

driver = module_of("modal")


# The package keeps one connection for all of a process, so one fake serves all of this file.
@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitHub]:
    with local_github(tmp_path_factory.mktemp("github")) as github:
        yield github


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, hub: GitHub) -> Iterator[FakeModal]:
    fake = FakeModal(tmp_path_factory.mktemp("modal"), hub)
    with served(fake), pytest.MonkeyPatch.context() as patch:
        for name, value in fake.env.items():
            patch.setenv(name, value)
        yield fake


def resource(github: GitHub, token: str = "") -> Any:
    return driver.ModalResource(github.repo, token or github.token)


async def run(handle: Any, command: str, timeout: int = 60) -> tuple[int, str]:
    process = await handle.exec.aio("bash", "-c", command, workdir=driver.WORKDIR, timeout=timeout)
    output = await process.stdout.read.aio() + await process.stderr.read.aio()
    return await process.wait.aio(), output


async def read(handle: Any, name: str) -> str:
    return str(await handle.filesystem.read_text.aio(f"{driver.WORKDIR}/{name}"))


class TestContract(DriverContract):
    @pytest.fixture(autouse=True)
    def _given(self, fake: FakeModal, hub: GitHub) -> None:
        self.github = hub

    def subject(self) -> Subject:
        async def write(handle: Any, name: str, text: str) -> None:
            await handle.filesystem.write_text.aio(text, f"{driver.WORKDIR}/{name}")

        return Subject(
            driver=lambda: resource(self.github),
            write=write,
            read=read,
            missing_ref="im-that-is-gone",
            discard=lambda handle: handle.sandbox.terminate.aio(),
            secrets=[self.github.token, self.github.basic, TOKEN_SECRET],
        )


async def test_a_sandbox_lives_for_an_hour(fake: FakeModal, hub: GitHub) -> None:
    _, binding = await resource(hub).create()
    assert fake.boxes[binding["sandbox_id"]].timeout == 3600


async def test_a_refused_checkout_leaves_no_sandbox(fake: FakeModal, hub: GitHub) -> None:
    with pytest.raises(RuntimeError, match=r"no checkout of https://github.com/acme/middle: fatal"):
        await resource(hub, "another token").create()
    assert list(fake.boxes.values())[-1].ended


async def test_a_branch_in_the_middle_of_a_merge(fake: FakeModal, hub: GitHub) -> None:
    """What was captured in any state of Git can be restored, and stays in that state."""
    one = resource(hub)
    handle, _ = await one.create()
    conflict = (
        "git checkout -q -b other; echo o >f; git add f; git commit -qm o;"
        "git checkout -q -; echo m >f; git add f; git commit -qm m; git merge other || true"
    )
    await run(handle, conflict)
    before, branch = await read(handle, "f"), await handle.branch()
    assert "<<<<<<<" in before
    restored, _ = await one.create(await one.checkpoint(handle))
    assert await read(restored, "f") == before
    assert await restored.branch() != branch


async def test_no_branch(fake: FakeModal, hub: GitHub) -> None:
    handle, _ = await resource(hub).create()
    await run(handle, "git checkout -q --detach")
    with pytest.raises(RuntimeError, match="no branch is checked out"):
        await handle.branch()


async def test_open_brings_the_token_of_today(
    fake: FakeModal, hub: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, binding = await resource(hub).create()
    assert await run(handle, "git fetch") == (0, "")
    monkeypatch.setattr(hub, "token", "another")
    assert (await run(handle, "git fetch"))[0] != 0
    handle = await resource(hub).open(binding)
    assert await run(handle, "git fetch") == (0, "")


async def test_each_token_has_a_secret_of_its_own(fake: FakeModal, hub: GitHub) -> None:
    before = len(fake.secrets)
    for token in ("one", "two", "one"):
        await driver.outbound_policy(token)
    assert len(fake.secrets) == before + 2
    assert not [name for name in fake.secrets if "one" in name or "two" in name]


async def test_a_snapshot_does_not_expire(fake: FakeModal, hub: GitHub) -> None:
    one = resource(hub)
    handle, _ = await one.create()
    reference = await one.checkpoint(handle)
    assert reference in fake.snapshots
    assert fake.named("TaskSnapshotFilesystem")[-1].ttl_seconds == -1  # a default is 30 days


async def test_a_command_over_its_time(fake: FakeModal, hub: GitHub) -> None:
    """It is the package that stops waiting; the tool says -1."""
    handle, _ = await resource(hub).create()
    began = time.monotonic()
    assert await run(handle, "sleep 60", timeout=1) in ((-1, ""), (137, ""))
    assert time.monotonic() - began < 30


async def test_open_of_what_is_over(fake: FakeModal, hub: GitHub) -> None:
    _, binding = await resource(hub).create()
    fake.time_out(binding["sandbox_id"])
    with pytest.raises(driver.SandboxGone, match="has ended, after its hour"):
        await resource(hub).open(binding)
    fake.lose(binding["sandbox_id"])
    with pytest.raises(driver.SandboxGone, match=f"{binding['sandbox_id']} is gone"):
        await resource(hub).open(binding)


async def test_a_missing_snapshot(fake: FakeModal, hub: GitHub) -> None:
    before = len(fake.boxes)
    with pytest.raises(CheckpointUnavailable, match="the snapshot im-none is gone"):
        await resource(hub).create("im-none")
    assert len(fake.boxes) == before


async def test_another_failure_is_no_missing_snapshot(fake: FakeModal, hub: GitHub) -> None:
    one = resource(hub)
    reference = await one.checkpoint((await one.create())[0])
    fake.fail_next("SandboxCreateV2", Status.PERMISSION_DENIED.value)
    with pytest.raises(PermissionDeniedError, match="told to fail"):
        await one.create(reference)


async def test_what_is_not_found_without_a_snapshot(fake: FakeModal, hub: GitHub) -> None:
    fake.fail_next("SandboxCreateV2", Status.NOT_FOUND.value)
    with pytest.raises(NotFoundError, match="told to fail"):
        await resource(hub).create()


def test_a_repository_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"owner/name, not 'https://github.com/a/b'"):
        driver.ModalResource("https://github.com/a/b", "t")


# Without a server: what the driver calls, against the signatures that the package has.
class Aio:
    """Methods of a double as Modal has them: `.aio` is the asynchronous form."""

    def __init__(self, double: Double, **attributes: Any) -> None:
        self._double = double
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(aio=getattr(self._double, name))


OF_SANDBOX = {
    name: getattr(modal.Sandbox, name).aio
    for name in ("exec", "poll", "terminate", "snapshot_filesystem")
} | {"_experimental_update_outbound_policy": modal.Sandbox._experimental_update_outbound_policy.aio}


def doubles(monkeypatch: pytest.MonkeyPatch, calls: list[Call], exit_code: int = 0) -> Any:
    """A driver whose sandboxes only note what they are asked for."""

    def stream(text: str) -> Any:
        return Aio(Double([], {"read": lambda: None}, {"read": text}))

    ran = Double([], {"wait": lambda: None}, {"wait": exit_code})
    process = Aio(ran, stdout=stream("b\n"), stderr=stream("no"))
    own = {"exec": process, "snapshot_filesystem": SimpleNamespace(object_id="im-1")}
    sandbox = Aio(Double(calls, OF_SANDBOX, own), object_id="sb-1", filesystem=None)
    of_class = {"create": modal.Sandbox.create.aio, "from_id": modal.Sandbox.from_id.aio}
    known = {"create": sandbox, "from_id": sandbox}
    secrets = Double(calls, {"create": modal.Secret.objects.create.aio})
    double = SimpleNamespace(
        App=Aio(Double(calls, {"lookup": modal.App.lookup.aio}, {"lookup": "app"})),
        Image=modal.Image,
        Sandbox=Aio(Double(calls, of_class, known)),
        Secret=SimpleNamespace(objects=Aio(secrets), from_name=modal.Secret.from_name),
        experimental=modal.experimental,
    )
    monkeypatch.setattr(driver, "modal", double)
    return driver.ModalResource("a/b", "t")


async def test_every_call_has_the_form_that_the_package_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Call] = []
    one = doubles(monkeypatch, calls)
    handle, binding = await one.create("im-0")
    assert binding == {"sandbox_id": "sb-1"}
    await one.open(binding)
    assert await handle.branch() == "b"
    assert await one.checkpoint(handle) == "im-1"
    assert [name for name, _ in calls] == [
        *("lookup", "create", "create", "exec"),
        *("create", "from_id", "poll", "_experimental_update_outbound_policy"),
        *("exec", "snapshot_filesystem"),
    ]
    lookup, secret, sandbox, setup = (given for _, given in calls[:4])
    assert lookup == {"name": "rebuno-sandbox", "create_if_missing": True}
    assert secret["env_dict"] == {"GITHUB_BASIC": "eC1hY2Nlc3MtdG9rZW46dA=="}
    assert secret["allow_existing"] is True
    assert (sandbox["app"], sandbox["timeout"]) == ("app", 3600)
    assert setup["args"][-1] == ""  # no URL: the checkout is there
    assert calls[-1][1] == {"timeout": 300, "ttl": None}


async def test_a_new_sandbox_without_a_branch_is_terminated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Call] = []
    with pytest.raises(RuntimeError, match=r"sb-1: no checkout of https://github.com/a/b: no"):
        await doubles(monkeypatch, calls, exit_code=1).create()
    assert calls[-1] == ("terminate", {})


async def test_a_sandbox_that_ends_while_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    one = doubles(monkeypatch, [])
    handle, binding = await one.create("im-0")
    forever = SimpleNamespace(aio=lambda policy: asyncio.Event().wait())
    handle.sandbox._experimental_update_outbound_policy = forever
    monkeypatch.setattr(driver, "OPEN_SECONDS", 0.1)
    with pytest.raises(driver.SandboxGone, match="the sandbox sb-1 does not answer"):
        await one.open(binding)


async def test_an_app_that_is_not_found_is_no_missing_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = doubles(monkeypatch, [])
    lookup = Double([], {"lookup": modal.App.lookup.aio}, {"lookup": NotFoundError("no such app")})
    monkeypatch.setattr(driver.modal, "App", Aio(lookup))
    with pytest.raises(NotFoundError, match="no such app"):
        await one.create("im-0")


def test_a_double_refuses_what_the_package_refuses() -> None:
    with pytest.raises(TypeError, match="outbound_polcy"):
        bind(modal.Sandbox.create.aio, (), {"outbound_polcy": None})
    with pytest.raises(TypeError, match="cwd"):
        bind(modal.Sandbox.exec.aio, ("ls",), {"cwd": "/"})
