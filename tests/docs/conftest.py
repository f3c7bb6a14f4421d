"""What the tests of documents share."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Kernel
from harness.documents import Document
from harness.guide import Followed, Walk
from harness.kernel import BINARY

PolicyTest = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def policy_test(tmp_path: Path) -> PolicyTest:
    """`rebuno policy test` in the test's own folder."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [BINARY, "policy", "test", *words],
            check=False, capture_output=True, text=True, cwd=tmp_path, timeout=30,
        )  # fmt: skip

    return run


@pytest.fixture
def dev_kernel(launch: Callable[..., Kernel]) -> Kernel:
    return launch(mode="dev", args=["--memory"])


@pytest.fixture
def followed(new_kernel: Callable[..., Kernel], tmp_path: Path) -> Iterator[Followed]:
    """A reader of a guide, with a kernel and the guide's agents; on both databases."""
    walks: list[Walk] = []
    kernel = new_kernel()

    def new(document: Document, *programs: str) -> Walk:
        folder = tmp_path / "guide"
        folder.mkdir()
        walks.append(Walk(document, kernel, folder))
        walks[-1].serve(*programs)
        return walks[-1]

    yield new
    for walk in walks:
        walk.close()
