"""An export of a fork, against its handler."""

from typing import Any

from recorded import Run, answer
from test_replay import URL, diverges, look, mail, number, write

from rebuno import http_client
from rebuno.testing.replay import replay


def fork() -> Run:
    """Its log begins with copied events, and says nothing of the source's deliveries."""
    run = Run()
    run.events.clear()
    for kind in ("created", "forked"):
        run.event(f"execution.{kind}")
    run.step("look", {"n": 1}, result=1)
    run.step("write", {"n": 2}, result=2)
    run.event("execution.started")
    run.delivery()
    return run


async def test_the_order_of_copied_steps_is_not_known() -> None:
    """The second may have been proposed in a later delivery of the source."""

    async def process() -> list[Any]:
        return [await write(2), await look(1)]

    assert (await replay(fork().export(), process)).output == [2, 1]


async def test_that_of_its_own_is() -> None:
    run = fork()
    run.step("mail", {"n": 3}, result=3)
    run.step("mail", {"n": 4}, result=4)

    async def process() -> list[Any]:
        return [await look(1), await write(2), await mail(4), await mail(3)]

    assert number(await diverges(run, process, "order")) == 3


async def test_a_copied_step_may_be_of_a_body_that_began_after_it() -> None:
    run = fork()
    run.step("mail", {"n": 3}, result=3)

    async def process() -> list[Any]:
        return [await look(1), await mail(3)]

    result = await replay(run.export(), process)
    assert [one.target for one in result.unasked] == ["write"]


async def test_but_is_missed_if_none_began() -> None:
    run = fork()
    run.step("m", {"model": "m"}, kind="llm_call", result=answer("x"))

    async def process() -> list[Any]:
        async with http_client() as http:
            await http.post(URL, json={"model": "m"})
        return [await look(1)]

    assert number(await diverges(run, process, "missing")) == 2


async def test_copied_steps_are_known_by_their_names() -> None:
    run = fork()
    run.step("mail", {"n": 3}, result=3)

    async def process() -> list[Any]:
        return [await look(1), await write(5)]

    assert number(await diverges(run, process, "arguments")) == 2
