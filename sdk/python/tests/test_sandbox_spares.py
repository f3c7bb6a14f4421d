"""Spares of local sandboxes: a restore takes one, costs what changed, and trusts none too far."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandboxes import object_of, objects, sandbox, tree

from rebuno import CheckpointUnavailable
from rebuno.sandbox import _aside, _spares
from rebuno.sandbox._store import Store
from rebuno.sandbox.local import LocalSandbox, Workspace

FILES = 200
AGES_AGO = 1_000_000_000
LONG_AGO_S = 2 * _aside.JUST_MADE_S


@pytest.fixture(autouse=True)
def _spares_of_small_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spares, "FILES", FILES // 2)


def fill(root: Path, files: int = FILES) -> None:
    for number in range(files):
        folder = root / f"d{number % 10}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_text(f"file {number}\n" * 20)


async def filled(driver: LocalSandbox) -> tuple[Workspace, str]:
    """A workspace, and its snapshot, of which there is a spare then."""
    handle, _ = await driver.create()
    fill(handle.path)
    ref = await driver.checkpoint(handle)
    await driver.settle()
    return handle, ref


def spares(folder: Path) -> list[Path]:
    found = (folder / "store" / "spares").glob("*-*")
    return sorted(found)


def homes(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "sandboxes").iterdir())


def identities(root: Path) -> dict[str, tuple[int, int]]:
    """Of the files, by path: inodes, which are used again, and the times that tell their users."""
    stats = ((path, path.lstat()) for path in root.rglob("*"))
    return {
        str(path.relative_to(root)): (st.st_ino, st.st_ctime_ns)
        for path, st in stats
        if stat.S_ISREG(st.st_mode)
    }


async def test_a_restore_takes_the_spare_and_writes_what_changed(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await filled(driver)
    (spare,) = spares(tmp_path)
    ready = identities(spare / "workspace")
    for number in range(3):
        (handle.path / f"d{number}" / f"f{number}").write_text("changed")
    (handle.path / "d4" / "f4").unlink()
    (handle.path / "new").write_text("new")
    ref = await driver.checkpoint(handle)
    await driver.settle()
    assert spares(tmp_path) == [spare], "one that is near stays as it is"
    restored, _ = await driver.create(ref)
    assert tree(restored.path) == tree(handle.path)
    now = identities(restored.path)
    written = {path for path, identity in now.items() if ready.get(path) != identity}
    assert written == {"d0/f0", "d1/f1", "d2/f2", "new"}
    await driver.settle()
    (another,) = spares(tmp_path)
    assert another != spare
    assert tree(another / "workspace") == tree(handle.path)


def exchange(root: Path) -> None:
    """Everything that can become something else does."""
    (root / "d0" / "f0").unlink()
    (root / "d0" / "f0").mkdir()
    (root / "d0" / "f0" / "inside").write_text("x")
    shutil.rmtree(root / "d1")
    (root / "d1").write_text("a file now")
    shutil.rmtree(root / "d2")
    (root / "d2").symlink_to("d3")
    (root / "link").unlink()
    (root / "link").symlink_to("elsewhere")
    (root / "was link").unlink()
    (root / "was link").mkdir()
    (root / "empty").rmdir()
    (root / "now empty").mkdir()
    (root / "d3" / "f3").chmod(0o755)
    os.utime(root / "d3" / "f13", ns=(AGES_AGO, AGES_AGO))
    (root / "d4").chmod(0o555)
    (root / "closed").chmod(0o700)
    (root / "closed" / "inside").write_text("changed")
    (root / "closed").chmod(0)
    (root / os.fsdecode(b"odd \xff\n")).write_text("odd")
    (root / "none").write_bytes(b"")


def prepared(root: Path) -> None:
    (root / "link").symlink_to("d0/f0")
    (root / "was link").symlink_to("d0")
    (root / "empty").mkdir()
    (root / "closed").mkdir()
    (root / "closed" / "inside").write_text("x")
    (root / "closed").chmod(0)
    root.chmod(0o750)


async def test_whatever_becomes_something_else_is_that_in_the_copy(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await driver.create()
    fill(handle.path)
    prepared(handle.path)
    first = await driver.checkpoint(handle)
    await driver.settle()
    assert len(spares(tmp_path)) == 1
    before = tree(handle.path)
    exchange(handle.path)
    second = await driver.checkpoint(handle)
    after = tree(handle.path)
    for ref, expected in ((second, after), (first, before), (second, after)):
        await driver.settle()
        (spare,) = spares(tmp_path)
        kept = set(identities(spare / "workspace").values())
        restored, _ = await driver.create(ref)
        assert len(kept & set(identities(restored.path).values())) > FILES // 2, "it was not used"
        assert tree(restored.path) == expected
        assert stat.S_IMODE(restored.path.stat().st_mode) == 0o750
        assert await driver.checkpoint(restored) == ref


CHANGES: dict[str, Callable[[Path], Any]] = {
    "write": lambda file: file.write_text("another"),
    "append": lambda file: os.truncate(file, file.stat().st_size + 7),
    "truncate": lambda file: os.truncate(file, 3),
    "chmod": lambda file: file.chmod(0o600),
    "touch": lambda file: os.utime(file, ns=(AGES_AGO, AGES_AGO)),
    "unlink": lambda file: file.unlink(),
    "rename": lambda file: file.rename(file.with_name("renamed")),
}


async def test_copies_share_nothing(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    one, ref = await filled(driver)
    two, _ = await driver.create(ref)
    await driver.settle()
    three, _ = await driver.create(ref)
    await driver.settle()
    (spare,) = spares(tmp_path)
    roots = [one.path, two.path, three.path, spare / "workspace"]
    files = [inode for root in roots for inode, _ in identities(root).values()]
    stored = [path.stat().st_ino for path in objects(tmp_path)]
    assert len({*files, *stored}) == len(files) + len(stored)
    contents = {path: path.read_bytes() for path in objects(tmp_path)}
    for number, change in enumerate(CHANGES.values()):
        for changed in (one.path, two.path, three.path):
            others = [root for root in roots if root != changed]
            before = [tree(root) for root in others]
            change(changed / f"d{number}" / f"f{number}")
            assert [tree(root) for root in others] == before
    assert {path: path.read_bytes() for path in objects(tmp_path)} == contents


def overwrite(root: Path) -> None:
    """Other bytes of the same size, and the old time."""
    file = root / "d0" / "f0"
    times = file.stat().st_mtime_ns
    file.write_bytes(b"X" * file.stat().st_size)
    os.utime(file, ns=(times, times))


def lead_out(root: Path) -> None:
    shutil.rmtree(root / "d0")
    (root / "d0").symlink_to(root.parents[3] / "outside")


def exchange_two(root: Path) -> None:
    (root / "d0" / "f0").rename(root / "aside")
    (root / "d1" / "f1").rename(root / "d0" / "f0")
    (root / "aside").rename(root / "d1" / "f1")


def make_fifo(root: Path) -> None:
    (root / "d0" / "f0").unlink()
    os.mkfifo(root / "d0" / "f0")


def empty(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def make_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("file")


def lead_out_whole(root: Path) -> None:
    shutil.rmtree(root)
    root.symlink_to(root.parents[3] / "outside")


def share(root: Path) -> None:
    os.link(root / "d0" / "f0", root.parents[3] / "outside" / "shared")


TAMPERING: dict[str, Callable[[Path], Any]] = {
    "other bytes": overwrite,
    "a file more": lambda root: (root / "d0" / "more").write_text("more"),
    "a file less": lambda root: (root / "d0" / "f0").unlink(),
    "a folder more": lambda root: shutil.copytree(root / "d0", root / "more"),
    "a folder less": lambda root: shutil.rmtree(root / "d0"),
    "a file elsewhere": lambda root: (root / "d0" / "f0").rename(root / "d1" / "f0"),
    "two exchanged": exchange_two,
    "rights": lambda root: (root / "d0" / "f0").chmod(0o4777),
    "a link that leads out": lead_out,
    "a second name outside": share,
    "a FIFO": make_fifo,
    "no index": lambda root: (root.parent / "index").unlink(),
    "a broken index": lambda root: (root.parent / "index").write_text("1 2\n{}"),
    "nothing": empty,
    "no folder": make_file,
    "a link for a folder": lead_out_whole,
}


@pytest.mark.parametrize("how", TAMPERING)
async def test_what_was_done_to_a_spare_is_not_in_the_copy(tmp_path: Path, how: str) -> None:
    driver = sandbox(tmp_path)
    handle, ref = await filled(driver)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f0").write_text("outside")
    (spare,) = spares(tmp_path)
    TAMPERING[how](spare / "workspace")
    kept = tree(outside)
    restored, _ = await driver.create(ref)
    assert tree(restored.path) == tree(handle.path)
    assert tree(outside) == kept
    for path in outside.iterdir():
        path.write_text("later")
    assert tree(restored.path) == tree(handle.path)


async def test_a_spare_of_another_repository_is_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fill(source)
    of_folder = sandbox(tmp_path, source)
    first, _ = await of_folder.create()
    await of_folder.settle()
    (spare,) = spares(tmp_path)
    other = sandbox(tmp_path)
    restored, _ = await other.create(await other.checkpoint(first))
    await other.settle()
    assert spare in spares(tmp_path)
    assert len(spares(tmp_path)) == 2
    assert tree(restored.path) == tree(source)
    ready = set(identities(spare / "workspace").values())
    second, _ = await of_folder.create()  # a copy of the source takes it, too
    assert tree(second.path) == tree(source)
    assert set(identities(second.path).values()) == ready


async def test_a_spare_of_other_contents_is_left_alone(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    _, ref = await filled(driver)
    (spare,) = spares(tmp_path)
    other, _ = await driver.create()
    for number in range(FILES):
        (other.path / f"f{number}").write_text(f"another {number}")
    made = json.loads((spare / "made").read_text())
    (spare / "made").write_text(json.dumps(made | {"seconds": 3600}))
    far = await driver.checkpoint(other)
    restored, _ = await driver.create(far)
    assert tree(restored.path) == tree(other.path)
    await driver.settle()
    assert spares(tmp_path) == [spare], "it was made only just now"
    (spare / "made").write_text(json.dumps(made | {"seconds": 0}))
    await driver.checkpoint(other)
    await driver.settle()
    (another,) = spares(tmp_path)
    assert tree(another / "workspace") == tree(other.path)
    assert await driver.checkpoint((await driver.create(ref))[0]) == ref


async def test_a_spare_that_is_left_behind_is_brought_forward(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await filled(driver)
    (spare,) = spares(tmp_path)
    ready = identities(spare / "workspace")
    for number in range(FILES // 10):
        (handle.path / f"d{number % 10}" / f"f{number}").write_text("changed")
    await driver.checkpoint(handle)
    await driver.settle()
    (another,) = spares(tmp_path)
    assert tree(another / "workspace") == tree(handle.path)
    now = identities(another / "workspace")
    assert sum(now[path] != identity for path, identity in ready.items()) == FILES // 10


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_there_are_as_many_as_were_asked_for(tmp_path: Path, count: int) -> None:
    driver = sandbox(tmp_path, spares=count)
    handle, ref = await filled(driver)
    assert len(spares(tmp_path)) == count
    for restored, _ in await asyncio.gather(*(driver.create(ref) for _ in range(4))):
        assert tree(restored.path) == tree(handle.path)
    await driver.settle()
    assert len(spares(tmp_path)) == count
    await sandbox(tmp_path, spares=0).open({"path": str(handle.path)})
    assert spares(tmp_path) == []


def test_a_number_below_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="spares"):
        sandbox(tmp_path, spares=-1)


async def test_a_small_workspace_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spares, "FILES", FILES + 1)
    driver = sandbox(tmp_path)
    handle, _ = await filled(driver)
    assert spares(tmp_path) == []
    monkeypatch.setattr(_spares, "BYTES", 1)
    await driver.checkpoint(handle)
    await driver.settle()
    assert len(spares(tmp_path)) == 1


@pytest.mark.parametrize("why", ["unused", "another boot", "no note", "broken note"])
async def test_spares_that_nobody_will_use_are_removed(tmp_path: Path, why: str) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await filled(driver)
    (spare,) = spares(tmp_path)
    note = spare / "made"
    made = json.loads(note.read_text())
    if why == "unused":
        note.write_text(json.dumps(made | {"at": made["at"] - 8 * 24 * 3600}))
    elif why == "another boot":
        note.write_text(json.dumps(made | {"boot": "another"}))
    elif why == "no note":
        note.unlink()
    else:
        note.write_text("[]")
    await sandbox(tmp_path, "https://example.com/another.git").open({"path": str(handle.path)})
    assert spares(tmp_path) == []


async def test_the_last_of_the_disk_is_left_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = sandbox(tmp_path)
    handle, ref = await filled(driver)
    usage = shutil.disk_usage(tmp_path)._replace(total=1000 << 20, free=100 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    await driver.checkpoint(handle)
    await driver.settle()
    assert spares(tmp_path) == []
    restored, _ = await driver.create(ref)
    assert tree(restored.path) == tree(handle.path)


async def test_a_damaged_object_is_not_copied(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, _ = await filled(driver)
    before = objects(tmp_path)
    (handle.path / "d0" / "f0").write_text("changed")
    ref = await driver.checkpoint(handle)
    (file,) = (p for p in objects(tmp_path) - before if p.read_bytes() == b"changed")
    file.chmod(0o600)
    file.write_text("Changed")
    with pytest.raises(CheckpointUnavailable, match=str(file)):
        await driver.create(ref)
    assert [home / "workspace" for home in homes(tmp_path)] == [handle.path]
    root = object_of(tmp_path, ref.removeprefix("sha256:"))
    root.unlink()
    with pytest.raises(CheckpointUnavailable, match=str(root)):
        await driver.create(ref)


async def test_what_a_process_writes_is_not_taken_from_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.prepare()
    with store.aside() as mine:
        os.utime(mine, (time.time() - LONG_AGO_S,) * 2)
        store.prepare()
        assert mine.is_dir()
    assert not mine.exists()


# Processes that die, or meet

WORK = """
import asyncio, os, signal, sys
from pathlib import Path
tests, folder, what, argument, dies_at = sys.argv[1:]
sys.path.insert(0, tests)
from sandboxes import sandbox
from rebuno.sandbox import _spares

STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.chmod", "os.utime", "os.truncate")
_spares.FILES = 100
steps = 0

def audit(event, _):
    global steps
    if event in STEPS:
        steps += 1
        if steps == int(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    driver = sandbox(Path(folder))
    print("ready", flush=True)
    sys.stdin.readline()
    sys.addaudithook(audit)
    if what == "make":
        await driver.checkpoint(await driver.open({"path": argument}))
        await driver.settle()
        print(steps, flush=True)
    else:
        _spares.Spares.keep = lambda *_: None
        restored, _ = await driver.create(argument)
        print(steps, restored.path, flush=True)

asyncio.run(main())
"""


def working(folder: Path, what: str, argument: str, dies_at: int = 0) -> "subprocess.Popen[str]":
    tests = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, tests, str(folder), what, argument, str(dies_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def done(process: "subprocess.Popen[str]") -> list[str]:
    """Lets it begin; what it said, which is nothing when it died."""
    said = process.communicate("\n", timeout=60)[0].split()
    assert process.returncode == (0 if said else -9)
    return said


def check_all_is_whole(folder: Path, trees: dict[str, dict[str, Any]]) -> None:
    """Whatever is under a name that somebody looks for is a whole tree."""
    for spare in spares(folder):
        made = json.loads((spare / "made").read_text())
        assert tree(spare / "workspace") == trees[made["snapshot"]]
    for home in homes(folder):
        if (home / "workspace").exists():
            assert tree(home / "workspace") in trees.values()


async def check_nothing_is_left(folder: Path, handle: Workspace, ref: str) -> LocalSandbox:
    """The next one restores what it should, and takes away what the dead one left."""
    for left in (folder / "store" / "aside").iterdir():
        os.utime(left, (time.time() - LONG_AGO_S,) * 2)
    driver = sandbox(folder)
    restored, _ = await driver.create(ref)
    assert tree(restored.path) == tree(handle.path)
    await driver.settle()
    assert list((folder / "store" / "aside").iterdir()) == []
    assert len(spares(folder)) == 1
    return driver


def moments(steps: int) -> list[int]:
    """Spread over all of it, and the last ones, in which things get their names."""
    return sorted({*range(1, steps, max(1, steps // 4)), *range(max(1, steps - 3), steps + 1)})


def digest_of(ref: str) -> str:
    return ref.removeprefix("sha256:")


@pytest.mark.parametrize("forward", [False, True], ids=["made", "brought forward"])
async def test_killed_while_a_spare_is(tmp_path: Path, forward: bool) -> None:
    driver = sandbox(tmp_path)
    handle, ref = await filled(driver)
    trees = {digest_of(ref): tree(handle.path)}

    async def next_work() -> str:
        """Changes so much that the spare does not stay as it is, or is not there."""
        if not forward:
            await sandbox(tmp_path, spares=0).open({"path": str(handle.path)})
        for number in range(FILES // 5):
            (handle.path / f"d{number % 10}" / f"f{number}").write_text(f"{len(trees)} {number}")
        ref = await sandbox(tmp_path, spares=0).checkpoint(handle)
        trees[digest_of(ref)] = tree(handle.path)
        return ref

    await next_work()
    (steps,) = done(working(tmp_path, "make", str(handle.path)))
    for moment in moments(int(steps)):
        ref = await next_work()
        done(working(tmp_path, "make", str(handle.path), moment))
        check_all_is_whole(tmp_path, trees)
        await check_nothing_is_left(tmp_path, handle, ref)


async def test_killed_while_it_restores(tmp_path: Path) -> None:
    driver = sandbox(tmp_path)
    handle, ref = await filled(driver)
    trees = {digest_of(ref): tree(handle.path)}

    async def next_work() -> str:
        for number in range(FILES // 30):
            (handle.path / f"d{number % 10}" / f"f{number}").write_text(f"{len(trees)} {number}")
        ref = await driver.checkpoint(handle)
        await driver.settle()
        trees[digest_of(ref)] = tree(handle.path)
        return ref

    steps, _ = done(working(tmp_path, "restore", await next_work()))
    check_all_is_whole(tmp_path, trees)
    for moment in moments(int(steps)):
        ref = await next_work()
        done(working(tmp_path, "restore", ref, moment))
        check_all_is_whole(tmp_path, trees)
        driver = await check_nothing_is_left(tmp_path, handle, ref)


async def test_two_processes_restore_at_once(tmp_path: Path) -> None:
    """Of a single spare; one of them gets it."""
    driver = sandbox(tmp_path)
    handle, ref = await filled(driver)
    for _ in range(3):
        await driver.settle()
        (spare,) = spares(tmp_path)
        ready = set(identities(spare / "workspace").values())
        processes = [working(tmp_path, "restore", ref) for _ in range(2)]
        said = await asyncio.gather(*(asyncio.to_thread(done, process) for process in processes))
        roots = [Path(path) for _, path in said]
        assert [tree(root) for root in roots] == [tree(handle.path)] * 2
        of_roots = [set(identities(root).values()) for root in roots]
        assert not of_roots[0] & of_roots[1]
        assert sorted(len(ready & found) for found in of_roots) == [0, FILES]
        await driver.checkpoint(handle)


IN_A_FULL_DISK = """
set -e
mount -t tmpfs -o size=16m,mode=700 tmpfs "$1"
exec "$2" -c "$3" "$4" "$1"
"""
FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
tests, folder = sys.argv[1:]
sys.path.insert(0, tests)
from sandboxes import sandbox, tree
from rebuno.sandbox import _spares

_spares.FILES = 100

async def main():
    driver = sandbox(Path(folder))
    handle, _ = await driver.create()
    for number in range(200):
        (handle.path / f"f{number}").write_text("file")
    first = await driver.checkpoint(handle)
    (handle.path / "big").write_bytes(os.urandom(1000 << 10))
    ref = await driver.checkpoint(handle)
    await driver.settle()
    (handle.path / "big").unlink()
    await driver.checkpoint(handle)
    print(len(list(Path(folder).glob("store/spares/*-*"))), "spare")
    room = Path(folder, "room")
    with room.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as exc:
            print(exc.strerror)
    try:
        await driver.create(ref)
    except OSError as exc:
        print(exc.strerror)
    print(len(os.listdir(Path(folder, "store", "sandboxes"))), "sandbox")
    print(os.listdir(Path(folder, "store", "aside")), "aside")
    room.unlink()
    restored, _ = await driver.create(first)
    print(len(tree(restored.path)), "files")

asyncio.run(main())
"""


def test_a_full_disk_leaves_no_half_copy(tmp_path: Path) -> None:
    own = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
    if subprocess.run([*own, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system of its own here")
    arguments = [str(tmp_path), sys.executable, FULL_DISK, str(Path(__file__).parent)]
    ran = subprocess.run(
        [*own, "sh", "-c", IN_A_FULL_DISK, "sh", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    full = "No space left on device"
    assert ran.stdout.splitlines() == ["1 spare", full, full, "1 sandbox", "[] aside", "200 files"]
