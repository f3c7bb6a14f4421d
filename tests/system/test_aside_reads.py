"""What a policy needs of the database is read by one at a time; that keeps only those who read."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from harness import Attempt, Cluster, FakeAgent, Kernel, bundle, eventually, rule
from harness.proxy import Proxy

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
WORKERS = 4  # in src/engine/aside.c
HELD_S = 100.0
LOOK = rule("look", "deny", {"target": "look", "arguments": {"text": {"regex": "y$"}}})
LARGE = "x" * 1_200_000  # no other decision may wait for a look at it
READ = b"agent_read"  # the statement


class Holding(Proxy):
    """Keeps one read of an agent, and nothing else, until it is let go."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.armed = False
        self.held, self.let_go = threading.Event(), threading.Event()

    def _cuts(self, chunk: bytes) -> bool:
        if self.armed and READ in chunk:
            self.armed = False
            self.held.set()
            self.let_go.wait(HELD_S)
        return super()._cuts(chunk)


@pytest.fixture
def proxy(postgres: Cluster) -> Iterator[Holding]:
    proxy = Holding(postgres.port)
    yield proxy
    proxy.let_go.set()
    proxy.close()


def begun(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


def test_a_read_that_hangs_keeps_no_worker_from_what_is_read(
    postgres: Cluster, proxy: Holding, launch: NewKernel, new_agent: NewAgent
) -> None:
    """More decisions beside it than there are workers."""
    database = urlsplit(postgres.new_url()).path.removeprefix("/")
    kernel = launch(database_url=postgres.url(database, port=proxy.port))
    agents = [new_agent(kernel) for _ in range(2)]
    for agent in agents:
        kernel.client().set_policy(agent.id, bundle(LOOK, default="allow"))
    hangs, goes = (begun(kernel, agent) for agent in agents)
    goes.client.timeout = hangs.client.timeout = HELD_S / 2
    kernel.client().set_policy(agents[0].id, bundle(LOOK, default="deny"))  # to be read anew
    goes.proceed("look", {"text": LARGE})  # its bundle is read
    hangs.heartbeat().expect(204)  # its secret, too
    proxy.armed = True
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hangs.submit, "look", {"text": LARGE})
        assert proxy.held.wait(HELD_S / 2)
        for number in range(2 * WORKERS):
            goes.proceed("look", {"text": LARGE + str(number)})
        assert not waiting.done()
        proxy.let_go.set()
        assert waiting.result().expect(200).json["decision"] == "denied"
