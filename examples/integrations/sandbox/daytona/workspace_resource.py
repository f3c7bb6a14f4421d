# SPDX-License-Identifier: Apache-2.0
"""A checkout of a GitHub repository in a Daytona sandbox, as a resource."""

import asyncio
import base64
import contextlib
import re
import secrets
import shlex
import uuid
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    CreateSecretParams,
    DaytonaNotFoundError,
    SandboxState,
    UpdateSecretParams,
)
from daytona_api_client_async.exceptions import ConflictException
from rebuno import CheckpointUnavailable, execution

HOME = "/home/daytona"
WORKDIR = f"{HOME}/repo"
TIMEOUT_SECONDS = 300  # for what a sandbox may do: start, stop, be captured

RESTING = {SandboxState.STOPPED, SandboxState.ARCHIVED, SandboxState.PAUSED}
BROKEN = {SandboxState.ERROR, SandboxState.BUILD_FAILED}
GONE = {SandboxState.DESTROYED, SandboxState.DESTROYING}

# Of a folder, a branch and, for a fresh checkout, a URL. A restored one may be in the middle of a
# merge, so the branch changes without touching a file.
SETUP = """
set -e
if [ -n "$3" ]; then git clone -q -- "$3" "$1"; fi
cd "$1"
git config user.name rebuno-agent
git config user.email rebuno-agent@users.noreply.github.com
git config push.default current
if git rev-parse -q --verify HEAD >/dev/null; then git update-ref "refs/heads/$2" HEAD; fi
git symbolic-ref HEAD "refs/heads/$2"
"""


class SandboxGone(Exception):
    """The sandbox that was recorded does not exist any more, or cannot start."""


class DaytonaHandle:
    """What the tools work in. `pause` is Daytona's stop, so this is not the sandbox itself."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self.paused = False

    @property
    def process(self) -> Any:
        """Runs commands."""
        return self.sandbox.process

    @property
    def fs(self) -> Any:
        """The sandbox's files."""
        return self.sandbox.fs

    async def branch(self) -> str:
        """The branch that is checked out."""
        command = "git branch --show-current"
        result = await self.process.exec(command, cwd=WORKDIR, timeout=60)
        if result.exit_code != 0 or not (name := result.result.strip()):
            raise RuntimeError(f"no branch is checked out in the workspace. {result.result}")
        return name

    async def pause(self) -> None:
        """Stops the sandbox. Files persist, running processes end."""
        await self.sandbox.stop(timeout=TIMEOUT_SECONDS)
        self.paused = True


