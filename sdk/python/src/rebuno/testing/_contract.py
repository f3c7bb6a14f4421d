# SPDX-License-Identifier: Apache-2.0
"""The contract of a resource driver, as tests that any driver's author can run.

With pytest, one test a rule:

    from rebuno.testing import DriverContract, Subject

    class TestMyDriver(DriverContract):
        def subject(self) -> Subject:
            return Subject(
                driver=lambda: MyDriver(api_key="…"),
                write=lambda handle, path, text: handle.files.write(path, text),
                read=lambda handle, path: handle.files.read(path),
                missing_ref="snapshot-that-is-gone",
            )

Without it, `await check_driver(subject)` checks all, and names in an ExceptionGroup what does not
hold. What is asked of a driver stands in `rebuno.resource`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from .._calls import call
from ..errors import CheckpointUnavailable

__all__ = ["CHECKS", "ContractBroken", "DriverContract", "Subject", "check_driver"]

_FILE = "rebuno-contract.txt"


class ContractBroken(AssertionError):
    """The driver does not do what the SDK and the kernel rely on."""


@dataclass(kw_only=True)
class Subject:
    """A driver, and how a test gets at what its handles hold. All functions may be sync or async.

    driver: makes a driver object, each time as another process would.
    write, read: of a text file in the resource, by handle and name.
    missing_ref: a reference in the driver's form whose checkpoint does not exist.
    discard: takes a resource away for good, by its handle; it is called for each one made.
    is_paused: whether a handle is paused; needed only if handles have `pause()`.
    secrets: texts that must not appear in what the kernel stores.
    """

    driver: Callable[[], Any]
    write: Callable[[Any, str, str], Any]
    read: Callable[[Any, str], Any]
    missing_ref: str
    discard: Callable[[Any], Any] | None = None
    is_paused: Callable[[Any], Any] | None = None
    secrets: Collection[str] = field(default=(), repr=False)


class _Trial:
    """One check's use of the subject."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.driver = subject.driver()
        self._made: list[Any] = []

    async def create(self, ref: str | None = None) -> tuple[Any, Any]:
        made = await call(self.driver.create, *(() if ref is None else (ref,)))
        hold(
            isinstance(made, tuple) and len(made) == 2,
            "create() does not return a pair of handle and binding",
        )
        handle, binding = made
        self._made.append(handle)
        return handle, binding

    async def reopen(self, binding: Any) -> Any:
        """Opens a binding as another process does, with what the kernel stored."""
        stored = json.loads(_json(binding, "the binding"))
        try:
            return await call(self.subject.driver().open, stored)
        except Exception as exc:
            raise ContractBroken(f"open() of {stored!r} fails: {exc!r}") from exc

    async def checkpoint(self, handle: Any) -> Any:
        try:
            return await call(self.driver.checkpoint, handle)
        except Exception as exc:
            raise ContractBroken(f"checkpoint() fails: {exc!r}") from exc

    async def write(self, handle: Any, text: str, name: str = _FILE) -> None:
        await call(self.subject.write, handle, name, text)

    async def expect(self, handle: Any, text: str, failure: str) -> None:
        """Asserts that the file holds the text."""
        try:
            found = await call(self.subject.read, handle, _FILE)
        except Exception as exc:
            raise ContractBroken(f"{failure}: reading failed with {exc!r}") from exc
        hold(found == text, f"{failure}: found {found!r}, not {text!r}")

    async def holds(self, handle: Any, name: str = _FILE) -> bool:
        """Whether the resource has such a file; how its absence shows is the driver's own."""
        try:
            return bool(await call(self.subject.read, handle, name))
        except Exception:
            return False

    async def clear(self) -> None:
        if self.subject.discard is not None:
            for handle in self._made:
                with contextlib.suppress(Exception):
                    await call(self.subject.discard, handle)


def hold(condition: object, failure: str) -> None:
    """Raises ContractBroken unless the condition holds."""
    if not condition:
        raise ContractBroken(failure)


