"""Fixtures of the tests that run the command line."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Kernel
from harness.cli import Cli, Following

Follow = Callable[..., Following]


@pytest.fixture
def cli(kernel: Kernel, tmp_path: Path) -> Cli:
    return Cli(kernel, tmp_path)


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Starts commands that go on, such as `exec watch`."""
    made: list[Following] = []

    def start(cli: Cli, *words: str) -> Following:
        made.append(Following(cli.spawn(*words)))
        return made[-1]

    yield start
    for following in made:
        following.close()
