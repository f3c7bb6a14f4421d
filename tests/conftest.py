"""Fixtures of the black-box tests.

`kernel` is shared by the tests of one database, so each test works with agents of its own and sees
a store in which others have worked too. A test that needs flags, a restart or an empty store starts
its own with `new_kernel`.
"""

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pytest

from harness import API, Attempt, BearerClient, Cluster, FakeAgent, Kernel, bundle, eventually
from harness.cli import Cli, Following
from harness.faults import FAULT_BINARY
from harness.kernel import BINARY

TESTS = Path(__file__).parent
DATABASES = ("sqlite", "postgres")
LOG_BYTES = 6000


# The whole API suite reaches every route


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "slow: takes many seconds")
    config.stash[REACHED] = set()
    config.stash[WHOLE] = False


REACHED = pytest.StashKey[set[str]]()
WHOLE = pytest.StashKey[bool]()
KERNELS = pytest.StashKey[list[Kernel]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    narrowed = any(
        config.getoption(name, default=None)
        for name in ("keyword", "markexpr", "lf", "collectonly", "deselect")
    )
    collected = {item.path for item in items}
    files = set((TESTS / "api").glob("test_*.py"))
    by_id = any("::" in argument for argument in config.args)
    config.stash[WHOLE] = bool(files) and files <= collected and not narrowed and not by_id


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:  # a worker of xdist: the controller decides
        output["reached"] = sorted(API.reached)
        output["whole"] = config.stash[WHOLE]
        return
    reached = API.reached | config.stash[REACHED]
    missing = sorted(API.all_ids - reached)
    if config.stash[WHOLE] and missing and not session.shouldstop:
        config.stash[MISSING] = missing
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


MISSING = pytest.StashKey[list[str]]()


class _Worker(Protocol):
    config: pytest.Config
    workeroutput: dict[str, Any]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: _Worker) -> None:
    output = getattr(node, "workeroutput", {})
    node.config.stash[REACHED].update(output.get("reached", ()))
    node.config.stash[WHOLE] = node.config.stash[WHOLE] or output.get("whole", False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    missing = config.stash.get(MISSING, [])
    if missing:
        terminalreporter.section("routes that no test reached", red=True)
        terminalreporter.line(", ".join(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.failed:
        for kernel in item.stash.get(KERNELS, []):
            if kernel.log.exists():
                text = kernel.log.read_text(errors="replace")[-LOG_BYTES:]
                report.sections.append((f"log of the kernel in {kernel.folder}", text))
    return report


# Databases


@dataclass
class Database:
    """Where new, empty databases of one kind come from."""

    kind: str
    new_url: Callable[[Path], str]

    def __str__(self) -> str:
        return self.kind


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session", params=DATABASES)
def database(request: pytest.FixtureRequest) -> Database:
    """Both databases, always: a test that uses this runs twice."""
    if request.param == "sqlite":
        return Database("sqlite", lambda folder: f"sqlite:///{folder / 'rebuno.db'}")
    cluster: Cluster = request.getfixturevalue("postgres")
    return Database("postgres", lambda folder: cluster.new_url())


# Kernels


@pytest.fixture(scope="session")
def _shared_kernel(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not there: build the kernel first, or set REBUNO_BIN", 3)
    folder = tmp_path_factory.mktemp(f"kernel-{database}")
    kernel = Kernel(folder, database.new_url(folder))
    kernel.start()
    yield kernel
    if kernel.running:
        kernel.stop()


@pytest.fixture
def kernel(request: pytest.FixtureRequest, _shared_kernel: Kernel) -> Iterator[Kernel]:
    """A kernel in server mode, shared with other tests; it must outlive each of them."""
    request.node.stash.setdefault(KERNELS, []).append(_shared_kernel)
    if not _shared_kernel.running:
        _shared_kernel.process = None
        _shared_kernel.start()
    yield _shared_kernel
    _shared_kernel.assert_alive()


class NewKernel(Protocol):
    def __call__(self, *, start: bool = True, **options: Any) -> Kernel: ...


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewKernel]:
    """Starts kernels on databases that the test names, or in dev mode.

    Those that still run at the end are stopped and must exit cleanly.
    """
    numbers = itertools.count(1)
    kernels: list[Kernel] = request.node.stash.setdefault(KERNELS, [])
    started: list[Kernel] = []

    def new(*, start: bool = True, **options: Any) -> Kernel:
        folder = options.pop("folder", None) or tmp_path / f"kernel-{next(numbers)}"
        made = Kernel(folder, options.pop("database_url", None), **options)
        kernels.append(made)
        started.append(made)
        return made.start() if start else made

    yield new
    failures = []
    for made in started:
        try:
            if made.process is not None:
                made.stop()
        except AssertionError as error:
            failures.append(str(error))
        finally:
            made.kill()
    assert not failures, "\n".join(failures)


@pytest.fixture
def new_kernel(launch: NewKernel, database: Database, tmp_path: Path) -> NewKernel:
    """Starts kernels, each on an empty database unless it says which."""
    numbers = itertools.count(1)

    def new(*, start: bool = True, **options: Any) -> Kernel:
        if options.get("mode", "server") == "server" and "database_url" not in options:
            folder = options.setdefault("folder", tmp_path / f"database-{next(numbers)}")
            folder.mkdir(exist_ok=True)
            options["database_url"] = database.new_url(folder)
        return launch(start=start, **options)

    return new


@pytest.fixture
def fault_kernel(new_kernel: NewKernel) -> Kernel:
    """Not started."""
    assert FAULT_BINARY.exists(), "make FAULT=1"
    return new_kernel(start=False, binary=FAULT_BINARY)


@pytest.fixture
def client(kernel: Kernel) -> BearerClient:
    """Full access to the shared kernel."""
    return kernel.client()


# Agents and runs


class NewAgent(Protocol):
    def __call__(
        self, on: Kernel | None = None, *, register: bool = True, **fields: Any
    ) -> FakeAgent: ...


@pytest.fixture
def new_agent(request: pytest.FixtureRequest) -> Iterator[NewAgent]:
    """Makes agents, registered on the shared kernel unless told otherwise.

    At the end each must have got nothing that a real agent would have refused. What still runs on
    the shared kernel is cancelled, so that it does not go on delivering to closed ports.
    """
    made: list[FakeAgent] = []
    shared: list[tuple[FakeAgent, Kernel]] = []

    def new(on: Kernel | None = None, *, register: bool = True, **fields: Any) -> FakeAgent:
        kernel: Kernel = on or request.getfixturevalue("kernel")
        kernel_is_shared = "kernel" in request.fixturenames and kernel is request.getfixturevalue(
            "kernel"
        )
        options = {name: fields.pop(name) for name in ("agent_id", "secret") if name in fields}
        agent = FakeAgent(kernel.url, **options)
        made.append(agent)
        if register:
            kernel.client().post("/v0/agents", agent.registration(**fields)).expect(201)
        if kernel_is_shared:
            shared.append((agent, kernel))
        return agent

    yield new
    for agent, kernel in shared:
        if kernel.running:
            cancel_all(kernel.client(), agent.id)
    for agent in made:
        agent.stop()
    errors = [error for agent in made for error in agent.errors]
    assert not errors, errors


def cancel_all(client: BearerClient, agent_id: str) -> None:
    quoted = quote(agent_id, safe="")
    for status in ("pending", "running", "blocked"):  # what waits first, so that nothing starts
        target = f"/v0/executions?agent_id={quoted}&status={status}&limit=200"
        for execution in client.get(target).expect(200).json["executions"]:
            client.post(f"/v0/executions/{execution['id']}/cancel")


@pytest.fixture
def agent(new_agent: NewAgent, kernel: Kernel) -> FakeAgent:
    return new_agent(kernel)


class NewRun(Protocol):
    def __call__(self, **fields: Any) -> Attempt: ...


@pytest.fixture
def new_run(client: BearerClient, agent: FakeAgent) -> NewRun:
    """Creates an execution of `agent`, takes its first delivery and sees its ack recorded."""

    def new(**fields: Any) -> Attempt:
        execution = client.create(agent.id, **fields)
        attempt = agent.take_attempt(execution["id"])
        eventually(lambda: "dispatch.acked" in client.event_types(attempt.id))
        return attempt

    return new


@pytest.fixture
def run(new_run: NewRun) -> Attempt:
    return new_run()


@pytest.fixture
def session() -> str:
    """The name of one that no other test uses."""
    return f"session-{uuid.uuid4().hex}"


class SetPolicy(Protocol):
    def __call__(self, *rules: dict[str, Any], default: str | None = None) -> str: ...


@pytest.fixture
def policy(client: BearerClient, agent: FakeAgent) -> SetPolicy:
    """Sets the policy of `agent`; returns its YAML."""

    def put(*rules: dict[str, Any], default: str | None = None) -> str:
        text = bundle(*rules, default=default)
        client.set_policy(agent.id, text)
        return text

    return put


# The command line

Follow = Callable[..., Following]


@pytest.fixture
def cli(kernel: Kernel, tmp_path: Path) -> Cli:
    return Cli(kernel, tmp_path)


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Starts commands that go on, such as `exec watch`."""
    made: list[Following] = []

    def start(cli: Cli, *words: str) -> Following:
        made.append(Following(cli.spawn(*words)))
        return made[-1]

    yield start
    for following in made:
        following.close()