class DaytonaResource:
    """A driver whose sandboxes hold a checkout of `repo`, each on a branch of its own.

    `token` stays outside of them: Daytona puts it into what they send to github.com.
    """

    driver_id = "example.daytona.v1"

    def __init__(self, repo: str, token: str) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise ValueError(f"REPO is a repository on GitHub as owner/name, not {repo!r}")
        self._repo = repo
        self._token = token

    @property
    def configuration(self) -> dict[str, Any]:
        """What makes this driver's sandboxes others than those of a second one."""
        return {"repo": self._repo}

    async def create(
        self, checkpoint_ref: str | None = None
    ) -> tuple[DaytonaHandle, dict[str, Any]]:
        """Makes a sandbox from a snapshot, or else with a fresh checkout."""
        daytona = await client()
        if checkpoint_ref:
            await self._check_snapshot(daytona, checkpoint_ref)
        await self._store_credentials(daytona)
        sandbox = await daytona.create(
            CreateSandboxFromSnapshotParams(
                snapshot=checkpoint_ref, secrets={"GITHUB_AUTH": "rebuno-github"}
            )
        )
        try:
            await self._set_up(sandbox, is_new=not checkpoint_ref)
        except BaseException:
            with contextlib.suppress(Exception):
                await sandbox.delete()
            raise
        return DaytonaHandle(sandbox), {"sandbox_id": sandbox.id}

    async def open(self, binding: Mapping[str, Any]) -> DaytonaHandle:
        """Starts the sandbox that was recorded, with the token that this process has now."""
        daytona = await client()
        sandbox_id = binding["sandbox_id"]
        await self._store_credentials(daytona)
        try:
            sandbox = await daytona.get(sandbox_id)
        except DaytonaNotFoundError as exc:
            raise SandboxGone(f"the sandbox {sandbox_id} is gone: {exc}") from exc
        await _start(sandbox)
        return DaytonaHandle(sandbox)

    async def checkpoint(self, handle: DaytonaHandle) -> str:
        """Makes a snapshot with a name of its own; a stopped sandbox is started for it."""
        name = f"rebuno-{uuid.uuid4()}"
        was_paused = handle.paused
        await handle.sandbox.refresh_data()  # it may have been idle for too long
        await _start(handle.sandbox)
        handle.paused = False
        try:
            await handle.sandbox.create_snapshot(name, timeout=TIMEOUT_SECONDS)
            await _start(handle.sandbox)
        finally:
            if was_paused:
                await handle.pause()
        return name

    async def _check_snapshot(self, daytona: AsyncDaytona, name: str) -> None:
        try:
            snapshot = await daytona.snapshot.get(name)
        except DaytonaNotFoundError as exc:
            raise CheckpointUnavailable(f"the snapshot {name} is gone: {exc}") from exc
        if snapshot.state == "inactive":  # nobody asked for it in a while
            await daytona.snapshot.activate(snapshot)
        elif snapshot.state in ("error", "build_failed", "removing"):
            raise CheckpointUnavailable(f"the snapshot {name} is {snapshot.state.value}")

    async def _store_credentials(self, daytona: AsyncDaytona) -> None:
        """Sees to it that the secret holds the token of this process, for github.com only."""
        token = self._token
        credentials = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        if await _update_secret(daytona, credentials):
            return
        try:
            await daytona.secret.create(
                CreateSecretParams(name="rebuno-github", value=credentials, hosts=["github.com"])
            )
        except ConflictException:  # another agent was faster
            await _update_secret(daytona, credentials)

    async def _set_up(self, sandbox: AsyncSandbox, *, is_new: bool) -> None:
        await sandbox.process.exec(
            "git config --global http.https://github.com/.extraheader"
            ' "Authorization: Basic $GITHUB_AUTH"'
        )
        url = f"https://github.com/{self._repo}" if is_new else ""
        # Random, too: a sandbox that was lost before it was recorded may have used the name.
        branch = f"rebuno/{_execution_id()}-{secrets.token_hex(4)}"
        command = shlex.join(["bash", "-c", SETUP, "setup", WORKDIR, branch, url])
        result = await sandbox.process.exec(command, cwd=HOME, timeout=TIMEOUT_SECONDS)
        if result.exit_code != 0:
            what = f"no checkout of {url}" if is_new else "no branch of its own"
            raise RuntimeError(f"{sandbox.id}: {what}: {result.result.strip()[-500:]}")


async def _update_secret(daytona: AsyncDaytona, credentials: str) -> bool:
    """Gives the secret this value; false if there is none yet."""
    cursor = None
    while True:
        page = await daytona.secret.list(cursor=cursor, name="rebuno-github")
        for secret in page.items:
            if secret.name == "rebuno-github":  # the filter takes parts of names
                update = UpdateSecretParams(value=credentials, hosts=["github.com"])
                await daytona.secret.update(secret.id, update)
                return True
        cursor = page.next_cursor
        if not cursor:
            return False


async def _start(sandbox: AsyncSandbox) -> None:
    """Sees to it that the sandbox runs; waits while it is changing."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while sandbox.state != SandboxState.STARTED:
            if sandbox.state in GONE | BROKEN:
                why = f": {sandbox.error_reason}" if sandbox.error_reason else ""
                raise SandboxGone(f"the sandbox {sandbox.id} is {sandbox.state.value}{why}")
            if sandbox.state in RESTING:
                await sandbox.start(timeout=TIMEOUT_SECONDS)
            else:
                await asyncio.sleep(0.5)
                await sandbox.refresh_data()


_clients: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


async def client() -> AsyncDaytona:
    """The event loop's client. Handles need it for as long as they live, so all share one."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        opened = _open_client()
        _clients[loop] = (opened, await anext(opened))
    return _clients[loop][1]


async def _open_client() -> AsyncGenerator[AsyncDaytona, None]:
    """Closes the client when the event loop ends, which closes all generators."""
    async with AsyncDaytona() as daytona:
        yield daytona


def _execution_id() -> str:
    try:
        return execution().id
    except RuntimeError:  # a driver that is tried out by itself
        return "daytona"
