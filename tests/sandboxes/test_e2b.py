# SPDX-License-Identifier: Apache-2.0
"""The E2B example from end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_e2b import FakeE2B
from github import GitHub
from stories import Stories
from web import served


@pytest.fixture
def fake(tmp_path: Path, github: GitHub) -> Iterator[FakeE2B]:
    fake = FakeE2B(tmp_path / "e2b", github)
    with served(fake.app()) as fake.url:
        yield fake


class TestE2B(Stories):
    name = "e2b"
    repo = "repo"
    variables = ("E2B_API_KEY", "REPO", "GITHUB_TOKEN", "LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY")
