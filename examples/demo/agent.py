# SPDX-License-Identifier: Apache-2.0
"""A coding agent: a loop around a model, with four tools that work in a sandbox on this machine.

Nothing in it is about crashes or forks. `http_client` records what the model answers and `tool` what the tools did;
`resource` finds the sandbox again, and makes a fork one of its own.
"""

import asyncio
import inspect
import json
import os
from pathlib import Path

from rebuno import Agent, CheckpointPolicy, ToolError, http_client, raise_for_refusal, resource, tool
from rebuno.sandbox.local import LocalSandbox, SandboxError

REPOSITORY = os.environ["REPOSITORY"]  # a bare one, on this machine
PROMPT = """\
You are a coding agent. A Git repository is checked out in your workspace. Do what you are asked for, run the tests with
`python3 -m unittest`, and when they pass open a pull request. Then say in a sentence what you did."""


async def process(task: str) -> dict:
    workspace = await resource(
        "workspace",
        driver=LocalSandbox(REPOSITORY, env={"PYTHONDONTWRITEBYTECODE": "1"}),
        checkpoints=CheckpointPolicy(every_steps=1),
    )

    @tool("shell", resources=["workspace"])
    async def shell(command: str) -> str:
        """Run a shell command in the repository; returns its exit code and output."""
        result = await workspace.shell(command, timeout=60)
        return f"exit code {result.exit_code}\n{result.output}"[-8000:]

    @tool("read_file")
    async def read_file(path: str) -> str:
        """Return a file's contents. The path is relative to the repository."""
        return await workspace.read_file(path)

    @tool("write_file", resources=["workspace"])
    async def write_file(path: str, content: str) -> str:
        """Replace a file's contents, or create it. The path is relative to the repository."""
        await workspace.write_file(path, content)
        return f"wrote {path}"

    @tool("open_pr", idempotency="at_most_once", resources=["workspace"])
    async def open_pr(title: str, body: str) -> str:
        """Commit everything, push the branch, and open a pull request from it."""
        await workspace.write_file(".git/MESSAGE", f"{title}\n\n{body}\n")
        committed = await workspace.shell("git add -A && git commit -q -F .git/MESSAGE")
        if committed.exit_code != 0:
            raise SandboxError(f"nothing was committed: {committed.output}")
        commit = await workspace.push()
        return await asyncio.to_thread(write_down, commit, workspace.branch, title, body)

    return {"answer": await converse(task, [shell, read_file, write_file, open_pr])}


def write_down(commit: str, branch: str, title: str, body: str) -> str:
    """There is no server here: a pull request is a file of the bare repository."""
    path = Path(REPOSITORY, "pulls", f"{commit}.json")
    path.parent.mkdir(exist_ok=True)
    record = {"commit": commit, "branch": branch, "title": title, "body": body}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return f"opened a pull request from {branch}"


async def converse(task: str, tools: list) -> str:
    """Asks the model and does what it says, until it calls no more tools."""
    by_name = {one.__name__: one for one in tools}
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": task}]
    request = {"model": os.environ["LLM_MODEL"], "messages": messages, "tools": [described(one) for one in tools]}
    async with http_client(
        base_url=os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1",
        headers={"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY') or 'none'}"},
        timeout=120,
    ) as model:
        while True:
            answer = await model.post("chat/completions", json=request)
            if answer.is_error:
                error = RuntimeError(f"the model answered {answer.status_code}: {answer.text}")
                raise_for_refusal(error)  # the kernel's own answer, if it is that
                raise error
            said = answer.json()["choices"][0]["message"]
            calls = said.get("tool_calls") or []
            if not calls:
                return said["content"] or ""
            messages.append({"role": "assistant", "content": said.get("content"), "tool_calls": calls})
            for call in calls:
                result = await use(by_name, call["function"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def use(tools: dict, call: dict) -> str:
    """Does what the model wants. What goes wrong is for it to read."""
    try:
        function, args = tools[call["name"]], json.loads(call["arguments"])
        inspect.signature(function).bind(**args)
    except (KeyError, TypeError, ValueError) as exc:
        return f"this call is wrong: {exc!r}"
    try:
        return await function(**args)
    except ToolError as exc:
        return f"failed: {exc}"


def described(function) -> dict:
    """A tool as the model sees it; all arguments here are texts."""
    names = list(inspect.signature(function).parameters)
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    about = {"name": function.__name__, "description": inspect.getdoc(function), "parameters": schema}
    return {"type": "function", "function": about}


if __name__ == "__main__":
    Agent("coder").run(process, host="127.0.0.1", port=int(os.environ.get("PORT", "5000")))
