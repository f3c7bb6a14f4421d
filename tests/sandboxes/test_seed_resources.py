# SPDX-License-Identifier: Apache-2.0
"""The program of the resources guide, as it stands there, with E2B's package against the fake."""

from pathlib import Path
from typing import Any

import pytest
from example import Example, until
from fake_e2b import FakeE2B
from github import GitHub
from real_kernel import BIN
from stories import Gate, read, write
from test_e2b import fake

__all__ = ["fake"]

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")


class Coder(Example):
    secret = "a-secret"

    def __init__(self, tmp: Path, github: GitHub, script: list[Any], fake: FakeE2B) -> None:
        super().__init__("coder", tmp, github, script, **fake.env)
        self.folder = Path(__file__).parent / "seed_resources"

    def variables(self) -> dict[str, str]:
        given = {"OPENAI_API_KEY": "sk-llm", "OPENAI_BASE_URL": self.model.url}
        return given | {"LLM_MODEL": "m", "REBUNO_AGENT_SECRET": self.secret}


async def test_the_coder(tmp_path: Path, fake: FakeE2B, github: GitHub) -> None:
    """Checkpoints after steps and at the end; a kill; a fork from the checkpoint in the middle."""
    gate = Gate(write("seventh", "7"))
    words = ["one", "two"]
    script = [
        *(write(f"file{number}", str(number)) for number in range(1, 6)),
        lambda _: write("word", words.pop(0)),
        gate,
        read("word"),
        "Written.",
    ]
    async with Coder(tmp_path, github, script, fake) as run:
        source = await run.create("Write.")
        await until(lambda: gate.asked)
        assert list(fake.snapshots) == ["snapshot-000002:default", "snapshot-000003:default"]
        run.kill_agent()
        gate.open()
        await run.start_agent()
        assert (await run.ended(source)).output == {"answer": "Written."}
        assert len(fake.named("write")) == 7  # none of them again after the kill
        # At first, after five writes, at the opening after a write that none covered, at the end.
        assert len(fake.snapshots) == 4
        ((sandbox, parent),) = fake.machines().items()
        assert (await run.steps(source, "read_file"))[0].result == "one"

        bound, *taken = [
            event
            for event in await run.events(source)
            if event.type in ("resource.bound", "resource.checkpointed")
        ]
        assert bound.payload["binding"] == {"sandbox_id": sandbox}
        assert [event.payload["checkpoint_ref"] for event in taken] == list(fake.snapshots)
        fork = await run.fork(source, taken[1].event_seq)
        assert (await run.ended(fork)).output == {"answer": "Written."}
        restored = (await run.client.get(fork)).restoration["workspace"]
        assert restored["checkpoint_ref"] == list(fake.snapshots)[1]
        assert restored["covered"] is True
        (own,) = set(fake.machines()) - {sandbox}
        child = fake.machines()[own]
        for name in ("file1", "file5", "seventh"):
            assert child.read(name) == parent.read(name)
        assert (parent.read("word"), child.read("word")) == (b"one", b"two")
        assert fake.named("create")[1]["templateID"] == restored["checkpoint_ref"]
