"""What the tests of documents share."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Kernel
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
