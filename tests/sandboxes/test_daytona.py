# SPDX-License-Identifier: Apache-2.0
"""The Daytona example from end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_daytona import FakeDaytona
from github import GitHub
from stories import Stories
from web import served


@pytest.fixture
def fake(tmp_path: Path, github: GitHub) -> Iterator[FakeDaytona]:
    fake = FakeDaytona(tmp_path / "daytona", github)
    with served(fake.app()) as fake.url:
        yield fake


class TestDaytona(Stories):
    name = "daytona"
    repo = "repo"
    wakes_by_itself = False
    variables = (
        "DAYTONA_API_KEY",
        "REPO",
        "GITHUB_TOKEN",
        "LLM_MODEL",
        "LLM_BASE_URL",
        "LLM_API_KEY",
    )
