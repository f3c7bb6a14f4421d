"""Commands as a document shows them, run and compared with what it says they print.

Ids, times, durations, sizes and hashes may differ, an id only where the document has another one too.
"""

import re
import shlex
from collections.abc import Callable
from typing import Any

from harness.cli import Cli
from harness.documents import Block

ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}"
MAY_DIFFER = re.compile(
    rf"(?P<id>{ID})(?P<rest>-[0-9a-f]{{4}}-[0-9a-f]{{12}})?"
    r"|(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    r"|(?P<clock>\d\d:\d\d:\d\d\.\d{3})"
    r"|(?P<duration>\b\d+(?:m\d\ds|\.\d+s|ms|s)\b)"
    r"|(?P<size>\b\d+\.\d KiB\b)"
    r"|(?P<step>\b[0-9a-f]{64}\b)"
    r"|(?P<hash>[0-9a-f]{12}…)"
    r"|(?P<blanks>(?<=\S) {2,})"
)
SHAPES = {
    "date": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    "clock": r"\d\d:\d\d:\d\d\.\d{3}",
    "duration": r"\d+(?:m\d\ds|\.\d+s|ms|s)",
    "size": r"\d+\.\d KiB",
    "step": "[0-9a-f]{64}",
    "hash": "[0-9a-f]{12}…",
    "blanks": " {2,}",
}


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, output) in their order."""
    parts = re.split(r"(?m)^\$ (.*)\n", block.text)
    assert parts[0] == "", f"line {block.line}: output without a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


class Session:
    """Runs commands of a document; `ids` maps its ids to those of this run."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.ids: dict[str, str] = {}

    def words(self, command: str) -> list[str]:
        program, *words = shlex.split(command)
        assert program == "rebuno", command
        return [re.sub(ID, lambda found: self.ids[found[0]], word) for word in words]

    def check(self, expected: str, got: str) -> None:
        """Also learns the ids that are new."""
        pattern, at = "", 0
        new: dict[str, str] = {}
        for found in MAY_DIFFER.finditer(expected):
            pattern += re.escape(expected[at : found.start()])
            at = found.end()
            kind = str(found.lastgroup) if found["id"] is None else "id"
            pattern += self._id(found, new) if kind == "id" else SHAPES[kind]
        matched = re.fullmatch(pattern + re.escape(expected[at:]), got)
        assert matched, f"the document has:\n{expected}\nit prints:\n{got}"
        self.ids.update({known: matched[name] for known, name in new.items()})

    def _id(self, found: re.Match[str], new: dict[str, str]) -> str:
        short, rest = found["id"], "-[0-9a-f]{4}-[0-9a-f]{12}" if found["rest"] else ""
        if short in self.ids:
            return re.escape(self.ids[short]) + rest
        if short in new:
            return f"(?P={new[short]}){rest}"
        new[short] = f"id{len(new)}"
        return f"(?P<{new[short]}>{ID}){rest}"

    def run(self, command: str, expected: str) -> None:
        done = self.cli.run(*self.words(command), USER=None)
        output = (done.stdout + done.stderr).decode()
        self.check(expected, output)

    def run_all(self, block: Block, after: dict[str, Callable[[], Any]] | None = None) -> None:
        for command, expected in commands(block):
            self.run(command, expected)
            for beginning, hook in (after or {}).items():
                if command.startswith(beginning):
                    hook()
