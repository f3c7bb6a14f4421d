"""What is special about the embedded database: one process, and a disk that can be full."""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness import Attempt, Deadline, FakeAgent, Kernel, eventually
from harness.kernel import BINARY, TOKEN
from harness.waiting import let_pass

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
HOUSEKEEPING_S = 15.0  # it comes every ten


class TestOneProcess:
    def test_second_one_is_refused(
        self, launch: NewKernel, new_agent: NewAgent, tmp_path: Path
    ) -> None:
        url = f"sqlite:///{tmp_path / 'shared.db'}"
        first = launch(database_url=url)
        second = launch(database_url=url, start=False)
        second.spawn()
        assert second.wait_exit() == 1
        assert "shared.db" in second.log.read_text()
        agent = new_agent(first)
        run = agent.take_attempt(first.client().create(agent.id)["id"])
        run.record("still", "working")
        run.complete().expect(204)

    @pytest.mark.parametrize("how", ["symbolic", "hard", "unlocked"])
    def test_no_way_around_the_lock(self, launch: NewKernel, tmp_path: Path, how: str) -> None:
        path, other = tmp_path / "shared.db", tmp_path / "other.db"
        launch(database_url=f"sqlite:///{path}")
        if how == "symbolic":
            other.symlink_to(path)
        elif how == "hard":
            other.hardlink_to(path)
        else:
            (tmp_path / "shared.db.lock").unlink()
            other = path
        second = launch(database_url=f"sqlite:///{other}", start=False)
        second.spawn()
        assert second.wait_exit() == 1
        assert "in use" in second.log.read_text()

    @pytest.mark.parametrize("kill", [True, False])
    def test_the_next_one_may(self, launch: NewKernel, tmp_path: Path, kill: bool) -> None:
        url = f"sqlite:///{tmp_path / 'shared.db'}"
        first = launch(database_url=url)
        if kill:
            first.kill()
        else:
            first.stop()
        launch(database_url=url).client().get("/v0/executions").expect(200)

    def test_dev_has_a_file_of_its_own(self, launch: NewKernel, new_agent: NewAgent) -> None:
        kernel = launch(mode="dev")
        agent = new_agent(kernel, register=False)
        client = kernel.client(token=None)
        client.post("/v0/agents", agent.registration()).expect(201)
        execution = client.create(agent.id)
        assert (kernel.folder / ".rebuno" / "dev.db").exists()
        agent.take(execution["id"])
        kernel.restart(kill=True)
        assert client.execution(execution["id"])["id"] == execution["id"]

    def test_memory_leaves_nothing(self, launch: NewKernel, new_agent: NewAgent) -> None:
        kernel = launch(mode="dev", args=["--memory"])
        agent = new_agent(kernel, register=False)
        client = kernel.client(token=None)
        client.post("/v0/agents", agent.registration()).expect(201)
        kernel.restart()
        assert client.get("/v0/agents").expect(200).json == []
        assert {path.name for path in kernel.folder.iterdir()} == {"kernel.log"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes. Needs root; the file size limit below does not."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Filler:
    """Writes steps until the store refuses, and remembers what was acknowledged."""

    def __init__(self, run: Attempt) -> None:
        self.run = run
        self.acknowledged: dict[str, int] = {}

    def fill(self) -> None:
        """Until nothing more goes in, however small, for a while."""
        number, size = 0, 40_000
        patience: Deadline | None = None
        while patience is None or not patience.passed:
            number += 1
            assert number < 20_000, "the disk does not fill"
            if self.write(number, size):
                patience = None
            else:
                size = 10
                patience = patience or Deadline(1.5)
                patience.pause(0.05)

    def write(self, number: int, size: int) -> bool:
        """One step. False if the store refused it, in the way it should."""
        answer = self.run.submit("fill", number)
        if answer.status == 200:
            step_id = answer.json["step_id"]
            text = os.urandom(size // 2).hex()  # letters that do not compress to nothing
            answer = self.run.complete_step(step_id, {"n": number, "text": text})
            if answer.status == 200:
                self.acknowledged[step_id] = number
                return True
        answer.expect(503, "unavailable")
        return False

    def check(self, kernel: Kernel) -> None:
        for step_id, number in self.acknowledged.items():
            step = kernel.client().step(self.run.id, step_id)
            assert step["status"] == "succeeded"
            assert step["result"]["n"] == number


class TestDiskFull:
    def begun(self, kernel: Kernel, agent: FakeAgent) -> Attempt:
        run = agent.take_attempt(kernel.client().create(agent.id)["id"])
        eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
        return run

    def check_refusing(self, kernel: Kernel, run: Attempt) -> None:
        client = kernel.client()
        eventually(lambda: client.get("/v0/ready").status == 503, what="/v0/ready tells")
        client.get("/v0/health").expect(200)
        client.execution(run.id)
        client.events(run.id)
        client.get("/v0/executions").expect(200)

    def check_recovered(self, kernel: Kernel, run: Attempt, filler: Filler) -> None:
        eventually(lambda: kernel.client().get("/v0/ready").status == 200, 15)
        run.heartbeat().expect(204)
        run.record("after", 1, "recovered")
        filler.check(kernel)
        kernel.restart(kill=True)
        filler.check(kernel)
        run.complete().expect(204)

    def test_no_space_left(
        self, launch: NewKernel, new_agent: NewAgent, small_disk: Path, tmp_path: Path
    ) -> None:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 6 * 1024 * 1024)
        kernel = launch(
            database_url=f"sqlite:///{small_disk / 'rebuno.db'}", folder=tmp_path / "kernel"
        )
        run = self.begun(kernel, new_agent(kernel))
        filler = Filler(run)
        filler.fill()
        assert filler.acknowledged
        self.check_refusing(kernel, run)
        ballast.unlink()
        self.check_recovered(kernel, run, filler)

    def test_file_may_not_grow(self, launch: NewKernel, new_agent: NewAgent) -> None:
        """Another error than a full disk, with the same meaning."""
        kernel = launch(database_url="sqlite:///data.db", start=False)
        kernel.database_url = f"sqlite:///{kernel.folder / 'data.db'}"
        kernel.file_size_limit = 3 * 1024 * 1024
        kernel.start()
        run = self.begun(kernel, new_agent(kernel))
        filler = Filler(run)
        filler.fill()
        assert filler.acknowledged
        self.check_refusing(kernel, run)
        kernel.file_size_limit = None
        kernel.limit_file_size(2**62)
        self.check_recovered(kernel, run, filler)

    def test_what_ended_goes_once_there_is_room(
        self, launch: NewKernel, new_agent: NewAgent, tmp_path: Path
    ) -> None:
        """Also if nobody asks anything of the kernel meanwhile."""
        path = tmp_path / "x.db"
        kernel = launch(
            database_url=f"sqlite:///{path}",
            env={"REBUNO_RETENTION": "1s", "REBUNO_CLEANUP_INTERVAL": "1s"},
        )
        run = self.begun(kernel, new_agent(kernel))
        for number in range(10):
            run.record("work", number)
        run.complete().expect(204)
        target = f"/v0/executions/{run.id}"
        eventually(lambda: kernel.client().get(target).status == 404, HOUSEKEEPING_S)
        kernel.limit_file_size(1)
        eventually(lambda: kernel.client().get("/v0/ready").status == 503, HOUSEKEEPING_S)
        assert steps_in(path) == 10
        kernel.limit_file_size(2**62)
        eventually(lambda: steps_in(path) == 0, 2 * HOUSEKEEPING_S)

    @pytest.mark.slow
    def test_waiting_for_room_costs_nothing(
        self, launch: NewKernel, new_agent: NewAgent, tmp_path: Path
    ) -> None:
        kernel = launch(database_url=f"sqlite:///{tmp_path / 'x.db'}")
        run = self.begun(kernel, new_agent(kernel))
        kernel.limit_file_size(1)
        run.submit("work").expect(503, "unavailable")
        before = kernel.cpu_seconds()
        let_pass(HOUSEKEEPING_S)
        assert kernel.cpu_seconds() - before < 1
        kernel.limit_file_size(2**62)
        eventually(lambda: kernel.client().get("/v0/ready").status == 200)


def steps_in(path: Path) -> int:
    """Whether or not anybody can see them."""
    with sqlite3.connect(path, timeout=10) as db:
        return int(db.execute("SELECT count(*) FROM steps").fetchone()[0])


class TestPlaces:
    def start_fails(self, launch: NewKernel, url: str) -> str:
        kernel = launch(database_url=url, start=False)
        kernel.spawn()
        assert kernel.wait_exit() == 1
        return kernel.log.read_text()

    def test_folder_that_is_not_there(self, launch: NewKernel, tmp_path: Path) -> None:
        self.start_fails(launch, f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'x.db'}")

    def test_not_a_database(self, launch: NewKernel, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("these are my notes, not a database\n" * 100)
        self.start_fails(launch, f"sqlite:///{path}")
        assert path.read_text().startswith("these are my notes")

    def test_server_creates_its_file(self, launch: NewKernel, tmp_path: Path) -> None:
        path = tmp_path / "new.db"
        launch(database_url=f"sqlite:///{path}")
        assert path.exists()


class TestTakenAway:
    def test_file_that_is_gone(
        self, launch: NewKernel, new_agent: NewAgent, tmp_path: Path
    ) -> None:
        """Nothing is acknowledged into a file that nobody will find again."""
        path, away = tmp_path / "x.db", tmp_path / "away.db"
        kernel = launch(database_url=f"sqlite:///{path}")
        client = kernel.client()
        agent = new_agent(kernel)
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.record("x", 1, "before")
        path.rename(away)
        eventually(lambda: run.submit("x", 2).status == 503, 3)
        client.get("/v0/ready").expect(503)
        assert "gone" in kernel.log.read_text()
        assert not path.exists()
        away.rename(path)
        eventually(lambda: client.get("/v0/ready").status == 200, 10)
        run.record("x", 3, "after")
        kernel.restart(kill=True)
        args = [step["args"] for step in kernel.client().steps(run.id)]
        assert (args[0], args[-1]) == (1, 3)


def test_many_writers_at_once(launch: NewKernel, new_agent: NewAgent, tmp_path: Path) -> None:
    kernel = launch(database_url=f"sqlite:///{tmp_path / 'x.db'}")
    agent, client = new_agent(kernel), kernel.client()

    def run_one(_: int) -> Any:
        run = agent.take_attempt(client.create(agent.id)["id"], 20)
        for n in range(5):
            run.record("x", n, n)
        run.complete("ok").expect(204)
        return client.execution(run.id)["status"]

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(run_one, range(60))) == {"completed"}


def test_binary_and_token_are_what_the_tests_think() -> None:
    assert os.access(BINARY, os.X_OK)
    assert TOKEN
