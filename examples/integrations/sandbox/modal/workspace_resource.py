# SPDX-License-Identifier: Apache-2.0
"""The workspace: a checkout of a GitHub repository in a Modal sandbox."""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

import modal
import modal.experimental
from modal.exception import NotFoundError
from rebuno import CheckpointUnavailable, execution

APP = "rebuno-sandbox"
WORKDIR = "/root/repo"
SETUP_SECONDS = 300
OPEN_SECONDS = 60

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


class ModalHandle:
    """What the tools work in: a sandbox's commands and files. Modal cannot pause it."""

    def __init__(self, sandbox: modal.Sandbox) -> None:
        self.sandbox = sandbox
        self.exec = sandbox.exec
        self.filesystem = sandbox.filesystem

    async def branch(self) -> str:
        """The branch that is checked out."""
        process = await self.exec.aio(
            "git", "branch", "--show-current", workdir=WORKDIR, timeout=60
        )
        if not (name := (await process.stdout.read.aio()).strip()):
            stderr = await process.stderr.read.aio()
            raise RuntimeError(f"no branch is checked out in the workspace. {stderr}")
        return name


class ModalResource:
    """A driver whose sandboxes hold a checkout of `repo`, each on a branch of its own.

    `token` stays outside of them: Modal adds it to what they send to github.com.
    """

    driver_id = "example.modal.v1"

    def __init__(self, repo: str, token: str) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise ValueError(f"REPO is a repository on GitHub as owner/name, not {repo!r}")
        self._repo = repo
        self._token = token

    @property
    def configuration(self) -> dict[str, Any]:
        """What makes this driver's sandboxes others than those of a second one."""
        return {"repo": self._repo}

    async def create(self, checkpoint_ref: str | None = None) -> tuple[ModalHandle, dict[str, Any]]:
        """Makes a sandbox from a snapshot's image, or else with a fresh checkout."""
        app = await modal.App.lookup.aio(APP, create_if_missing=True)
        policy = await outbound_policy(self._token)
        image = _image(checkpoint_ref)
        try:
            sandbox = await modal.Sandbox.create.aio(
                app=app, image=image, timeout=3600, _experimental_outbound_policy=policy
            )
        except NotFoundError as exc:
            if not checkpoint_ref:
                raise
            raise CheckpointUnavailable(f"the snapshot {checkpoint_ref} is gone: {exc}") from exc
        workspace = ModalHandle(sandbox)
        try:
            await self._set_up(workspace, is_new=not checkpoint_ref)
        except BaseException:
            await sandbox.terminate.aio()
            raise
        return workspace, {"sandbox_id": sandbox.object_id}

    async def open(self, binding: Mapping[str, Any]) -> ModalHandle:
        """Connects to the sandbox that was recorded, with the token that this process has now."""
        sandbox_id = binding["sandbox_id"]
        policy = await outbound_policy(self._token)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                sandbox = await modal.Sandbox.from_id.aio(sandbox_id)
                if await sandbox.poll.aio() is not None:
                    raise SandboxGone(f"the sandbox {sandbox_id} has ended, after its hour")
                await sandbox._experimental_update_outbound_policy.aio(policy)
        except NotFoundError as exc:
            raise SandboxGone(f"the sandbox {sandbox_id} is gone: {exc}") from exc
        except TimeoutError as exc:  # the package waits without end for one that ends just now
            raise SandboxGone(f"the sandbox {sandbox_id} does not answer") from exc
        return ModalHandle(sandbox)

    async def checkpoint(self, handle: ModalHandle) -> str:
        """Makes an image of the sandbox's files, one that does not expire."""
        image = await handle.sandbox.snapshot_filesystem.aio(timeout=SETUP_SECONDS, ttl=None)
        return image.object_id

    async def _set_up(self, workspace: ModalHandle, *, is_new: bool) -> None:
        url = f"https://github.com/{self._repo}" if is_new else ""
        # Random, too: a sandbox that was lost before it was recorded may have used the name.
        branch = f"rebuno/{_execution_id()}-{secrets.token_hex(4)}"
        words = ["-c", SETUP, "setup", WORKDIR, branch, url]
        process = await workspace.exec.aio("bash", *words, timeout=SETUP_SECONDS)
        stderr = await process.stderr.read.aio()
        if await process.wait.aio() != 0:
            what = f"no checkout of {url}" if is_new else "no branch of its own"
            name = workspace.sandbox.object_id
            raise RuntimeError(f"{name}: {what}: {stderr.strip()[-500:]}")


async def outbound_policy(token: str) -> modal.experimental.OutboundPolicy:
    """github.com sees the token, which the sandbox does not; each token has a secret of its own."""
    credentials = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    name = f"rebuno-github-{hashlib.sha256(credentials.encode()).hexdigest()[:16]}"
    await modal.Secret.objects.create.aio(name, {"GITHUB_BASIC": credentials}, allow_existing=True)
    return modal.experimental.OutboundPolicy().with_header_replacement(
        domain="github.com",
        secret=modal.Secret.from_name(name),
        headers={"Authorization": "Basic $GITHUB_BASIC"},
    )


def _image(checkpoint_ref: str | None) -> modal.Image:
    if checkpoint_ref:
        return modal.Image.from_id(checkpoint_ref)
    return modal.Image.debian_slim(python_version="3.12").apt_install("git")


def _execution_id() -> str:
    try:
        return execution().id
    except RuntimeError:  # a driver that is tried out by itself
        return "modal"
