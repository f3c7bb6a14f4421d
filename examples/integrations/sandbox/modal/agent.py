# SPDX-License-Identifier: Apache-2.0
"""A coding agent that works in a Modal sandbox."""

import os

from langchain.agents import create_agent
from langchain_core.messages import messages_from_dict, messages_to_dict
from langchain_openai import ChatOpenAI
from modal.config import config
from modal.exception import SandboxFilesystemNotFoundError
from pull_request import open_pull_request
from rebuno import (
    Agent,
    CheckpointPolicy,
    Result,
    http_client,
    previous,
    resource,
    tool,
)
from workspace_resource import WORKDIR, ModalResource

NEEDED = ["REPO", "GITHUB_TOKEN", "LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY"]
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    raise SystemExit(f"set {', '.join(missing)}: see README.md")
if not (config.get("token_id") and config.get("token_secret")):
    raise SystemExit("run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET")

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
        driver=ModalResource(REPO, token),
        checkpoints=CheckpointPolicy(every_steps=5),
    )

    @tool("shell", resources=["workspace"])
    async def shell(command: str) -> str:
        """Run a shell command in the repository and return its exit code and output."""
        process = await workspace.exec.aio("bash", "-c", command, workdir=WORKDIR, timeout=120)
        stdout = await process.stdout.read.aio()
        stderr = await process.stderr.read.aio()
        exit_code = await process.wait.aio()
        return f"exit code {exit_code}\n{stdout}{stderr}"[-10000:]

    @tool("read_file")
    async def read_file(path: str) -> str:
        """Return a file's contents. The path is relative to the repository root."""
        try:
            return await workspace.filesystem.read_text.aio(f"{WORKDIR}/{path}")
        except SandboxFilesystemNotFoundError:
            return f"{path} does not exist"

    @tool("write_file", resources=["workspace"])
    async def write_file(path: str, content: str) -> str:
        """Replace a file's contents, creating it if needed. The path is relative to the repository root."""
        await workspace.filesystem.write_text.aio(content, f"{WORKDIR}/{path}")
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
    result = await graph.ainvoke({"messages": [*history, {"role": "user", "content": task}]})
    return Result(
        output={"answer": result["messages"][-1].text},
        state={"messages": messages_to_dict(result["messages"])},
    )


if __name__ == "__main__":
    Agent(
        "modal",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "modal-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
