# SPDX-License-Identifier: Apache-2.0
"""Git, outside of sandboxes: fetching a checkout, and passing on what a sandbox committed.

A workspace's own `.git` is never used here. Its configuration and hooks name programs, and those
would run outside. What comes out of a sandbox is a bundle, which is data.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ._errors import SandboxError
from ._threads import in_thread

_SCP_LIKE = re.compile(r"[\w.-]+@[\w.-]+:(?!//)")
_SECONDS = 600.0
# Set when a Git hook started the agent: they would aim every command at that repository.
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


def is_url(source: str) -> bool:
    """Whether Git alone knows what to do with it."""
    return "://" in source or _SCP_LIKE.match(source) is not None


def is_repository(folder: Path) -> bool:
    """Whether a folder is a Git repository, with a checkout or without."""
    bare = all((folder / part).exists() for part in ("HEAD", "objects", "refs"))
    return bare or (folder / ".git").exists()


def without_credentials(url: str) -> str:
    """The URL as it may be written down: without a password or token."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    # `git@` of an ssh URL is no secret, the name in an https URL may be a token.
    keeps_name = parts.scheme not in ("http", "https") and name
    netloc = f"{name}@{host}" if at and keeps_name else host
    return urlunsplit(parts._replace(netloc=netloc))


async def clone(source: str, folder: Path) -> None:
    """A checkout that shares nothing with its source, and holds no credentials."""
    await git("clone", "-q", "--no-local", "--", source, str(folder))
    settings = {
        "remote.origin.url": without_credentials(source),
        "user.name": "rebuno",  # the sandbox sees no home, and a commit needs an author
        "user.email": "rebuno@localhost",
    }
    for name, value in settings.items():
        await git("-C", str(folder), "config", name, value)


async def push(take: Callable[[Path], None], branch: str, to: str) -> str:
    """Pushes a bundle's HEAD to a repository as a branch. Returns the commit.

    `take` puts the bundle into a file.
    """
    with tempfile.TemporaryDirectory(prefix="rebuno-") as folder:
        file, bare = Path(folder, "bundle"), str(Path(folder, "repository"))
        await in_thread(take, file)
        await git("init", "-q", "--bare", bare)
        await git("-C", bare, "config", "fetch.fsckObjects", "true")
        ref = f"refs/heads/{branch}"
        await git("-C", bare, "fetch", "-q", str(file), f"HEAD:{ref}")
        await git("-C", bare, "push", "-q", "--force", "--", to, f"{ref}:{ref}")
        return (await git("-C", bare, "rev-parse", ref)).strip()


async def git(*args: str) -> str:
    """Runs Git with the agent's own credentials and never a question."""
    env = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", *_QUIET, *args),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env | {"GIT_TERMINAL_PROMPT": "0"},
        )
    except FileNotFoundError as exc:
        raise SandboxError("git is not installed") from exc
    try:
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        said = f"git {' '.join(args)} failed: {err.decode(errors='replace').strip()}"
        for arg in args:
            said = said.replace(arg, without_credentials(arg))
        raise SandboxError(said)
    return out.decode(errors="replace")
