#!/usr/bin/env python3
"""What the rules of the house ask of src/ and grep can see. Prints what is wrong and fails.

By clang-format's layout, a function begins with a `{` in the first column and ends with a `}`
there.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPDX = "SPDX-License-Identifier: Apache-2.0"
FILE_LINES = 600
FUNCTION_LINES = 80
TOKENS = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
NEVER = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atoll|atof|alloca)\s*\(")
PRINTS = re.compile(r"\b(v?f?printf|f?puts|putchar|f?putc|perror)\s*\(")


def code_only(text: str) -> str:
    """The text with comments and literals blanked, line by line."""
    return TOKENS.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def long_functions(lines: list[str]) -> list[tuple[int, int]]:
    """Line number and length of each body that is too long."""
    found = []
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            if number - start + 1 > FUNCTION_LINES:
                found.append((start, number - start + 1))
            start = None
    return found


def check(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    lines = code_only(text).split("\n")
    wrong = []
    if SPDX not in text.split("\n", 1)[0]:
        wrong.append(f"{name}:1: the first line is not the SPDX line")
    if len(lines) - 1 > FILE_LINES:
        wrong.append(f"{name}:{len(lines) - 1}: more than {FILE_LINES} lines")
    for number, length in long_functions(lines):
        wrong.append(f"{name}:{number}: a function of {length} lines, at most {FUNCTION_LINES}")
    prints = name.startswith("src/cli/")
    for number, line in enumerate(lines, 1):
        if found := NEVER.search(line):
            wrong.append(f"{name}:{number}: {found[1]} is not used here")
        if not prints and (found := PRINTS.search(line)):
            wrong.append(f"{name}:{number}: {found[1]} outside src/cli/; base/log.h is for logs")
        if path.suffix == ".c" and re.match(r"\s*extern\b", line):
            wrong.append(f"{name}:{number}: extern belongs into a header")
    return wrong


def main() -> int:
    paths = sorted(path for kind in ("c", "cc", "h") for path in ROOT.glob(f"src/**/*.{kind}"))
    wrong = [line for path in paths for line in check(path)]
    print("\n".join(wrong) if wrong else f"the style of {len(paths)} files is in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
