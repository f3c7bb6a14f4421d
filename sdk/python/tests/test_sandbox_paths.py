"""Paths that a model names: what they reach, and that nothing outside can be reached."""

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest
from sandboxes import SMALL, sandbox

from rebuno.sandbox.local import PathRefused, SandboxError, Workspace


@pytest.fixture
async def workspace(tmp_path: Path) -> Workspace:
    """A workspace beside things that it must not reach."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    handle, _ = await sandbox(tmp_path).create()
    return handle


OUTSIDE = [
    "../secret",
    "..",
    "a/../../secret",
    "a/..",
    "/etc/passwd",
    "/",
    "//etc/passwd",
    "to-outside/secret",
    "to-secret",
    "to-root/etc/passwd",
    "up/outside/secret",
    "a/far-up/outside/secret",
    "chain/secret",
    "to-proc/root/etc/passwd",
    "loop",
    "a\0b",
    "x" * 1001,
]


def set_traps(workspace: Workspace) -> None:
    root = workspace.path
    (root / "a").mkdir()
    (root / "to-outside").symlink_to(root.parents[3] / "outside")
    (root / "to-secret").symlink_to(root.parents[3] / "outside" / "secret")
    (root / "to-root").symlink_to("/")
    (root / "up").symlink_to("../../../..")
    (root / "a" / "far-up").symlink_to("../../../../..")
    (root / "chain").symlink_to("link-in-chain")
    (root / "link-in-chain").symlink_to("to-outside")
    (root / "to-proc").symlink_to("/proc/self")
    (root / "loop").symlink_to("loop")


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: repr(path[:20]))
async def test_paths_that_leave_are_refused(workspace: Workspace, path: str) -> None:
    set_traps(workspace)
    outside = workspace.path.parents[3] / "outside"
    with pytest.raises(PathRefused):
        await workspace.read_file(path)
    with pytest.raises(PathRefused):
        await workspace.write_file(path, "changed")
    with pytest.raises(PathRefused):
        await workspace.list(path)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret", "secret")]


async def test_a_dangling_link_to_the_outside_creates_nothing(workspace: Workspace) -> None:
    outside = workspace.path.parents[3] / "outside"
    (workspace.path / "new").symlink_to(outside / "new")
    (workspace.path / "up").symlink_to("../../../../outside/new")
    for path in ("new", "up", "new/deeper", "up/deeper"):
        with pytest.raises(PathRefused):
            await workspace.write_file(path, "x")
    assert [path.name for path in outside.iterdir()] == ["secret"]


async def test_links_within_are_followed(workspace: Workspace) -> None:
    await workspace.write_file("docs/guide/README.md", "hello")
    (workspace.path / "README").symlink_to("docs/guide/README.md")
    (workspace.path / "guide").symlink_to("./docs//guide/")
    (workspace.path / "docs" / "back").symlink_to("../guide/../guide/README.md")
    for path in ("README", "guide/README.md", "docs/back", "./docs/./guide//README.md"):
        assert await workspace.read_file(path) == "hello"
    await workspace.write_file("README", "changed")
    assert await workspace.read_file("docs/guide/README.md") == "changed"
    assert (workspace.path / "README").is_symlink()
    assert await workspace.list("guide") == ["README.md"]
    assert await workspace.list() == ["README", "docs/", "guide"]


async def test_files_are_written_and_read(workspace: Workspace) -> None:
    await workspace.write_file("deep/er/file.txt", "one\n")
    assert await workspace.read_file("deep/er/file.txt") == "one\n"
    await workspace.write_file("bytes", b"\xff\x00")
    assert await workspace.read_bytes("bytes") == b"\xff\x00"
    with pytest.raises(SandboxError, match="bytes is not UTF-8"):
        await workspace.read_file("bytes")
    for missing in ("nothing", "deep/nothing", "nothing/at/all"):
        with pytest.raises(FileNotFoundError, match=missing):
            await workspace.read_file(missing)
    with pytest.raises(FileNotFoundError, match="nothing"):
        await workspace.list("nothing")
    assert await workspace.list("deep") == ["er/"]


async def test_writing_keeps_permissions_and_other_names(workspace: Workspace) -> None:
    await workspace.write_file("run.sh", "old")
    file = workspace.path / "run.sh"
    file.chmod(0o755)
    outside = workspace.path.parents[3] / "outside" / "secret"
    os.link(outside, workspace.path / "hard")
    await workspace.write_file("run.sh", "new")
    await workspace.write_file("hard", "changed")
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
    assert outside.read_text() == "secret"
    assert await workspace.read_file("hard") == "changed"
    assert sorted(path.name for path in workspace.path.iterdir()) == ["hard", "run.sh"]


@pytest.mark.parametrize("path", ["folder", "fifo", "", ".", "file/", "file/below"])
async def test_what_is_no_file_is_refused(workspace: Workspace, path: str) -> None:
    (workspace.path / "folder").mkdir()
    (workspace.path / "file").write_text("x")
    os.mkfifo(workspace.path / "fifo")
    async with asyncio.timeout(30):
        with pytest.raises(PathRefused):
            await workspace.read_file(path)
        with pytest.raises(PathRefused):
            await workspace.write_file(path, "x")
    assert sorted(path.name for path in workspace.path.iterdir()) == ["fifo", "file", "folder"]


@pytest.mark.parametrize("path", ["n" * 256, "é" * 128, "a\ud800b", "x" * 1001, "\0"])
async def test_names_that_no_file_can_have_are_refused(workspace: Workspace, path: str) -> None:
    for call in (workspace.read_file(path), workspace.write_file(path, "x"), workspace.list(path)):
        with pytest.raises(PathRefused) as caught:
            await call
        assert str(caught.value).encode()  # a text that can be told


async def test_text_that_is_none(workspace: Workspace) -> None:
    """A model may be cut off within an emoji."""
    await workspace.write_file("kept", "before")
    with pytest.raises(SandboxError, match=r"kept: '\\ud83d' at 2 "):
        await workspace.write_file("kept", "ok\ud83d")
    assert await workspace.read_file("kept") == "before"
    await workspace.write_file("kept", "ok\U0001f600")
    assert await workspace.read_bytes("kept") == "ok😀".encode()


async def test_sizes_are_limited(workspace: Workspace) -> None:
    with pytest.raises(SandboxError, match=str(SMALL.file_bytes)):
        await workspace.write_file("big", b"x" * (SMALL.file_bytes + 1))
    with (workspace.path / "big").open("wb") as big:
        big.truncate(1 << 30)
    with pytest.raises(PathRefused, match=str(1 << 30)):
        await workspace.read_file("big")


async def test_swapping_a_folder_for_a_link_gains_nothing(workspace: Workspace) -> None:
    """A process exchanges a folder and a link to the outside as fast as it can."""
    root = workspace.path
    outside = root.parents[3] / "outside"
    (root / "real").mkdir()
    (root / "real" / "secret").write_text("harmless")
    (root / "link").symlink_to(outside)
    (root / "name").symlink_to("real")
    stop = threading.Event()

    def swap() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            os.symlink("real" if turn % 2 else "link", root / "next")
            os.rename(root / "next", root / "name")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(300):
            try:
                await workspace.write_file("name/secret", "harmless")
                seen.add(await workspace.read_file("name/secret"))
            except PathRefused:
                seen.add("refused")
    finally:
        stop.set()
        thread.join()
    assert "refused" in seen
    assert seen <= {"harmless", "refused"}
    assert (outside / "secret").read_text() == "secret"
