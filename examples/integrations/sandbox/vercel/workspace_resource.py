# SPDX-License-Identifier: Apache-2.0
"""A checkout of a GitHub repository in a Vercel sandbox, as a resource."""

import asyncio
import base64
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import vercel.sandbox
from rebuno import CheckpointUnavailable, execution
from vercel.sandbox import (
    CompletedProcess,
    NetworkPolicy,
    NetworkPolicyRule,
    NetworkPolicyTransform,
    Sandbox,
    SandboxApiError,
    SandboxClient,
    SandboxFilesystem,
    SandboxStreamError,
    SnapshotSource,
)

WORKDIR = "/vercel/sandbox/repo"
SESSION_SECONDS = 600
SETUP_SECONDS = 300
SETTLE_SECONDS = 120
PAUSE_SECONDS = 1
STOPS = ("sandbox_stopped", "sandbox_stopping", "sandbox_snapshotting")
GRACE_SECONDS = 30

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
    """The sandbox that was recorded does not exist any more."""


class VercelHandle:
    """What the tools work in. It stays the same object while the sandbox in it is exchanged."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.paused = False

    @property
    def fs(self) -> SandboxFilesystem:
        """The sandbox's files; the package resumes a stopped sandbox at the first use."""
        self.paused = False
        return self.sandbox.fs

    async def run_process(
        self,
        command: str,
        args: Sequence[str] | None = None,
        *,
        kill_after: float,
        **options: Any,
    ) -> CompletedProcess:
        """Runs a process to its end; the package resumes a stopped sandbox before it starts.

        A process that ends because the ten minutes of the session are over runs again in the next.
        """
        self.paused = False
        try:
            return await self._run(command, args, kill_after, options)
        except SandboxStreamError as exc:
            if exc.code not in STOPS:
                raise
            return await self._run(command, args, kill_after, options)

    async def _run(
        self, command: str, args: Sequence[str] | None, kill_after: float, options: dict[str, Any]
    ) -> CompletedProcess:
        # The service ends the process in time; this is for a service that does not answer.
        async with within(kill_after + GRACE_SECONDS, "Vercel has not answered"):
            return await self.sandbox.run_process(command, args, kill_after=kill_after, **options)

    async def branch(self) -> str:
        """The branch that is checked out."""
        words = ["branch", "--show-current"]
        result = await self.run_process(
            "git", words, cwd=WORKDIR, kill_after=60, capture_output=True
        )
        if not (name := (result.stdout or "").strip()):
            raise RuntimeError(f"no branch is checked out in the workspace. {result.stderr}")
        return name

    async def pause(self) -> None:
        """Stops the sandbox. Files persist, running processes end."""
        try:
            await self.sandbox.stop()
        except SandboxApiError as exc:
            if exc.status_code != 410:  # it has stopped already, after its ten minutes
                raise
        self.paused = True


