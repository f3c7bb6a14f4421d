# SPDX-License-Identifier: Apache-2.0
"""A coding agent that works in a sandbox on this machine."""

import os

from langchain.agents import create_agent
from langchain_core.messages import messages_from_dict, messages_to_dict
from langchain_openai import ChatOpenAI
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
from rebuno.sandbox.local import SandboxError
from workspace_resource import LocalResource, open_pull_request

NEEDED = ["REPO", "LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY"]
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    raise SystemExit(f"set {', '.join(missing)}: see README.md")

REPO = os.environ["REPO"]

PROMPT = """\
You are a coding agent. The repository is checked out in your workspace, on a branch of its own.
Look at the code, make the change you are asked for, and run the tests. Commit with Git in the
shell; you cannot push. Then open a pull request, which pushes the branch for you.
"""


async def process(task: str) -> Result:
    """Works on one task; in a session, on from where the last one ended."""
    workspace = await resource(
        "workspace",
        driver=LocalResource(REPO),
        checkpoints=CheckpointPolicy(every_steps=5),
    )

    @tool("shell", resources=["workspace"])
    async def shell(command: str) -> str:
        """Run a shell command in the repository and return its exit code and output."""
        try:
            result = await workspace.shell(command, timeout=120)
        except SandboxError as exc:  # such as a command that is too long
            return str(exc)
        return f"exit code {result.exit_code}\n{result.output}"[-10000:]

    @tool("read_file")
    async def read_file(path: str) -> str:
        """Return a file's contents. The path is relative to the repository root."""
        try:
            return await workspace.read_file(path)
        except FileNotFoundError:
            return f"{path} does not exist"
        except SandboxError as exc:  # a path that leaves the workspace: the model can do better
            return str(exc)

    @tool("write_file", resources=["workspace"])
    async def write_file(path: str, content: str) -> str:
        """Replace a file's contents, creating it if needed. The path is relative to the repository root."""
        try:
            await workspace.write_file(path, content)
        except SandboxError as exc:
            return str(exc)
        return f"wrote {path}"

    @tool("open_pr", idempotency="at_most_once")
    async def open_pr(title: str, body: str) -> str:
        """Push the branch and open a pull request from it."""
        return await open_pull_request(workspace, REPO, title, body)

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
        "local",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "local-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
