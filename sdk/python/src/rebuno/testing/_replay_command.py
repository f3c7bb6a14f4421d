# SPDX-License-Identifier: Apache-2.0
"""`python -m rebuno.testing.replay`."""

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._divergence import Divergence, differences
from ._replay import Replay, replay


def main(argv: Sequence[str] | None = None) -> None:
    """Replays; exits with 1 if the handler diverges or comes to something else."""
    parser = argparse.ArgumentParser(
        prog="python -m rebuno.testing.replay",
        description="Runs an agent's handler offline against an exported run.",
    )
    parser.add_argument("run", help="a file that 'rebuno exec export' has written")
    parser.add_argument("handler", help="MODULE:FUNCTION, such as agent:process")
    parser.add_argument("--any-order", action="store_true", help="the order of steps is free")
    parser.add_argument(
        "--allow-missing", action="store_true", help="the handler may end before the last step"
    )
    options = parser.parse_args(argv)
    try:
        process = _find(options.handler)
        result = asyncio.run(
            replay(
                options.run,
                process,
                any_order=options.any_order,
                allow_missing=options.allow_missing,
            )
        )
    except Divergence as exc:
        sys.exit("\n".join([str(exc), *getattr(exc, "__notes__", ())]))
    except (OSError, ValueError, ImportError, RuntimeError) as exc:
        parser.error(str(exc))
    _say(result)
    if lines := _unlike(result):
        sys.exit("\n".join(["it came to something else than the run:", *lines]))


def _find(handler: str) -> Callable[..., Any]:
    """The function; the module is looked for here first, as a program's would be."""
    module, _, name = handler.partition(":")
    sys.path.insert(0, os.getcwd())
    # An Agent that the module makes asks for these; it is never started.
    os.environ.setdefault("REBUNO_URL", "http://replay.invalid")
    os.environ.setdefault("REBUNO_AGENT_SECRET", "replay")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"{module} has no function {name!r}: name it as MODULE:FUNCTION")
    process: Callable[..., Any] = found
    return process


def _say(result: Replay) -> None:
    run = result.recording
    print(f"{len(result.steps)} of {len(run.steps)} steps of {run.source} replayed")
    for step in result.unasked:
        print(f"not asked for: step {step.number}: {step.kind} {step.target}")
    if result.status != "open":
        print(f"the handler {result.status}")
    elif result.ends_at is not None:
        step = result.ends_at
        print(f"the recording ends at step {step.number}: {step.kind} {step.target} {step.status}")
    else:
        print("the recording ends here, and the handler goes on")


def _unlike(result: Replay) -> list[str]:
    """What differs from the outcome that was recorded, if both have one."""
    run = result.recording
    if result.status == "open" or run.is_open:
        return []
    reasons = differences(run.failure_reason, result.failure_reason, "failure_reason")
    return reasons + differences(run.output, result.output, "output")