async def identity_is_stable(trial: _Trial) -> None:
    """driver_id and configuration are JSON, and the same in every process."""
    first, second = trial.driver, trial.subject.driver()
    hold(
        isinstance(first.driver_id, str) and first.driver_id,
        "driver_id is not a text",
    )
    hold(first.driver_id == second.driver_id, "two drivers have different driver_ids")
    settings = [getattr(one, "configuration", None) for one in (first, first, second)]
    texts = {_json(value, "configuration") for value in settings}
    hold(len(texts) == 1, f"configuration changes: {sorted(texts)}")
    reuse = [getattr(one, "coverage_reuse", False) for one in (first, second)]
    hold(reuse[0] is reuse[1] and isinstance(reuse[0], bool), "coverage_reuse is no stable bool")
    _no_secrets(trial.subject, *texts)


async def create_returns_a_binding(trial: _Trial) -> None:
    """create() returns a handle and a binding: JSON, not null, without credentials."""
    _, binding = await trial.create()
    hold(binding is not None, "the binding is None")
    _no_secrets(trial.subject, _json(binding, "the binding"))


async def created_resources_are_apart(trial: _Trial) -> None:
    """What is written to one resource is not in another."""
    one, binding_of_one = await trial.create()
    two, binding_of_two = await trial.create()
    hold(binding_of_one != binding_of_two, "two resources have the same binding")
    await trial.write(one, "one")
    hold(not await trial.holds(two), "a file of one resource shows up in another")
    await trial.write(two, "two")
    await trial.expect(one, "one", "a write to another resource changed this one")


async def open_finds_the_resource(trial: _Trial) -> None:
    """open(binding) gives the same resource, to read and to write, as often as asked."""
    handle, binding = await trial.create()
    await trial.write(handle, "written before")
    second = await trial.reopen(binding)
    await trial.expect(second, "written before", "open() does not find what was written")
    await trial.write(second, "written after")
    third = await trial.reopen(binding)
    await trial.expect(third, "written after", "open() gives a copy, not the resource")


async def open_of_nothing_fails(trial: _Trial) -> None:
    """open(binding) of a resource that is gone raises, and makes no new one."""
    if trial.subject.discard is None:
        return
    handle, binding = await trial.create()
    await call(trial.subject.discard, handle)
    try:
        await trial.reopen(binding)
    except Exception:
        return
    raise ContractBroken("open() gives a handle for a resource that is gone")


async def checkpoint_leaves_the_handle_usable(trial: _Trial) -> None:
    """checkpoint(handle) returns a text, and the handle works as before."""
    handle, binding = await trial.create()
    await trial.write(handle, "before")
    ref = await trial.checkpoint(handle)
    hold(isinstance(ref, str) and ref, f"checkpoint() returns {ref!r}, not a text")
    _no_secrets(trial.subject, ref)
    await trial.expect(handle, "before", "after checkpoint() the handle does not work")
    await trial.write(handle, "after")
    await trial.expect(handle, "after", "after checkpoint() the handle does not write")
    await trial.expect(
        await trial.reopen(binding), "after", "after checkpoint() the binding leads elsewhere"
    )


async def checkpoints_never_change(trial: _Trial) -> None:
    """create(ref) gives what was captured, whatever was written since."""
    handle, _ = await trial.create()
    await trial.write(handle, "captured")
    ref = await trial.checkpoint(handle)
    await trial.write(handle, "later")
    await trial.write(handle, "later", "rebuno-contract-2.txt")
    restored, _ = await trial.create(ref)
    await trial.expect(restored, "captured", "create(ref) does not give what was captured")
    hold(
        not await trial.holds(restored, "rebuno-contract-2.txt"),
        "create(ref) gives a file that was written after the checkpoint",
    )
    await trial.expect(handle, "later", "create(ref) changed the resource that was captured")


async def each_checkpoint_is_its_own(trial: _Trial) -> None:
    """An earlier reference still gives the earlier contents."""
    handle, _ = await trial.create()
    refs = []
    for text in ("first", "second"):
        await trial.write(handle, text)
        refs.append(await trial.checkpoint(handle))
    for text, ref in zip(("first", "second"), refs, strict=True):
        restored, _ = await trial.create(ref)
        await trial.expect(restored, text, "a reference gives another checkpoint's contents")


async def restored_resources_are_apart(trial: _Trial) -> None:
    """Two resources created from one reference share nothing, nor does the checkpoint."""
    handle, _ = await trial.create()
    await trial.write(handle, "captured")
    ref = await trial.checkpoint(handle)
    one, _ = await trial.create(ref)
    two, _ = await trial.create(ref)
    await trial.write(one, "changed")
    await trial.expect(two, "captured", "a write to one copy changed another")
    await trial.expect(handle, "captured", "a write to a copy changed the original")
    three, _ = await trial.create(ref)
    await trial.expect(three, "captured", "a write to a copy changed the checkpoint")


