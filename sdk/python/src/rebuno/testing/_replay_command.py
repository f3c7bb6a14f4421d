# SPDX-License-Identifier: Apache-2.0
"""`python -m rebuno.testing.replay`."""

import argparse
import asyncio
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._divergence import Divergence, differences, place_of, printable
from ._recording import RecordedStep
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
    logging.getLogger("rebuno").addHandler(logging.NullHandler())  # failures are told below
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
    except (OSError, ValueError, RuntimeError) as exc:
        parser.error(str(exc))
    _say(result)
    sys.stdout.flush()
    if lines := _unlike(result):
        if result.error is not None:
            trace = "".join(traceback.format_exception(result.error)).splitlines()
            print(*map(printable, trace), sep="\n", file=sys.stderr)
        sys.exit("\n".join(["it came to something else than the run:", *lines]))


def _find(handler: str) -> Callable[..., Any]:
    """The function; the module is looked for here first, as a program's would be."""
    module, _, name = handler.partition(":")
    if not name or module.endswith(".py") or "/" in module:
        meant = f"{Path(module).stem or 'agent'}:{name or 'process'}"
        raise ValueError(f"{handler!r}: name the handler as MODULE:FUNCTION, such as {meant}")
    sys.path.insert(0, os.getcwd())
    # An Agent that the module makes asks for these; it is never started.
    os.environ.setdefault("REBUNO_URL", "http://replay.invalid")
    os.environ.setdefault("REBUNO_AGENT_SECRET", "replay")
    found: Any = _import(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"{module} has no function {name!r}: name it as MODULE:FUNCTION")
    process: Callable[..., Any] = found
    return process


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as exc:
        if isinstance(exc, ModuleNotFoundError) and f"{module}.".startswith(f"{exc.name}."):
            raise ValueError(f"there is no module {exc.name} in {os.getcwd()}") from None
        at = f", at {place}" if (place := place_of(exc)) else ""
        said = printable(f"{type(exc).__name__}: {exc}{at}")
        raise ValueError(f"{module} cannot be imported: {said}") from None


def _say(result: Replay) -> None:
    run = result.recording
    print(f"{len(result.steps)} of {len(run.steps)} steps of {run.source} replayed")
    for step in result.unasked:
        print(f"not asked for: step {_named(step)}")
    if result.status != "open":
        print(_ending(result))
    elif result.ends_at is not None:
        step = result.ends_at
        print(f"the recording ends at step {_named(step)} {step.status}")
    else:
        print("the recording ends here, and the handler goes on")


def _named(step: RecordedStep) -> str:
    return printable(f"{step.number}: {step.kind} {step.target}")


def _ending(result: Replay) -> str:
    """What the handler came to; of failures the reasons, this one's and the recorded one's."""
    before, now = result.recording.failure_reason, result.failure_reason
    if now and before == now:
        return printable(f"the handler failed as the run had: {now}")
    came = f"the handler {result.status}{': ' * bool(now)}{now}"
    if now and (place := place_of(result.error)):
        came += f" (in {place})"
    lines = [came]
    if before:
        lines.append(f"the run had failed: {before}")
    elif now and not result.recording.is_open:
        lines.append("the run had completed")
    return "\n".join(map(printable, lines))


def _unlike(result: Replay) -> list[str]:
    """What differs from the outcome that was recorded, if both have one."""
    run = result.recording
    if result.status == "open" or run.is_open:
        return []
    reasons = differences(run.failure_reason, result.failure_reason, "failure_reason")
    return reasons + differences(run.output, result.output, "output")
