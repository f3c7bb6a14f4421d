"""The contract suite: the local sandbox keeps it, and each rule catches a driver that does not."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandboxes import sandbox

from rebuno import CheckpointUnavailable
from rebuno.sandbox._bubblewrap import find
from rebuno.sandbox._remove import remove
from rebuno.testing import ContractBroken, DriverContract, Subject, _contract, check_driver


class LocalContract(DriverContract):
    """With the local sandbox as the driver."""

    isolation = "off"

    @pytest.fixture(autouse=True)
    def _in_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def subject(self) -> Subject:
        return Subject(
            driver=lambda: sandbox(self.folder, isolation=self.isolation, env={"T": "hunter2"}),
            write=lambda handle, path, text: handle.write_file(path, text),
            read=lambda handle, path: handle.read_file(path),
            missing_ref=f"sha256:{'0' * 64}",
            discard=lambda handle: remove(handle.path.parent),
            is_paused=lambda handle: handle.paused,
            secrets=["hunter2"],
        )


class TestLocalSandbox(LocalContract):
    """Without isolation."""


@pytest.mark.skipif(find()[0] is None, reason="no bubblewrap")
class TestIsolatedSandbox(LocalContract):
    """With bubblewrap."""

    isolation = "required"


class Box:
    """A handle of the driver below: a name for files."""

    def __init__(self, name: str, files: dict[str, str]) -> None:
        self.name = name
        self.files = files
        self.paused = False

    def pause(self) -> None:
        self.paused = True


class Memory:
    """A driver that keeps the contract, in memory, and sync."""

    driver_id = "memory.v1"
    coverage_reuse = False

    def __init__(self, world: dict[str, Any]) -> None:
        self.boxes: dict[str, dict[str, str]] = world.setdefault("boxes", {})
        self.checkpoints: dict[str, dict[str, str]] = world.setdefault("checkpoints", {})
        self.ids: itertools.count[int] = world.setdefault("ids", itertools.count())

    @property
    def configuration(self) -> Any:
        return {"size": 1}

    def create(self, checkpoint_ref: str | None = None) -> Any:
        files = {} if checkpoint_ref is None else self.found(checkpoint_ref)
        name = f"box-{next(self.ids)}"
        self.boxes[name] = dict(files)
        return Box(name, self.boxes[name]), {"name": name}

    def found(self, ref: str) -> dict[str, str]:
        if ref not in self.checkpoints:
            raise CheckpointUnavailable(f"{ref} is gone")
        return self.checkpoints[ref]

    def open(self, binding: Any) -> Any:
        return Box(binding["name"], self.boxes[binding["name"]])

    def checkpoint(self, handle: Box) -> Any:
        ref = f"ref-{next(self.ids)}"
        self.checkpoints[ref] = dict(handle.files)
        return ref


def subject_of(driver: Callable[[dict[str, Any]], Any], **settings: Any) -> Subject:
    world: dict[str, Any] = {}

    async def write(handle: Box, path: str, text: str) -> None:
        handle.files[path] = text

    def discard(handle: Box) -> None:
        world["boxes"].pop(handle.name, None)

    whole = Subject(
        driver=lambda: driver(world),
        write=write,
        read=lambda handle, path: handle.files[path],
        missing_ref="ref-none",
        discard=discard,
        is_paused=lambda handle: handle.paused,
        secrets=["hunter2"],
    )
    return dataclasses.replace(whole, **settings)


async def test_a_driver_that_keeps_the_contract_passes() -> None:
    await check_driver(subject_of(Memory))
    await check_driver(subject_of(Memory, discard=None, is_paused=None))


class UnnamedDriver(Memory):
    driver_id = ""


class ChangingDriverId(Memory):
    def __init__(self, world: dict[str, Any]) -> None:
        super().__init__(world)
        self.driver_id = f"memory.{next(self.ids)}"


class ChangingConfiguration(Memory):
    @property
    def configuration(self) -> Any:
        return {"now": next(self.ids)}


class OpaqueConfiguration(Memory):
    @property
    def configuration(self) -> Any:
        return {"client": object()}


class TalkativeConfiguration(Memory):
    @property
    def configuration(self) -> Any:
        return {"token": "hunter2"}


class NoBinding(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        return super().create(checkpoint_ref)[0], None


class OpaqueBinding(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        box, _ = super().create(checkpoint_ref)
        return box, {"box": box}


class TalkativeBinding(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        box, binding = super().create(checkpoint_ref)
        return box, binding | {"url": "https://hunter2@example.com"}


class HandleAlone(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        return super().create(checkpoint_ref)[0]


class OneForAll(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        if "box" not in self.boxes:
            self.boxes["box"] = {}
        if checkpoint_ref is not None:
            self.boxes["box"] = dict(self.found(checkpoint_ref))
        return Box("box", self.boxes["box"]), {"name": "box", "id": next(self.ids)}


class OneBinding(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        return super().create(checkpoint_ref)[0], {"name": "the one"}


class OpensAnew(Memory):
    def open(self, binding: Any) -> Any:
        return self.create()[0]


class OpensACopy(Memory):
    def open(self, binding: Any) -> Any:
        return Box(binding["name"], dict(self.boxes[binding["name"]]))


class OpensWhatIsGone(Memory):
    def open(self, binding: Any) -> Any:
        return Box(binding["name"], self.boxes.setdefault(binding["name"], {}))


class NoReference(Memory):
    def checkpoint(self, handle: Box) -> Any:
        super().checkpoint(handle)


class ReferenceOfAnotherType(Memory):
    def checkpoint(self, handle: Box) -> Any:
        return {"ref": super().checkpoint(handle)}


class BreaksTheHandle(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        handle.files = {}
        return ref


class LosesTheBinding(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        handle.files = dict(handle.files)
        return ref


class LiveCheckpoint(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        self.checkpoints[ref] = handle.files
        return ref


class NoCheckpoint(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        self.checkpoints[ref] = {}
        return ref


class RestoresInPlace(Memory):
    """Puts the captured files back into the resource that they came from, too."""

    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        self.checkpoints[ref + "-of"] = handle.files
        return ref

    def create(self, checkpoint_ref: str | None = None) -> Any:
        if checkpoint_ref is not None and f"{checkpoint_ref}-of" in self.checkpoints:
            files = self.checkpoints[f"{checkpoint_ref}-of"]
            captured = dict(self.checkpoints[checkpoint_ref])
            files.clear()
            files.update(captured)
        return super().create(checkpoint_ref)


class LastCheckpointOnly(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        for other in self.checkpoints:
            self.checkpoints[other] = dict(handle.files)
        return ref


class SharedCopies(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        box, binding = super().create(checkpoint_ref)
        if checkpoint_ref is not None:
            shared = self.found(f"{checkpoint_ref}") | {}
            self.checkpoints[checkpoint_ref] = shared
            self.boxes[box.name] = box.files = self.checkpoints.setdefault(
                f"{checkpoint_ref}-live", dict(shared)
            )
        return box, binding


class WritesIntoTheCheckpoint(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        box, binding = super().create(checkpoint_ref)
        if checkpoint_ref is not None:
            self.boxes[box.name] = box.files = self.found(checkpoint_ref)
        return box, binding


class ForgetsCopies(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        box, binding = super().create(checkpoint_ref)
        if checkpoint_ref is not None:
            self.boxes[box.name] = {}
        return box, binding


class CapturesTheOriginal(Memory):
    def create(self, checkpoint_ref: str | None = None) -> Any:
        box, binding = super().create(checkpoint_ref)
        box.origin = checkpoint_ref
        return box, binding

    def checkpoint(self, handle: Any) -> Any:
        return getattr(handle, "origin", None) or super().checkpoint(handle)


class MakesAnEmptyOne(Memory):
    def found(self, ref: str) -> dict[str, str]:
        return self.checkpoints.get(ref, {})


class RaisesItsOwn(Memory):
    def found(self, ref: str) -> dict[str, str]:
        return self.checkpoints[ref]


class RaisesWithoutAName(Memory):
    def found(self, ref: str) -> dict[str, str]:
        try:
            return self.checkpoints[ref]
        except KeyError:
            raise CheckpointUnavailable("not found") from None


class CannotCapturePaused(Memory):
    def checkpoint(self, handle: Box) -> Any:
        if handle.paused:
            raise RuntimeError("it is paused")
        return super().checkpoint(handle)


class RunsAfterCapture(Memory):
    def checkpoint(self, handle: Box) -> Any:
        handle.paused = False
        return super().checkpoint(handle)


class EmptyWhenPaused(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        if handle.paused:
            self.checkpoints[ref] = {}
        return ref


class PausedForGood(Memory):
    def checkpoint(self, handle: Box) -> Any:
        ref = super().checkpoint(handle)
        if handle.paused:
            del self.boxes[handle.name]
        return ref


BROKEN: dict[Any, list[type[Memory]]] = {
    _contract.identity_is_stable: [
        UnnamedDriver,
        ChangingDriverId,
        ChangingConfiguration,
        OpaqueConfiguration,
        TalkativeConfiguration,
    ],
    _contract.create_returns_a_binding: [NoBinding, OpaqueBinding, TalkativeBinding, HandleAlone],
    _contract.created_resources_are_apart: [OneForAll, OneBinding],
    _contract.open_finds_the_resource: [OpensAnew, OpensACopy],
    _contract.open_of_nothing_fails: [OpensWhatIsGone],
    _contract.checkpoint_leaves_the_handle_usable: [
        NoReference,
        ReferenceOfAnotherType,
        BreaksTheHandle,
        LosesTheBinding,
    ],
    _contract.checkpoints_never_change: [LiveCheckpoint, NoCheckpoint, RestoresInPlace],
    _contract.each_checkpoint_is_its_own: [LastCheckpointOnly],
    _contract.restored_resources_are_apart: [SharedCopies, WritesIntoTheCheckpoint],
    _contract.restored_resources_are_whole: [ForgetsCopies, CapturesTheOriginal],
    _contract.missing_checkpoints_are_named: [MakesAnEmptyOne, RaisesItsOwn, RaisesWithoutAName],
    _contract.paused_resources_can_be_captured: [
        CannotCapturePaused,
        RunsAfterCapture,
        EmptyWhenPaused,
        PausedForGood,
    ],
}


def test_every_rule_has_a_driver_that_breaks_it() -> None:
    assert list(BROKEN) == list(_contract.CHECKS)


@pytest.mark.parametrize(
    ("check", "driver"),
    [(check, driver) for check, drivers in BROKEN.items() for driver in drivers],
    ids=lambda value: value.__name__,
)
async def test_a_fault_is_caught(check: Any, driver: type[Memory]) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await check_driver(subject_of(driver), only=[check])
    (error,) = raised.value.exceptions
    assert check.__name__ in error.__notes__[0]
    assert isinstance(error, ContractBroken)


async def test_all_faults_are_told_at_once() -> None:
    class Hopeless(UnnamedDriver, MakesAnEmptyOne, NoReference):
        pass

    with pytest.raises(ExceptionGroup) as raised:
        await check_driver(subject_of(Hopeless))
    told = {error.__notes__[0].partition(":")[0] for error in raised.value.exceptions}
    assert {"identity_is_stable", "missing_checkpoints_are_named"} <= told


async def test_what_a_check_made_is_discarded() -> None:
    world: list[Memory] = []

    def driver(of: dict[str, Any]) -> Memory:
        world.append(Memory(of))
        return world[-1]

    await check_driver(subject_of(driver))
    assert world[0].boxes == {}


def test_the_checks_are_tests() -> None:
    names = {name for name in dir(DriverContract) if name.startswith("test_")}
    assert names == {f"test_{check.__name__}" for check in BROKEN}
    with pytest.raises(NotImplementedError):
        DriverContract().subject()