async def restored_resources_are_whole(trial: _Trial) -> None:
    """A resource created from a reference can be reopened and captured like any other."""
    handle, _ = await trial.create()
    await trial.write(handle, "captured")
    restored, binding = await trial.create(await trial.checkpoint(handle))
    _json(binding, "the binding")
    await trial.write(restored, "second generation")
    await trial.expect(
        await trial.reopen(binding), "second generation", "open() does not find the copy"
    )
    again, _ = await trial.create(await trial.checkpoint(restored))
    await trial.expect(again, "second generation", "a checkpoint of a copy is not its own")


async def missing_checkpoints_are_named(trial: _Trial) -> None:
    """create(ref) of a checkpoint that is gone raises CheckpointUnavailable, which names it."""
    ref = trial.subject.missing_ref
    try:
        await trial.create(ref)
    except CheckpointUnavailable as exc:
        hold(ref in str(exc), f"the error does not name the checkpoint: {exc}")
    except Exception as exc:
        raise ContractBroken(f"create() of a missing checkpoint raises {exc!r}") from exc
    else:
        raise ContractBroken("create() of a missing checkpoint makes a resource")


async def paused_resources_can_be_captured(trial: _Trial) -> None:
    """A paused handle is captured, stays paused, and its resource can be opened again."""
    handle, binding = await trial.create()
    if not callable(getattr(handle, "pause", None)):
        return
    await trial.write(handle, "paused")
    await call(handle.pause)
    ref = await trial.checkpoint(handle)
    if trial.subject.is_paused is not None:
        hold(
            await call(trial.subject.is_paused, handle),
            "after its checkpoint a paused resource runs",
        )
    restored, _ = await trial.create(ref)
    await trial.expect(restored, "paused", "the checkpoint of a paused resource lacks its files")
    await trial.expect(
        await trial.reopen(binding), "paused", "a paused resource cannot be opened again"
    )


Check = Callable[[_Trial], Awaitable[None]]

CHECKS: tuple[Check, ...] = (
    identity_is_stable,
    create_returns_a_binding,
    created_resources_are_apart,
    open_finds_the_resource,
    open_of_nothing_fails,
    checkpoint_leaves_the_handle_usable,
    checkpoints_never_change,
    each_checkpoint_is_its_own,
    restored_resources_are_apart,
    restored_resources_are_whole,
    missing_checkpoints_are_named,
    paused_resources_can_be_captured,
)


async def check_driver(subject: Subject, *, only: Collection[Check] = CHECKS) -> None:
    """Checks a driver. Raises an ExceptionGroup of what does not hold."""
    broken: list[Exception] = []
    for check in only:
        try:
            async with _trial(subject) as trial:
                await check(trial)
        except Exception as exc:
            exc.add_note(f"{getattr(check, '__name__', check)}: {check.__doc__}")
            broken.append(exc)
    if broken:
        raise ExceptionGroup("the driver does not keep the contract", broken)


@contextlib.asynccontextmanager
async def _trial(subject: Subject) -> AsyncIterator[_Trial]:
    trial = _Trial(subject)
    try:
        yield trial
    finally:
        await trial.clear()


class DriverContract:
    """The checks as pytest tests: derive a class whose name begins with `Test`."""

    def subject(self) -> Subject:
        """Returns the driver to test."""
        raise NotImplementedError("override subject()")


def _as_test(check: Check) -> Callable[[DriverContract], None]:
    def test(self: DriverContract) -> None:
        async def run() -> None:
            async with _trial(self.subject()) as trial:
                await check(trial)

        asyncio.run(run())

    test.__doc__ = check.__doc__
    return test


for _check in CHECKS:
    setattr(DriverContract, f"test_{getattr(_check, '__name__', '')}", _as_test(_check))


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise ContractBroken(f"{what} is not JSON: {exc}") from exc


def _no_secrets(subject: Subject, *texts: str) -> None:
    for text in texts:
        hold(
            not any(secret in text for secret in subject.secrets),
            "a credential is in what the kernel stores",
        )
