"""Checkouts in local sandboxes: their branch, what they must not bring along, and the way out."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import Bench
from sandboxes import ISOLATIONS, sandbox, tree

from rebuno import execution
from rebuno.sandbox import _git
from rebuno.sandbox.local import SandboxError, Workspace

BRANCH = re.compile(r"rebuno/local-[0-9a-f]{8}")


def git(folder: Path, *args: str) -> str:
    """Git as a person runs it."""
    ran = subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com", *args],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout.strip()


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A bare repository with one commit on main."""
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "first")
    bare = tmp_path / "origin.git"
    git(tmp_path, "clone", "-q", "--bare", str(work), str(bare))
    return bare


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """With bubblewrap and without."""
    return str(request.param)


async def said(workspace: Workspace, command: str) -> str:
    result = await workspace.shell(command)
    assert result.exit_code == 0, result.output
    return result.output.strip()


@pytest.mark.parametrize("form", ["bare", "file", "checkout"])
async def test_a_checkout_has_a_branch_of_its_own(tmp_path: Path, origin: Path, form: str) -> None:
    sources = {"bare": origin, "file": f"file://{origin}", "checkout": tmp_path / "work"}
    driver = sandbox(tmp_path, sources[form])
    one, binding = await driver.create()
    two, _ = await driver.create()
    assert one.branch is not None
    assert BRANCH.fullmatch(one.branch)
    assert binding == {"path": str(one.path), "branch": one.branch}
    assert await said(one, "git branch --show-current") == one.branch
    assert two.branch != one.branch
    assert await said(one, "git status --porcelain") == ""
    assert await said(one, "git log --format=%s") == "first"
    reopened = await sandbox(tmp_path, sources[form]).open(binding)
    assert reopened.branch == one.branch
    assert await said(reopened, "git branch --show-current") == one.branch


async def test_the_branch_has_the_executions_name(
    tmp_path: Path, origin: Path, bench: Bench
) -> None:
    async def process() -> dict[str, str | None]:
        handle, _binding = await sandbox(tmp_path, origin).create()
        return {"id": execution().id, "branch": handle.branch}

    output = await bench.output(process)
    assert re.fullmatch(f"rebuno/{re.escape(output['id'])}-[0-9a-f]{{8}}", output["branch"])


async def test_a_copy_from_a_snapshot_has_another_branch(
    tmp_path: Path, origin: Path, isolation: str
) -> None:
    driver = sandbox(tmp_path, origin, isolation=isolation)
    one, _ = await driver.create()
    await one.write_file("calc.py", "def add(a, b):\n    return a + b\n")
    await said(one, "git commit -qam fixed && echo half > half.txt && git add half.txt")
    ref = await driver.checkpoint(one)
    two, binding = await driver.create(ref)
    assert two.branch == binding["branch"] != one.branch
    assert await said(two, "git branch --show-current") == two.branch
    assert await said(two, "git log --format=%s") == "fixed\nfirst"
    assert await said(two, "git status --porcelain") == "A  half.txt"
    assert await said(one, "git branch --show-current") == one.branch
    files = {path: what for path, what in tree(one.path).items() if not path.startswith(".git")}
    assert files == {
        path: what for path, what in tree(two.path).items() if not path.startswith(".git")
    }


async def test_an_empty_repository_works(tmp_path: Path) -> None:
    bare = tmp_path / "empty.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    driver = sandbox(tmp_path, bare)
    handle, _ = await driver.create()
    await said(handle, "echo x > a && git add a && git commit -qm begin")
    assert await handle.push() == git(bare, "rev-parse", f"refs/heads/{handle.branch}")


@pytest.mark.parametrize(
    "damage", ["rm -rf .git && mkdir .git", "echo x > .git/HEAD", "rm -r .git"]
)
async def test_a_broken_repository_is_still_restored(
    tmp_path: Path, origin: Path, damage: str
) -> None:
    driver = sandbox(tmp_path, origin)
    handle, _ = await driver.create()
    await said(handle, damage)
    restored, _ = await driver.create(await driver.checkpoint(handle))
    assert await restored.read_file("calc.py") == await handle.read_file("calc.py")


