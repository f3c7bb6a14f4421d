"""Sessions against the real kernel: each execution goes on from what the one before it left."""

from typing import Any

import pytest
from real_kernel import BIN, DEADLINE, serving

from rebuno import Client, ConflictError, Result, previous

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")


async def test_a_conversation(kernel_url: str, client: Client) -> None:
    async def process(text: str) -> Any:
        said = [*(await previous() or []), text]
        if text == "fail":
            raise ValueError("out of luck")
        return Result(len(said), said) if text != "plain" else said

    async with serving(kernel_url, "talker", process):
        texts = ["one", "fail", "two", "plain", "three"]
        created = [await client.create("talker", {"text": text}, session="ada-7") for text in texts]
        ended = [await client.wait(one.id, DEADLINE) for one in created]
        assert [one.status for one in ended] == [
            "completed", "failed", "completed", "completed", "completed",
        ]  # fmt: skip
        assert [one.output for one in ended] == [1, None, 2, ["one", "two", "plain"], 4]
        ids = [one.id for one in ended]
        assert [one.parent_execution_id for one in ended] == [None, ids[0], ids[0], *ids[2:4]]
        assert {one.session for one in ended} == {"ada-7"}
        page = await client.list(session="ada-7")
        assert [one.id for one in page.executions] == ids[::-1]
        assert not (await client.list(session="ada-8")).executions

        back = await client.create(
            "talker", {"text": "b"}, session="ada-8", parent_execution_id=ids[2]
        )
        assert (back.status, back.parent_execution_id) == ("running", ids[2])
        assert (await client.wait(back.id, DEADLINE)).output == 3
        alone = await client.create("talker", {"text": "c"}, parent_execution_id=back.id)
        assert (await client.wait(alone.id, DEADLINE)).output == 4
        with pytest.raises(ConflictError, match="in use"):
            await client.create("talker", session="ada-7", parent_execution_id=ids[0])
        with pytest.raises(ConflictError, match="failed"):
            await client.create("talker", parent_execution_id=ids[1])
