# SPDX-License-Identifier: Apache-2.0
"""GitHub on this machine: bare repositories, and the part of its API that opens pull requests."""

import base64
import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from web import served

MAIN = "main"
IDENTITY = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.com"}
IDENTITY |= {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.com"}

# What the examples' tasks are about.
FILES = {
    "middle.py": "def middle(values):\n    return values[len(values) // 2]\n",
    "test_middle.py": """\
import unittest

from middle import middle


class MiddleTest(unittest.TestCase):
    def test_middle(self):
        self.assertEqual(middle([3, 1, 2]), 2)
""",
}
FIXED = "def middle(values):\n    return sorted(values)[len(values) // 2]\n"


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    env = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return done.stdout.strip()


@dataclass
class GitHub:
    """`requests` holds method, path and body of each call of the API; `pulls` what was opened."""

    folder: Path
    token: str = "ghp_secret-of-the-agent"
    repo: str = "acme/middle"
    url: str = ""
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def basic(self) -> str:
        """What drivers make of the token for Git."""
        return base64.b64encode(f"x-access-token:{self.token}".encode()).decode()

    @property
    def bare(self) -> Path:
        return self.folder / self.repo

    def git_url(self, authorization: str) -> str:
        """Where Git finds https://github.com/ with this header: nowhere, if it is wrong."""
        accepted = authorization == f"Basic {self.basic}"
        return f"file://{self.folder}/" if accepted else f"file://{self.folder}/unauthorized/"

    def branches(self) -> list[str]:
        return git(self.bare, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()

    def show(self, branch: str, path: str) -> str:
        return git(self.bare, "show", f"{branch}:{path}")

    def make_repository(self) -> None:
        work = self.folder / "work"
        work.mkdir(parents=True)
        git(work, "init", "-q", "-b", MAIN)
        for name, text in FILES.items():
            (work / name).write_text(text)
        git(work, "add", ".")
        git(work, "commit", "-qm", "first")
        git(self.folder, "clone", "-q", "--bare", str(work), str(self.bare))
        (self.folder / f"{self.repo}.git").symlink_to(self.bare.name)

    def app(self) -> Starlette:
        here = "/repos/{owner}/{name}"
        return Starlette(
            routes=[
                Route(here, self._repository),
                Route(f"{here}/pulls", self._list, methods=["GET"]),
                Route(f"{here}/pulls", self._open, methods=["POST"]),
            ]
        )

    async def _checked(self, request: Request) -> Response | None:
        body = await request.json() if request.method == "POST" else dict(request.query_params)
        self.requests.append((request.method, request.url.path, body))
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"message": "Bad credentials"}, 401)
        if "{owner}/{name}".format(**request.path_params) != self.repo:
            return JSONResponse({"message": "Not Found"}, 404)
        return None

    async def _repository(self, request: Request) -> Response:
        refused = await self._checked(request)
        return refused or JSONResponse({"full_name": self.repo, "default_branch": MAIN})

    async def _list(self, request: Request) -> Response:
        if refused := await self._checked(request):
            return refused
        head = request.query_params.get("head", "").partition(":")[2]
        return JSONResponse([pull for pull in self.pulls if pull["head"]["ref"] == head])

    async def _open(self, request: Request) -> Response:
        if refused := await self._checked(request):
            return refused
        body = await request.json()
        if problem := self._problem(body):
            errors = [{"resource": "PullRequest", "code": "custom", "message": problem}]
            return JSONResponse({"message": "Validation Failed", "errors": errors}, 422)
        number = len(self.pulls) + 1
        pull = {"number": number, "html_url": f"https://github.com/{self.repo}/pull/{number}"}
        pull |= {"title": body["title"], "body": body["body"], "state": "open"}
        pull |= {"head": {"ref": body["head"]}, "base": {"ref": body["base"]}}
        self.pulls.append(pull)
        return JSONResponse(pull, 201)

    def _problem(self, body: dict[str, Any]) -> str:
        head, base, owner = body["head"], body["base"], self.repo.partition("/")[0]
        if head not in self.branches() or base not in self.branches():
            return f"no branch {head} or {base}"
        if git(self.bare, "rev-list", f"{base}..{head}") == "":
            return f"No commits between {base} and {head}"
        if any(pull["head"]["ref"] == head for pull in self.pulls):
            return f"A pull request already exists for {owner}:{head}."
        return ""


@contextlib.contextmanager
def local_github(folder: Path) -> Iterator[GitHub]:
    """A GitHub that answers: its API at `url`, its repositories below `folder`."""
    github = GitHub(folder)
    github.make_repository()
    with served(github.app()) as github.url:
        yield github