async def test_credentials_do_not_reach_the_checkout(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://ada:hunter2@example.com/project.git"
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "{origin}"]\n\tinsteadOf = {url}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    driver = sandbox(tmp_path, url)
    handle, binding = await driver.create()
    assert "hunter2" not in str((driver.configuration, binding))
    for path in handle.path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert await said(handle, "git remote get-url origin") == "https://example.com/project.git"
    await said(handle, "git commit -q --allow-empty -m more")
    commit = await handle.push()  # with the credentials that the agent holds
    assert git(origin, "rev-parse", f"refs/heads/{handle.branch}") == commit


async def test_a_failed_clone_names_no_credentials(tmp_path: Path) -> None:
    driver = sandbox(tmp_path, "file://ada:hunter2@/nowhere/project.git")
    with pytest.raises(SandboxError, match="git clone") as raised:
        await driver.create()
    assert "hunter2" not in str(raised.value)


async def test_a_checkout_does_not_lean_on_other_repositories(tmp_path: Path, origin: Path) -> None:
    leaning = tmp_path / "leaning.git"
    git(tmp_path, "clone", "-q", "--bare", "--shared", str(origin), str(leaning))
    handle, _ = await sandbox(tmp_path, leaning).create()
    for repository in (origin, leaning):
        os.rename(repository, f"{repository}.moved")
    assert await said(handle, "git fsck --full && git log --format=%s") == "first"


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


async def test_a_checkout_shares_no_file_with_its_source(tmp_path: Path, origin: Path) -> None:
    handle, _ = await sandbox(tmp_path, origin).create()
    assert not inodes(handle.path) & inodes(origin)
    assert not (handle.path / ".git" / "objects" / "info" / "alternates").exists()


async def test_commits_are_pushed_as_the_sandboxs_branch(
    tmp_path: Path, origin: Path, isolation: str
) -> None:
    handle, _ = await sandbox(tmp_path, origin, isolation=isolation).create()
    before = git(origin, "rev-parse", "main")
    await said(handle, "git checkout -q -b other && echo x > new && git add new")
    await said(handle, "git commit -qm more")
    head = await said(handle, "git rev-parse HEAD")
    assert await handle.push() == head
    assert git(origin, "rev-parse", f"refs/heads/{handle.branch}") == head
    assert git(origin, "rev-parse", "main") == before
    assert git(origin, "branch", "--list", "other") == ""
    await said(handle, "git commit -q --amend -m again")
    assert await handle.push() == await said(handle, "git rev-parse HEAD")
    assert await said(handle, "git status --porcelain") == ""


@pytest.fixture
def traps() -> str:
    """A command that makes Git run something wherever a configuration can."""
    return """
        printf '#!/bin/sh\\ntouch "$TRAP"\\n' > .git/trap && chmod +x .git/trap
        trap=$PWD/.git/trap
        for hook in pre-push post-checkout reference-transaction post-index-change; do
            cp .git/trap .git/hooks/$hook
        done
        git config core.fsmonitor $trap
        git config core.sshCommand $trap
        git config uploadpack.packObjectsHook $trap
        git config remote.origin.uploadpack $trap
        git config remote.origin.receivepack $trap
        git config credential.helper $trap
        git config core.pager $trap
        git config core.alternateRefsCommand $trap
    """


async def test_what_the_sandbox_configures_does_not_run_outside(
    tmp_path: Path, origin: Path, traps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "sprung"
    monkeypatch.setenv("TRAP", str(trap))
    driver = sandbox(tmp_path, origin)
    handle, _ = await driver.create()
    await said(handle, f"echo x > new && git add new && git commit -qm more\n{traps}")
    monkeypatch.setattr(handle._runner, "_env", {"TRAP": "/dev/null"})
    await handle.push()
    restored, _ = await driver.create(await driver.checkpoint(handle))
    await restored.push()
    assert not trap.exists()


async def test_there_must_be_something_to_push(tmp_path: Path, origin: Path) -> None:
    folder, _ = await sandbox(tmp_path).create()
    with pytest.raises(SandboxError, match="no checkout"):
        await folder.push()
    handle, _ = await sandbox(tmp_path, origin).create()
    (handle.path / ".git" / "HEAD").unlink()
    with pytest.raises(SandboxError, match="cannot be read"):
        await handle.push()


def test_urls_are_told_from_folders() -> None:
    for url in ("https://example.com/a", "git@example.com:a/b.git", "ssh://h/p", "file:///p"):
        assert _git.is_url(url)
    for folder in ("/a/b", "a/b", "./a@b", "~/a", "C:x", "a:b"):
        assert not _git.is_url(folder)
