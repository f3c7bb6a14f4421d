#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures snapshots and restores of a sandbox of 10,000 files, beside `cp -a` of the same tree.

    .venv/bin/python bench/sandbox.py [--folder DIR] [--files N] [--rounds N] [--json]

A restore takes the spare copy that is ready; a second one at once finds none, and copies everything
while the next spare is made. Sandboxes are removed only in the end: some file systems create files
slowly after many were removed.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rebuno.sandbox.local import LocalSandbox, Workspace

A_FOLDER = 100  # files
CHANGES = (0, 10, 1000)
RESTORED = 10

Add = Callable[[str, float], None]


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Milliseconds, and the result."""
    began = time.perf_counter()
    result = await work()
    return (time.perf_counter() - began) * 1000, result


def fill(root: Path, files: int) -> None:
    """A tree of small files, a hundred in each folder."""
    for number in range(files):
        folder = root / f"folder{number // A_FOLDER}"
        folder.mkdir(exist_ok=True)
        (folder / f"file{number % A_FOLDER}").write_text(f"file {number}\n" * 200)


def change(root: Path, files: int, count: int, round_: int) -> None:
    """Other contents of the same size for some files, spread over the folders."""
    for number in range(0, files, max(1, files // count))[:count] if count else ():
        path = root / f"folder{number // A_FOLDER}" / f"file{number % A_FOLDER}"
        path.write_text(f"{round_:04} {number}\n" * 200)


async def copy(source: Path, target: Path) -> None:
    """What a copy of everything costs."""
    process = await asyncio.create_subprocess_exec("cp", "-a", str(source), str(target))
    if await process.wait() != 0:
        raise SystemExit("cp -a failed")


async def measure(folder: Path, files: int, rounds: int) -> dict[str, Any]:
    """Milliseconds: medians of the rounds."""
    driver = LocalSandbox(folder=folder / "store")
    handle, _ = await driver.create()
    fill(handle.path, files)
    first, _ = await timed(lambda: driver.checkpoint(handle))
    found: dict[str, list[float]] = {"first snapshot": [first]}

    def add(name: str, milliseconds: float) -> None:
        found.setdefault(name, []).append(milliseconds)

    for round_ in range(rounds):
        await snapshots(driver, handle, files, round_, add)
        target = folder / f"copy{round_}"
        spent, _ = await timed(lambda target=target: copy(handle.path, target))  # type: ignore[misc]
        add("cp -a", spent)
        await restores(driver, handle, files, round_, add)
    return {"files": files, "rounds": rounds} | {
        name: round(statistics.median(times), 1) for name, times in found.items()
    }


async def snapshots(
    driver: LocalSandbox, handle: Workspace, files: int, round_: int, add: Add
) -> None:
    """One for each number of changed files."""
    for count in CHANGES:
        await driver.settle()
        change(handle.path, files, count, round_)
        spent, _ = await timed(lambda: driver.checkpoint(handle))
        add(f"snapshot, {count} changed", spent)


async def restores(
    driver: LocalSandbox, handle: Workspace, files: int, round_: int, add: Add
) -> None:
    """Of what has changed in few files since the spare was made."""
    spent, _ = await timed(driver.settle)
    add("spare brought forward", spent)
    change(handle.path, files, RESTORED, -1 - round_)
    reference = await driver.checkpoint(handle)
    await driver.settle()
    for name in ("restore", "second restore at once"):
        spent, _ = await timed(lambda: driver.create(reference))
        add(name, spent)
    spent, _ = await timed(driver.settle)
    add("spare made", spent)


def main() -> None:
    """Measures below a folder of its own, and removes it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp"), help="on the disk to measure"
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rebuno-bench-", dir=args.folder))
    try:
        figures = asyncio.run(measure(folder, args.files, args.rounds))
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=False)
    if args.json:
        print(json.dumps(figures))
        return
    print(f"{figures['files']} files, medians of {figures['rounds']}")
    for name, value in figures.items():
        if isinstance(value, float):
            print(f"{name:24} {value:9.1f} ms {value / figures['cp -a']:7.2f} x cp -a")


if __name__ == "__main__":
    main()
