# SPDX-License-Identifier: Apache-2.0
"""What the tests of all sandbox examples share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from github import GitHub, local_github


@pytest.fixture
def github(tmp_path: Path) -> Iterator[GitHub]:
    with local_github(tmp_path / "github") as github:
        yield github
