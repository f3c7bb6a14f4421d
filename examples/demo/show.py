# SPDX-License-Identifier: Apache-2.0
"""What the viewer sees: lines with a time, paragraphs, two columns. Colour only at a terminal, without NO_COLOR."""

import os
import shlex
import shutil
import sys
import textwrap
import time

PLAIN, BOLD, DIM, RED, GREEN, YELLOW, CYAN = "0", "1", "2", "31", "32", "33", "36"
sys.stdout.reconfigure(errors="replace")  # whatever the terminal can show
IS_TERMINAL = sys.stdout.isatty()
COLOUR = IS_TERMINAL and not os.environ.get("NO_COLOR")
COLUMNS = max(60, min(shutil.get_terminal_size((100, 24)).columns, 160))
WHO = 11  # columns of the name in a line
started = time.monotonic()


def paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if COLOUR and code != PLAIN and text.strip() else text


def fit(text: str, columns: int) -> str:
    """One line, cut to its place. Control characters, which a model could send, become blanks."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= columns else clean[: columns - 2] + ".."


def head(text: str) -> None:
    print(f"\n{paint(f'-- {text} '.ljust(COLUMNS - 1, '-'), BOLD)}", flush=True)


def tell(text: str, code: str = PLAIN) -> None:
    """A paragraph of the story."""
    for line in textwrap.wrap(text, COLUMNS - 1, initial_indent="   ", subsequent_indent="   "):
        print(paint(line, code), flush=True)


def line(who: str, text: str, code: str = PLAIN) -> None:
    """Something that happened just now."""
    before = f"{time.monotonic() - started:6.1f}s  "
    room = COLUMNS - len(before) - WHO - 1
    print(before + paint(fit(who, WHO - 1).ljust(WHO), code) + paint(fit(text, room), code), flush=True)


def note(who: str, text: str, code: str) -> None:
    """The same, as long as it must be."""
    before = f"{time.monotonic() - started:6.1f}s  "
    indent = len(before) + WHO
    lines = textwrap.wrap(text, COLUMNS - indent - 1)
    for number, part in enumerate(lines):
        print((before + paint(who.ljust(WHO), code) if number == 0 else " " * indent) + paint(part, code), flush=True)


def command(*words: str) -> None:
    """What the viewer could type."""
    print(f"\n   {paint(f'$ {shlex.join(words)}', BOLD)}", flush=True)


def columns(left: str, right: str, rows: list[tuple[str, str, str]]) -> None:
    """Rows of (left, sign, right)."""
    half = (COLUMNS - 4) // 2
    print(f"{paint(fit(left, half).ljust(half), BOLD)}   {paint(fit(right, half), BOLD)}")
    for one, sign, other in rows:
        code, other_code = {"=": (DIM, DIM), "|": (RED, GREEN)}.get(sign, (PLAIN, PLAIN))
        print(f"{paint(fit(one, half).ljust(half), code)} {sign} {paint(fit(other, half), other_code)}".rstrip())
    sys.stdout.flush()


def difference(text: str) -> None:
    """The output of `diff -u`."""
    for one in text.splitlines():
        code = {"-": RED, "+": GREEN, "@": CYAN, "d": BOLD, "O": BOLD}.get(one[:1], PLAIN)
        print(f"   {paint(fit(one.expandtabs(4), COLUMNS - 4), code)}", flush=True)


def fact(name: str, text: str, holds: bool | None = None) -> None:
    """A line of the summary; with a mark if it was checked."""
    mark = {True: paint("ok   ", GREEN), False: paint("WRONG", RED), None: "     "}[holds]
    indent = " " * 21
    for number, part in enumerate(textwrap.wrap(text, COLUMNS - len(indent) - 1)):
        print(f"   {mark} {paint(name.ljust(12), BOLD)}{part}" if number == 0 else f"{indent}{part}", flush=True)
