# SPDX-License-Identifier: Apache-2.0
"""A checkout of a GitHub repository in an E2B sandbox, as a resource."""

import base64
import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

from e2b import AsyncSandbox, CommandExitException, SandboxException
from rebuno import CheckpointUnavailable, execution

HOME = "/home/user"
WORKDIR = f"{HOME}/repo"

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


class E2BHandle:
    """What the tools work in. It stays the same object while the connection in it is exchanged."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self.paused = False

    @property
    def files(self) -> Any:
        """The sandbox's files; E2B resumes a paused sandbox at the first use."""
        self.paused = False
        return self.sandbox.files

    @property
    def commands(self) -> Any:
        """The sandbox's commands; E2B resumes a paused sandbox at the first use."""
        self.paused = False
        return self.sandbox.commands

    async def branch(self) -> str:
        """The branch that is checked out."""
        result = await self.commands.run("git branch --show-current", cwd=WORKDIR, timeout=60)
        if not (name := result.stdout.strip()):
            raise RuntimeError("no branch is checked out in the workspace")
        return name

    async def pause(self) -> None:
        """Pauses the sandbox, also one that has paused already after its time-out."""
        await self.sandbox.pause()
        self.paused = True


class E2BResource:
    """A driver whose sandboxes hold a checkout of `repo`, each on a branch of its own.

    `token` stays outside of them: E2B adds it to what they send to github.com. `timeout`: the
    seconds after which an idle sandbox pauses.
    """

    driver_id = "example.e2b.v1"

    def __init__(self, repo: str, token: str, timeout: int = 600) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise ValueError(f"REPO is a repository on GitHub as owner/name, not {repo!r}")
        self._repo = repo
        self._timeout = timeout
        self._network = network(token)

    @property
    def configuration(self) -> dict[str, Any]:
        """What makes this driver's sandboxes others than those of a second one."""
        return {"repo": self._repo}

    async def create(self, checkpoint_ref: str | None = None) -> tuple[E2BHandle, dict[str, Any]]:
        """Makes a sandbox from a snapshot, or else with a fresh checkout."""
        try:
            sandbox = await AsyncSandbox.create(
                checkpoint_ref,
                timeout=self._timeout,
                network=self._network,
                lifecycle={"on_timeout": "pause", "auto_resume": True},
            )
        except SandboxException as exc:
            # The package has no class of its own for a snapshot that is not there.
            if checkpoint_ref is None or not str(exc).startswith("404"):
                raise
            raise CheckpointUnavailable(f"the snapshot {checkpoint_ref} is gone: {exc}") from exc
        try:
            await self._set_up(sandbox, is_new=checkpoint_ref is None)
        except BaseException:
            await sandbox.kill()
            raise
        return E2BHandle(sandbox), {"sandbox_id": sandbox.sandbox_id}

    async def open(self, binding: Mapping[str, Any]) -> E2BHandle:
        """Resumes the sandbox that was recorded, with the token that this process has now."""
        sandbox = await self._connect(binding["sandbox_id"])
        await sandbox.update_network(self._network)
        return E2BHandle(sandbox)

    async def checkpoint(self, handle: E2BHandle) -> str:
        """Takes a snapshot and connects again, since it drops connections; goes on as it was."""
        was_paused = handle.paused
        if was_paused:
            await self._reconnect(handle)
        try:
            snapshot = await handle.sandbox.create_snapshot()
            await self._reconnect(handle)
        finally:
            if was_paused:
                await handle.pause()
        return snapshot.snapshot_id

    async def _connect(self, sandbox_id: str) -> AsyncSandbox:
        return await AsyncSandbox.connect(sandbox_id, timeout=self._timeout)

    async def _reconnect(self, handle: E2BHandle) -> None:
        handle.sandbox = await self._connect(handle.sandbox.sandbox_id)
        handle.paused = False

    async def _set_up(self, sandbox: AsyncSandbox, *, is_new: bool) -> None:
        url = f"https://github.com/{self._repo}" if is_new else ""
        # Random, too: a sandbox that was lost before it was recorded may have used the name.
        branch = f"rebuno/{_execution_id()}-{secrets.token_hex(4)}"
        command = shlex.join(["bash", "-c", SETUP, "setup", WORKDIR, branch, url])
        try:
            await sandbox.commands.run(command, cwd=HOME, timeout=300)
        except CommandExitException as exc:
            what = f"no checkout of {url}" if is_new else "no branch of its own"
            raise RuntimeError(
                f"{sandbox.sandbox_id}: {what}: {exc.stderr.strip()[-500:]}"
            ) from exc


def network(token: str) -> Any:
    """Everything is allowed, and github.com sees the token, which the sandbox does not."""
    credentials = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"}
    return {
        "allow_out": ["0.0.0.0/0"],  # a rule opens nothing by itself
        "rules": {"github.com": [{"transform": {"headers": headers}}]},
    }


def _execution_id() -> str:
    try:
        return execution().id
    except RuntimeError:  # a driver that is tried out by itself
        return "e2b"
