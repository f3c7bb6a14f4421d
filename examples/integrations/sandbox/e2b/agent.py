# SPDX-License-Identifier: Apache-2.0
"""A coding agent that works in an E2B sandbox."""

import asyncio
import os

from e2b import CommandExitException, FileNotFoundException, TimeoutException
from langchain.agents import create_agent
from langchain_core.messages import messages_from_dict, messages_to_dict
from langchain_openai import ChatOpenAI
from pull_request import open_pull_request
from rebuno import (
    Agent,
    Blocked,
    CheckpointPolicy,
    Result,
    execution,
    http_client,
    previous,
    resource,
    tool,
)
from workspace_resource import WORKDIR, E2BResource

NEEDED = ["E2B_API_KEY", "REPO", "GITHUB_TOKEN", "LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY"]
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    raise SystemExit(f"set {', '.join(missing)}: see README.md")

REPO = os.environ["REPO"]
token = os.environ["GITHUB_TOKEN"]

PROMPT = """\
You are a coding agent. The repository is checked out in your workspace, on a branch of its own.
Look at the code, make the change you are asked for, and run the tests. Commit with Git in the
shell and push the branch with `git push`. Then open a pull request.
"""


async def process(task: str) -> Result:
    """Works on one task; in a session, on from where the last one ended."""
    workspace = await resource(
        "workspace",
        driver=E2BResource(REPO, token),
        checkpoints=CheckpointPolicy(every_steps=5),
    )

    @tool("shell", resources=["workspace"])
    async def shell(command: str) -> str:
        """Run a shell command in the repository and return its exit code and output."""
        try:
            async with asyncio.timeout(130):  # E2B's own limit needs E2B to answer
                result = await workspace.commands.run(command, cwd=WORKDIR, timeout=120)
        except CommandExitException as exc:
            result = exc
        except (TimeoutException, TimeoutError):
            return "timed out after 120 seconds"
        return f"exit code {result.exit_code}\n{result.stdout}{result.stderr}"[-10000:]

    @tool("read_file")
    async def read_file(path: str) -> str:
        """Return a file's contents. The path is relative to the repository root."""
        try:
            return await workspace.files.read(f"{WORKDIR}/{path}")
        except FileNotFoundException:
            return f"{path} does not exist"

    @tool("write_file", resources=["workspace"])
    async def write_file(path: str, content: str) -> str:
        """Replace a file's contents, creating it if needed. The path is relative to the repository root."""
        await workspace.files.write(f"{WORKDIR}/{path}", content)
        return f"wrote {path}"

    @tool("open_pr", idempotency="at_most_once")
    async def open_pr(title: str, body: str) -> str:
        """Open a pull request from the pushed branch."""
        return await open_pull_request(REPO, token, await workspace.branch(), title, body)

    prior = await previous() or {}
    history = messages_from_dict(prior.get("messages", []))
    model = ChatOpenAI(
        model=os.environ["LLM_MODEL"],
        base_url=os.environ["LLM_BASE_URL"],
        api_key=os.environ["LLM_API_KEY"],
        http_async_client=http_client(),
    )
    graph = create_agent(
        model=model, tools=[shell, read_file, write_file, open_pr], system_prompt=PROMPT
    )
    result = None
    try:
        result = await graph.ainvoke({"messages": [*history, {"role": "user", "content": task}]})
    finally:
        if result is not None or isinstance(execution().suspension, Blocked):
            await workspace.pause()
    return Result(
        output={"answer": result["messages"][-1].text},
        state={"messages": messages_to_dict(result["messages"])},
    )


if __name__ == "__main__":
    Agent(
        "e2b",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "e2b-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