class VercelResource:
    """A driver whose sandboxes hold a checkout of `repo`, each on a branch of its own.

    `token` stays outside of them: the network adds it to what they send to github.com. `client` is
    for another address or account than the environment's.
    """

    driver_id = "example.vercel.v1"

    def __init__(self, repo: str, token: str, client: SandboxClient | None = None) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise ValueError(f"REPO is a repository on GitHub as owner/name, not {repo!r}")
        self._repo = repo
        self._vercel = client or vercel.sandbox
        self._policy = network_policy(token)

    @property
    def configuration(self) -> dict[str, Any]:
        """What makes this driver's sandboxes others than those of a second one."""
        return {"repo": self._repo}

    async def create(
        self, checkpoint_ref: str | None = None
    ) -> tuple[VercelHandle, dict[str, Any]]:
        """Makes a sandbox from a snapshot, or else with a fresh checkout."""
        if checkpoint_ref:
            await self._check_snapshot(checkpoint_ref)
        sandbox = await self._vercel.create_sandbox(
            source=SnapshotSource(snapshot_id=checkpoint_ref) if checkpoint_ref else None,
            execution_time_limit=SESSION_SECONDS,
            persistent=True,
            network_policy=self._policy,
        )
        workspace = VercelHandle(sandbox)
        try:
            await self._set_up(workspace, is_new=not checkpoint_ref)
        except BaseException:
            await sandbox.destroy()
            raise
        return workspace, {"name": sandbox.name}

    async def open(self, binding: Mapping[str, Any]) -> VercelHandle:
        """Resumes the sandbox that was recorded, with the token that this process has now."""
        return VercelHandle(await self._resume(binding["name"]))

    async def checkpoint(self, handle: VercelHandle) -> str:
        """Makes a snapshot that does not expire, which ends the session; goes on as it was."""
        was_paused = handle.paused
        if was_paused:
            handle.sandbox = await self._resume(handle.sandbox.name)
        try:
            snapshot = await handle.sandbox.snapshot(expiration=0)
        except BaseException:
            if was_paused:
                await handle.pause()
            raise
        if not was_paused:
            handle.sandbox = await self._resume(handle.sandbox.name)
        if snapshot.status != "created":
            raise RuntimeError(f"the snapshot {snapshot.id} is {snapshot.status}")
        return snapshot.id

    async def _resume(self, name: str) -> Sandbox:
        async with within(SETTLE_SECONDS, f"the sandbox {name} has not stopped"):
            sandbox = await self._try_resume(name)
            while sandbox is None:
                await asyncio.sleep(PAUSE_SECONDS)
                sandbox = await self._try_resume(name)
        await sandbox.update(network_policy=self._policy)
        return sandbox

    async def _try_resume(self, name: str) -> Sandbox | None:
        """None while the sandbox is still stopping, or busy with its snapshot."""
        try:
            return await self._vercel.resume_sandbox(name=name)
        except SandboxApiError as exc:
            if exc.code in STOPS:
                return None
            if exc.status_code not in (404, 410):
                raise
            raise SandboxGone(f"the sandbox {name} is gone: {exc}") from exc

    async def _check_snapshot(self, snapshot_id: str) -> None:
        try:
            snapshot = await self._vercel.get_snapshot(snapshot_id=snapshot_id)
        except SandboxApiError as exc:
            if exc.status_code not in (400, 404, 410):
                raise
            raise CheckpointUnavailable(f"the snapshot {snapshot_id} is gone: {exc}") from exc
        if snapshot.status != "created":
            raise CheckpointUnavailable(f"the snapshot {snapshot_id} is {snapshot.status}")

    async def _set_up(self, workspace: VercelHandle, *, is_new: bool) -> None:
        url = f"https://github.com/{self._repo}" if is_new else ""
        # Random, too: a sandbox that was lost before it was recorded may have used the name.
        branch = f"rebuno/{_execution_id()}-{secrets.token_hex(4)}"
        result = await workspace.run_process(
            "bash",
            ["-c", SETUP, "setup", WORKDIR, branch, url],
            kill_after=SETUP_SECONDS,
            capture_output=True,
        )
        if result.returncode != 0:
            what = f"no checkout of {url}" if is_new else "no branch of its own"
            raise RuntimeError(
                f"{workspace.sandbox.name}: {what}: {(result.stderr or '').strip()[-500:]}"
            )


@asynccontextmanager
async def within(seconds: float, complaint: str) -> AsyncIterator[None]:
    """Ends what takes longer, with an error that says so."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        raise TimeoutError(f"{complaint} after {seconds:g} seconds") from exc


def network_policy(token: str) -> NetworkPolicy:
    """Everything is allowed, and github.com sees the token, which the sandbox does not."""
    credentials = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    return NetworkPolicy.custom(
        {
            "*": [],
            "github.com": [
                NetworkPolicyRule(
                    transform=[
                        NetworkPolicyTransform(headers={"Authorization": f"Basic {credentials}"})
                    ]
                )
            ],
        }
    )


def _execution_id() -> str:
    try:
        return execution().id
    except RuntimeError:  # a driver that is tried out by itself
        return "vercel"
