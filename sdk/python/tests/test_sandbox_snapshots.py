"""Snapshots of local sandboxes: what they keep, what they cost, what becomes of damage."""

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import resource
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sandboxes import object_of, objects, sandbox, tree

from rebuno import CheckpointUnavailable
from rebuno.sandbox import _store
from rebuno.sandbox._index import Index
from rebuno.sandbox.local import LocalSandbox, SandboxError, SandboxGone, Workspace

AGES_AGO = 1_000_000_000


def age(root: Path) -> None:
    """Waits until the file system's clock is past the last change of anything in the tree."""
    newest = max(path.lstat().st_ctime_ns for path in (root, *root.rglob("*")))
    probe = root.parent / "probe"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        probe.touch()
        if probe.stat().st_ctime_ns > newest:
            return
        time.sleep(0.001)
    raise AssertionError("the clock of the file system stands still")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that snapshots read."""
    noted: list[str] = []
    original = _store.Batch.put_file

    def put_file(self: _store.Batch, source: int) -> tuple[str, int]:
        noted.append(os.readlink(f"/proc/self/fd/{source}"))
        return original(self, source)

    monkeypatch.setattr(_store.Batch, "put_file", put_file)
    return noted


async def test_everything_that_matters_survives(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    root = handle.path
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o600)
    (root / "empty").mkdir()
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "data").write_bytes(bytes(range(256)) * 20_000)
    (root / "a" / "none").write_bytes(b"")
    (root / "a" / "link").symlink_to("b/data")
    (root / "a" / "out").symlink_to("/etc/passwd")
    (root / "a" / "dangling").symlink_to("nowhere/at all")
    (root / os.fsdecode(b"not utf-8 \xff\n")).write_text("odd")
    (root / "ünïcode 'quoted\"").write_text("name")
    os.utime(root / "run.sh", ns=(AGES_AGO, AGES_AGO))
    (root / "a" / "closed").mkdir()
    (root / "a" / "closed" / "inside").write_text("x")
    (root / "a" / "closed").chmod(0o555)
    before = tree(root)
    restored, binding = await driver.create(await driver.checkpoint(handle))
    assert tree(restored.path) == before
    assert (restored.path / "run.sh").stat().st_mtime_ns == AGES_AGO
    assert binding == {"path": str(restored.path), "branch": None}
    assert restored.path != handle.path


async def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    for name in ("keep", "drop", "folder/file", "becomes"):
        await handle.write_file(name, name)
    first = await driver.checkpoint(handle)
    (handle.path / "drop").unlink()
    (handle.path / "folder" / "file").unlink()
    (handle.path / "folder").rmdir()
    (handle.path / "becomes").unlink()
    (handle.path / "becomes").mkdir()
    second = await driver.checkpoint(handle)
    restored, _ = await driver.create(second)
    assert sorted(tree(restored.path)) == ["becomes", "keep"]
    assert tree(restored.path)["becomes"][0] == "folder"
    restored, _ = await driver.create(first)
    assert sorted(tree(restored.path)) == ["becomes", "drop", "folder", "folder/file", "keep"]


async def test_the_reference_is_the_content(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    await handle.write_file("a", "one")
    first = await driver.checkpoint(handle)
    assert await driver.checkpoint(handle) == first
    restored, _ = await driver.create(first)
    assert await driver.checkpoint(restored) == first
    await handle.write_file("a", "two")
    assert await driver.checkpoint(handle) != first
    assert first.startswith("sha256:")
    root = object_of(tmp_path, first.removeprefix("sha256:"))
    assert hashlib.sha256(root.read_bytes()).hexdigest() == first.removeprefix("sha256:")


async def test_equal_contents_are_stored_once(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    content = os.urandom(3 << 20)
    for name in ("a", "b", "deep/c"):
        await handle.write_file(name, content)
    await driver.checkpoint(handle)
    stored = sum(path.stat().st_size for path in objects(tmp_path))
    assert len(content) < stored < len(content) + 2000
    other, _ = await driver.create()
    await other.write_file("elsewhere", content)
    await driver.checkpoint(other)
    assert sum(path.stat().st_size for path in objects(tmp_path)) < stored + 1000


async def test_the_cost_is_that_of_the_changes(tmp_path: Path, reads: list[str]) -> None:
    driver = sandbox(tmp_path)
    handle, binding = await driver.create()
    for folder in range(20):
        (handle.path / f"d{folder}").mkdir()
        for file in range(50):
            (handle.path / f"d{folder}" / f"f{file}").write_text(f"{folder} {file}")
    age(handle.path)
    await driver.checkpoint(handle)
    assert len(reads) == 1000
    stored = objects(tmp_path)
    for folder in range(3):
        (handle.path / f"d{folder}" / "f7").write_text(f"changed {folder}")
    age(handle.path)
    reads.clear()
    await driver.checkpoint(handle)
    assert {Path(path).parent.name for path in reads} == {"d0", "d1", "d2"}
    assert len(reads) == 3
    assert len(objects(tmp_path) - stored) == 3 + 3 + 1  # files, their folders, the root
    reads.clear()
    reopened = await sandbox(tmp_path).open(binding)  # as another process
    await driver.checkpoint(reopened)
    assert reads == []


async def test_a_restored_copy_need_not_be_read(tmp_path: Path, reads: list[str]) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    for number in range(200):
        await handle.write_file(f"f{number}", str(number))
    ref = await driver.checkpoint(handle)
    restored, _ = await driver.create(ref)
    reads.clear()
    assert await driver.checkpoint(restored) == ref
    assert len(reads) < 200  # those that are younger than the clock can tell are read again


async def test_a_write_within_the_clocks_resolution_is_seen(tmp_path: Path) -> None:
    """The same size and times; only that it is young says that it may have changed."""
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    file = handle.path / "a"
    for number in range(100):
        file.write_text(f"{number:05}")
        os.utime(file, ns=(AGES_AGO, AGES_AGO))
        ref = await driver.checkpoint(handle)
        restored, _ = await driver.create(ref)
        assert (restored.path / "a").read_text() == f"{number:05}"


@pytest.mark.parametrize("how", ["truncated", "garbage", "flipped"])
async def test_a_broken_index_is_not_believed(tmp_path: Path, how: str, reads: list[str]) -> None:
    driver = sandbox(tmp_path)
    handle, binding = await driver.create()
    await handle.write_file("a", "one")
    age(handle.path)
    ref = await driver.checkpoint(handle)
    index = handle.path.parent / "index"
    body = bytearray(index.read_bytes())
    assert b'"a"' in body
    if how == "truncated":
        del body[-5:]
    elif how == "flipped":
        body[-10] ^= 1
    else:
        body[:] = os.urandom(100)
    index.write_bytes(body)
    reads.clear()
    assert await driver.checkpoint(await driver.open(binding)) == ref
    assert len(reads) == 1


def test_an_index_knows_a_file_by_all_that_changes_with_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    index = Index(tmp_path / "index")
    index.add("", "file", file.stat(), "d1")
    age(tmp_path)
    index.end_of_writing()
    assert index.find("", "file", file.stat()) == "d1"
    assert index.find("elsewhere/", "file", file.stat()) is None
    (tmp_path / "other").write_text("two")
    os.utime(tmp_path / "other", ns=(file.stat().st_mtime_ns,) * 2)
    os.replace(tmp_path / "other", file)
    assert index.find("", "file", file.stat()) is None


async def test_snapshots_are_never_written_through(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    await handle.write_file("a", "one")
    ref = await driver.checkpoint(handle)
    inodes = {path.stat().st_ino for path in objects(tmp_path)}
    restored, _ = await driver.create(ref)
    assert not inodes & {(box.path / "a").stat().st_ino for box in (handle, restored)}
    assert {stat.S_IMODE(path.stat().st_mode) & 0o222 for path in objects(tmp_path)} == {0}


@pytest.mark.parametrize("can", [True, False])
async def test_large_files_are_cloned_where_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool
) -> None:
    """And hashed all the same. A file system that cannot is asked once."""
    asked = 0

    def ioctl(target: int, request: int, source: int) -> None:
        nonlocal asked
        asked += 1
        assert request == 0x40049409  # FICLONE, from linux/fs.h
        if not can:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.sendfile(target, source, 0, os.fstat(source).st_size)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    contents = {name: os.urandom(1 << 20) for name in ("a", "b", "c")}
    for name, content in {**contents, "small": b"s"}.items():
        await handle.write_file(name, content)
    ref = await driver.checkpoint(handle)
    restored, _ = await driver.create(ref)
    assert tree(restored.path) == tree(handle.path)
    assert asked == (3 if can else 1)
    (damaged,) = (path for path in objects(tmp_path) if path.read_bytes() == contents["b"])
    damaged.chmod(0o600)
    damaged.write_bytes(contents["a"])
    with pytest.raises(CheckpointUnavailable, match=str(damaged)):
        await driver.create(ref)


@pytest.mark.parametrize("which", ["root", "folder", "file"])
@pytest.mark.parametrize("damage", ["gone", "empty", "flipped", "swapped"])
async def test_a_damaged_snapshot_is_named(tmp_path: Path, which: str, damage: str) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    await handle.write_file("folder/file", "contents of the file")
    ref = await driver.checkpoint(handle)
    by_content = {path.read_bytes(): path for path in objects(tmp_path)}
    file = next(path for body, path in by_content.items() if body == b"contents of the file")
    root = object_of(tmp_path, ref.removeprefix("sha256:"))
    (folder,) = set(by_content.values()) - {file, root}
    target = {"root": root, "folder": folder, "file": file}[which]
    body = bytearray(target.read_bytes())
    target.unlink()
    if damage == "empty":
        target.write_bytes(b"")
    elif damage == "flipped":
        body[-1] ^= 1
        target.write_bytes(body)
    elif damage == "swapped":
        target.write_bytes(b'[493,[["link","../../escaped","/etc"]]]')
    with pytest.raises(CheckpointUnavailable) as raised:
        await driver.create(ref)
    assert ref in str(raised.value)
    assert str(target) in str(raised.value)
    assert [box.name for box in (tmp_path / "store" / "sandboxes").iterdir()] == [
        handle.path.parent.name
    ]


def forge(folder: Path, body: bytes) -> str:
    """Puts an object into the store, whatever it says. Returns its digest."""
    digest = hashlib.sha256(body).hexdigest()
    path = folder / "store" / "objects" / digest[:2] / digest[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body)
    return digest


async def test_a_list_with_names_that_lead_elsewhere_is_refused(tmp_path: Path) -> None:
    """Whoever can write to the store can also give a list the right name."""
    driver = sandbox(tmp_path)
    await driver.create()
    for name in ("../escaped", "..", "", "a/b"):
        digest = forge(tmp_path, f'[493,[["link","{name}","/etc"]]]'.encode())
        with pytest.raises(CheckpointUnavailable):
            await driver.create(f"sha256:{digest}")
    assert not (tmp_path / "store" / "sandboxes" / "escaped").is_symlink()


@pytest.mark.parametrize("ref", ["sha256:" + "0" * 64, "sha256:../../etc/passwd", "im-123", "x"])
async def test_a_reference_to_nothing_is_named(tmp_path: Path, ref: str) -> None:
    with pytest.raises(CheckpointUnavailable, match=ref):
        await sandbox(tmp_path).create(ref)


async def test_a_sandbox_that_is_gone_is_named(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, binding = await driver.create()
    handle.path.rename(tmp_path / "moved")
    with pytest.raises(SandboxGone, match=str(handle.path)):
        await driver.open(binding)
    with pytest.raises(SandboxGone, match=str(handle.path)):
        await handle.shell("true")
    with pytest.raises(SandboxError, match=str(handle.path)):
        await driver.checkpoint(handle)
    for nonsense in ({}, {"path": 7}, {"path": "/etc"}):
        with pytest.raises(SandboxError, match="not of a local sandbox"):
            await driver.open(nonsense)


async def test_what_is_no_file_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    await handle.write_file("a", "one")
    os.mkfifo(handle.path / "fifo")
    expected = ["fifo (FIFO)", "socket (socket)"]
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(handle.path, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{here}/socket")  # a socket's path must be short
        os.close(here)
    if os.geteuid() == 0:
        try:
            os.mknod(handle.path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            expected.append("device (device)")
        except PermissionError:
            pass
    with caplog.at_level(logging.WARNING, "rebuno"):
        async with asyncio.timeout(30):
            ref = await driver.checkpoint(handle)
    assert [entry for entry in expected if entry not in caplog.text] == []
    restored, _ = await driver.create(ref)
    assert sorted(tree(restored.path)) == ["a"]


async def test_unreadable_files_are_captured_all_the_same(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    await handle.write_file("closed/file", "inside")
    await handle.write_file("none", "nothing allowed")
    (handle.path / "none").chmod(0)
    (handle.path / "closed").chmod(0)
    ref = await driver.checkpoint(handle)
    for box in (handle, (await driver.create(ref))[0]):
        assert stat.S_IMODE((box.path / "none").stat().st_mode) == 0
        assert stat.S_IMODE((box.path / "closed").stat().st_mode) == 0
        (box.path / "none").chmod(0o600)
        (box.path / "closed").chmod(0o700)
        assert (box.path / "none").read_text() == "nothing allowed"
        assert (box.path / "closed" / "file").read_text() == "inside"


async def test_folders_too_deep_are_refused(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    descend = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    assert (await handle.shell(f'/usr/bin/python3 -c "{descend}"')).exit_code == 0
    with pytest.raises(SandboxError, match="nested more than"):
        await driver.checkpoint(handle)
    assert (await handle.shell("rm -rf d")).exit_code == 0
    assert await driver.checkpoint(handle)


async def test_a_file_that_keeps_changing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    await handle.write_file("log", "line\n")
    original = _store.Batch.put_file
    writes = 0

    def put_file(self: _store.Batch, source: int) -> tuple[str, int]:
        nonlocal writes
        read = original(self, source)
        if writes > 0:
            writes -= 1
            with (handle.path / "log").open("a") as log:
                log.write("one more line\n")
        return read

    monkeypatch.setattr(_store.Batch, "put_file", put_file)
    writes = 2
    restored, _ = await driver.create(await driver.checkpoint(handle))
    assert (restored.path / "log").read_bytes() == (handle.path / "log").read_bytes()
    writes = 100
    with pytest.raises(SandboxError, match="log keeps changing"):
        await driver.checkpoint(handle)


async def test_a_file_of_a_gibibyte_takes_little_memory(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    with (handle.path / "big").open("wb") as big:
        big.truncate(1 << 30)
        big.write(b"beginning")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ref = await driver.checkpoint(handle)
    restored, _ = await driver.create(ref)
    assert (restored.path / "big").stat().st_blocks * 512 < 64 << 20
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 << 10
    assert (restored.path / "big").stat().st_size == 1 << 30
    with (restored.path / "big").open("rb") as big:
        assert big.read(9) == b"beginning"


CAPTURE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sandboxes import sandbox

async def main():
    driver = sandbox(Path(sys.argv[2]))
    handle = await driver.open({"path": sys.argv[3]})
    print("begin", flush=True)
    print(await driver.checkpoint(handle), flush=True)

asyncio.run(main())
"""


