# SPDX-License-Identifier: Apache-2.0
"""The workspace of this example, and the place where its pull requests go."""

import asyncio
import json
import os
from pathlib import Path

from rebuno.sandbox.local import LocalSandbox, SandboxError, Workspace


class LocalResource(LocalSandbox):
    """A checkout of a repository, in a sandbox on this machine.

    `LocalSandbox` does all of it; see there for network, limits and what commands may see.
    """

    def __init__(self, repo: str) -> None:
        super().__init__(repo)


async def open_pull_request(workspace: Workspace, repo: str, title: str, body: str) -> str:
    """Pushes the workspace's branch and writes the pull request down beside it.

    There is no account and no server, so a pull request is a file of the repository:
    `pulls/<branch>.json` in the bare repository, or in the `.git` of one that is checked out.
    """
    if not Path(repo).is_dir():
        raise SandboxError(f"pull requests are kept in a repository on this machine, not in {repo}")
    commit = await workspace.push()
    branch = str(workspace.branch)
    record = {"title": title, "body": body, "branch": branch, "commit": commit}
    return await asyncio.to_thread(_write, Path(repo), branch, record)


def _write(repo: Path, branch: str, record: dict[str, str]) -> str:
    folder = (repo / ".git" if (repo / ".git").is_dir() else repo) / "pulls"
    folder.mkdir(exist_ok=True)
    path = folder / f"{branch.replace('/', '-')}.json"
    written = path.with_suffix(".new")
    written.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(written, path)
    return str(path)
