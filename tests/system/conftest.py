"""What the tests of commands share."""

from collections.abc import Iterator

import pytest

from harness.scripted import ScriptedExecution, ScriptedKernel, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A kernel that has these executions, as the test has written them down."""
    made: list[ScriptedKernel] = []

    def start(*executions: ScriptedExecution) -> ScriptedKernel:
        made.append(ScriptedKernel(*executions))
        return made[-1]

    yield start
    for kernel in made:
        kernel.close()