def capturing(tmp_path: Path, handle: Workspace) -> "subprocess.Popen[str]":
    tests = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", CAPTURE, tests, str(tmp_path), str(handle.path)],
        stdout=subprocess.PIPE,
        text=True,
    )


async def filled(driver: LocalSandbox, files: int, size: int) -> Workspace:
    handle, _ = await driver.create()
    for number in range(files):
        (handle.path / f"f{number}").write_bytes(bytes([number % 251]) * size + b"%d" % number)
    return handle


async def test_processes_may_capture_at_once(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    one, two = await filled(driver, 100, 2000), await filled(driver, 150, 2000)
    processes = [capturing(tmp_path, handle) for handle in (one, two, one, two)]
    said = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert said[0] == said[2]
    assert said[1] == said[3]
    for handle, lines in ((one, said[0]), (two, said[1])):
        restored, _ = await driver.create(lines[1])
        assert tree(restored.path) == tree(handle.path)


async def test_a_capture_that_is_killed_leaves_no_half_objects(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle = await filled(driver, 300, 30_000)
    for number in range(6):
        process = capturing(tmp_path, handle)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        await asyncio.sleep(0.02 * number)  # another moment each time
        process.kill()
        process.communicate()
        for path in objects(tmp_path):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert digest == path.parent.name + path.name
    restored, _ = await driver.create(await driver.checkpoint(handle))
    assert tree(restored.path) == tree(handle.path)


async def test_left_overs_are_cleared_when_they_are_old(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    await driver.create()
    aside = tmp_path / "store" / "aside"
    for name in ("old", "young"):
        (aside / name).mkdir()
        (aside / name / "1").write_text("half")
    os.utime(aside / "old", (0, 0))
    await driver.create()
    assert [path.name for path in aside.iterdir()] == ["young"]


async def test_a_sandbox_that_cannot_be_filled_leaves_nothing(tmp_path: Path) -> None:
    driver = sandbox(tmp_path, tmp_path / "no such folder")
    with pytest.raises(SandboxError, match="no such folder is no folder"):
        await driver.create()
    assert list((tmp_path / "store" / "sandboxes").iterdir()) == []


async def test_a_folder_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "a").write_text("one")
    (source / "link").symlink_to("a")
    driver = sandbox(tmp_path, source)
    one, binding = await driver.create()
    assert tree(one.path) == tree(source)
    assert binding["branch"] is None
    await one.write_file("a", "two")
    assert (source / "a").read_text() == "one"
    two, _ = await driver.create()
    assert await two.read_file("a") == "one"


async def test_sandboxes_cannot_be_inside_of_their_source(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="inside"):
        await sandbox(tmp_path, tmp_path).create()


def test_the_configuration_is_json_without_credentials(tmp_path: Path) -> None:
    def source(url: Any) -> Any:
        return sandbox(tmp_path, url, env={"TOKEN": "hunter2"}).configuration["source"]

    assert source(None) is None
    assert source("https://u:hunter2@example.com/p.git") == "https://example.com/p.git"
    assert source("https://hunter2@example.com/p.git") == "https://example.com/p.git"
    assert source("ssh://git@example.com:22/p.git") == "ssh://git@example.com:22/p.git"
    assert source("ssh://git:hunter2@example.com/p.git") == "ssh://git@example.com/p.git"
    assert source("git@example.com:p.git") == "git@example.com:p.git"
    assert source("relative") == str(Path.cwd() / "relative")
    assert sandbox(tmp_path).configuration == {"source": None, "network": False}
    assert sandbox(tmp_path, network=True).configuration["network"] is True
