# SPDX-License-Identifier: Apache-2.0
"""The Modal example from end to end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example import refused_start
from fake_modal import FakeModal, served
from github import GitHub
from grpclib import Status
from real_kernel import DEADLINE
from rebuno import Client
from stories import Stories, shell, write


@pytest.fixture
def fake(tmp_path: Path, github: GitHub) -> Iterator[FakeModal]:
    with served(FakeModal(tmp_path / "modal", github)) as fake:
        yield fake


class TestModal(Stories):
    name = "modal"
    repo = "repo"
    variables = ("REPO", "GITHUB_TOKEN", "LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY")
    credentials = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")

    async def test_what_goes_wrong(self, tmp_path: Path, fake: Any, github: GitHub) -> None:
        """Commands that fail or take too long, a new token, a sandbox whose hour is over."""
        script = [
            write("kept", "what was written"),
            shell("echo out; echo err >&2; exit 7"),
            shell("sleep 100"),
            "That was the first.",
            shell("git add . && git commit -qm kept && git push && echo pushed"),
            "That was the second.",
        ]
        async with self.example(tmp_path, fake, github, script) as run:
            fake.fail_next("SandboxCreateV2", Status.PERMISSION_DENIED.value)
            broken = await ended(run.client, await run.create("Try.", "broken"))
            assert "told to fail" in broken

            fake.command_limit = 5
            first = await run.create("Go wrong.")
            await run.ended(first)
            fake.command_limit = None
            failed, slow = [str(step.result) for step in await run.steps(first, "shell")]
            assert failed == "exit code 7\nout\nerr\n"
            assert slow == "exit code 137\n"

            github.token = run.env["GITHUB_TOKEN"] = "ghp_another"
            run.kill_agent()
            await run.start_agent()
            second = await run.create("Push.")
            await run.ended(second)
            (pushed,) = await run.steps(second, "shell")
            assert "\npushed\n" in str(pushed.result)
            assert len(fake.secrets) == 2  # each token has one of its own

            (sandbox,) = fake.machines()
            fake.time_out(sandbox)
            reason = await ended(run.client, await run.create("Go on."))
            gone = f"agent_error: SandboxGone: the sandbox {sandbox} has ended"
            assert reason.startswith(gone)
            fake.lose(sandbox)
            reason = await ended(run.client, await run.create("Go on, please."))
            assert reason.startswith(f"agent_error: SandboxGone: the sandbox {sandbox} is gone")
            assert not fake.machines()

    async def test_credentials_are_asked_for(self, tmp_path: Path) -> None:
        given = dict.fromkeys((*self.variables, *self.credentials), "given")
        for missing in self.credentials:
            env = {name: value for name, value in given.items() if name != missing}
            async with refused_start(self.name, env | {"HOME": str(tmp_path)}) as said:
                wanted = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET\n"
                assert said == wanted


async def ended(client: Client, execution_id: str) -> str:
    """Why it failed."""
    execution = await client.wait(execution_id, DEADLINE)
    assert execution.status == "failed"
    return execution.failure_reason
