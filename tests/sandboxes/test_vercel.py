# SPDX-License-Identifier: Apache-2.0
"""The Vercel example from end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_vercel import FakeVercel
from github import GitHub
from stories import Stories
from web import served


@pytest.fixture
def fake(tmp_path: Path, github: GitHub) -> Iterator[FakeVercel]:
    fake = FakeVercel(tmp_path / "vercel", github)
    with served(fake.app()) as fake.url:
        yield fake


class TestVercel(Stories):
    name = "vercel"
    repo = "repo"
    slow = "exit code 137\n"
    variables = (
        *("VERCEL_TOKEN", "VERCEL_TEAM_ID", "VERCEL_PROJECT_ID", "REPO", "GITHUB_TOKEN"),
        *("LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY"),
    )
