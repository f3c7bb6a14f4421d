# SPDX-License-Identifier: Apache-2.0
"""What a replay complains of, in words. Pure."""

import json
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._recording import RecordedStep, Recording

_LINES = 12  # of a difference
_COLUMNS = 140  # of a value
_BEFORE = 40  # of a long text, before the place where it differs
_STEPS = 5  # of a list of steps
_NOTHING = object()


class Asked(NamedTuple):
    """A step as the handler asked for it."""

    kind: str
    target: str
    args: Any


class Divergence(AssertionError):
    """The agent does not do what was recorded.

    kind: `arguments` (a step with other arguments), `extra` (a step that was not recorded),
    `order` (one that came before another which had ended before it began), `missing` (the handler
    ended and had not asked for all), `request` (an HTTP request that no step records).
    recorded: the step of the recording that was due; for `missing` the first of `missing`. asked:
    what came instead. difference: what differs in the arguments, a line each. replayed: how many
    steps had replayed.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        recorded: RecordedStep | None = None,
        asked: Asked | None = None,
        difference: Sequence[str] = (),
        missing: Sequence[RecordedStep] = (),
        replayed: int = 0,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.recorded = recorded
        self.asked = asked
        self.difference = tuple(difference)
        self.missing = tuple(missing)
        self.replayed = replayed


class Standing(NamedTuple):
    """How far a replay has got. `due`: the first steps that were not asked for yet."""

    recording: Recording
    replayed: int
    due: Sequence[RecordedStep]


def other_step(asked: Asked, due: RecordedStep | None, at: Standing) -> Divergence:
    """A step came that was not recorded; `due` is one of the same name, if there is one."""
    if due is None:
        first = at.due[0] if at.due else None
        expected = _line("recorded", first) if first else "recorded  no more steps"
        rows = [expected, f"came      {_call(asked)}"]
        what = "a step came that was not recorded"
        return _divergence(what, rows, at, kind="extra", recorded=first, asked=asked)
    lines = differences(due.args, asked.args, "args")
    rows = [_line("recorded", due), f"came      {_call(asked)}", *_indented(lines)]
    if at.due[0] is not due:
        rows.append(_line("due was", at.due[0]))
    what = f"step {due.number} came with other arguments"
    return _divergence(
        what, rows, at, kind="arguments", recorded=due, asked=asked, difference=lines
    )


def too_early(step: RecordedStep, due: RecordedStep, at: Standing) -> Divergence:
    """A recorded step came before one that had ended before it began."""
    rows = [_line("recorded", due), _line("came", step)]
    what = f"step {step.number} came before step {due.number}"
    asked = Asked(step.kind, step.target, step.args)
    return _divergence(what, rows, at, kind="order", recorded=due, asked=asked)


def ended_early(
    missing: Sequence[RecordedStep], how: str, at: Standing, broke: BaseException | None = None
) -> Divergence:
    """The handler came to its end before it had asked for all steps; `broke`: by this error."""
    rows = [_line("recorded" if not at_ else "", one) for at_, one in enumerate(missing[:_STEPS])]
    if len(missing) > _STEPS:
        rows.append(f"          and {len(missing) - _STEPS} more")
    rows.append(f"came      {how}")
    steps = "1 step" if len(missing) == 1 else f"{len(missing)} steps"
    end = "the handler ended" if broke is None else f"the handler raised {_raised(broke)}"
    what = f"{end}, and {steps} had not been asked for"
    return _divergence(what, rows, at, kind="missing", recorded=missing[0], missing=missing)


def _raised(exc: BaseException) -> str:
    place = f" (in {found})" if (found := place_of(exc)) else ""
    return printable(_cut(f"{type(exc).__name__}: {exc}") + place)


def went_out(method: str, url: str, at: Standing) -> Divergence:
    """A recording HTTP client was to send what is no step."""
    rows = [f"came      {method} {url}"]
    return _divergence("an HTTP request came that no step records", rows, at, kind="request")


def _divergence(what: str, rows: Sequence[str], at: Standing, **details: Any) -> Divergence:
    run, agent = at.recording, at.recording.execution.get("agent_id", "")
    head = f"run       {run.id} of {agent}, {run.source}: {at.replayed} of {len(run.steps)} steps"
    lines = (f"  {printable(row)}" for row in (f"{head} had replayed", *rows))
    text = "\n".join([what, *lines])
    return Divergence(text, replayed=at.replayed, **details)


def _line(label: str, step: RecordedStep) -> str:
    return f"{label:<10}step {step.number}: {_call(Asked(step.kind, step.target, step.args))}"


def _call(asked: Asked) -> str:
    return f"{asked.kind} {asked.target} {_cut(_json(asked.args))}"


def _indented(lines: Sequence[str]) -> list[str]:
    shown = [f"  {line}" for line in lines[:_LINES]]
    hidden = len(lines) - len(shown)
    return [*shown, f"  and {hidden} lines more"] if hidden > 0 else shown


# Differences of JSON values


def differences(recorded: Any, came: Any, path: str) -> list[str]:
    """Says what differs, a `-` and a `+` line for each place."""
    return [line for place in _places(recorded, came, path) for line in place]


def _places(one: Any, two: Any, path: str) -> Iterator[list[str]]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in [*one, *(key for key in two if key not in one)]:
            place = f"{path}.{key}" if key.isidentifier() else f"{path}[{_json(key)}]"
            yield from _places(one.get(key, _NOTHING), two.get(key, _NOTHING), place)
    elif isinstance(one, list) and isinstance(two, list):
        for index in range(max(len(one), len(two))):
            left, right = (side[index] if index < len(side) else _NOTHING for side in (one, two))
            yield from _places(left, right, f"{path}[{index}]")
    elif _json(one) != _json(two):
        start = _first_difference(one, two)
        sides = (("-", one), ("+", two))
        yield [
            printable(f"{sign} {path}  {_cut(_json(v), start)}")
            for sign, v in sides
            if v is not _NOTHING
        ]


def _first_difference(one: Any, two: Any) -> int:
    if one is _NOTHING or two is _NOTHING:
        return 0
    pairs = enumerate(zip(_json(one), _json(two), strict=False))
    return next((at for at, (left, right) in pairs if left != right), 0)


def _json(value: Any) -> str:
    return "" if value is _NOTHING else json.dumps(value, ensure_ascii=False)


def _cut(text: str, differs_at: int = 0) -> str:
    """The text, or of a long one what is around the place where it differs."""
    if len(text) <= _COLUMNS:
        return text
    start = max(0, min(differs_at - _BEFORE, len(text) - _COLUMNS))
    piece = text[start : start + _COLUMNS]
    return ("…" if start else "") + piece + ("…" if start + _COLUMNS < len(text) else "")


_JOINERS = "\u200c\u200d"  # which scripts and emoji need


def printable(text: str) -> str:
    """One line of text that came from elsewhere, with escapes for what could drive a terminal."""
    return "".join(
        one if one.isprintable() or one in _JOINERS else one.encode("unicode_escape").decode()
        for one in text
    )


# Where the handler was

_NOT_THE_USERS = (
    "<frozen ",  # of the standard library, too: `os.environ["X"]` raises in `<frozen os>`
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def place_of(exc: BaseException | None) -> str:
    """The innermost line of the user's own code that an exception came through."""
    frames = [] if exc is None else traceback.extract_tb(exc.__traceback__)
    mine = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f"{mine[-1].name}, {mine[-1].filename}:{mine[-1].lineno}" if mine else ""
