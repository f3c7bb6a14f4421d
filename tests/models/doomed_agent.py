# SPDX-License-Identifier: Apache-2.0
"""An agent of its own process that asks a model for a stream."""

import os
from typing import Any

from openai import AsyncOpenAI
from rebuno import Agent, http_client

openai = AsyncOpenAI(
    base_url=f"{os.environ['MODEL']}/v1", api_key="sk-secret", http_client=http_client()
)


async def process(given: Any) -> str:
    asked: Any = {"model": "gpt-test", "messages": [{"role": "user", "content": "Count."}]}
    text = ""
    async for chunk in await openai.chat.completions.create(stream=True, **asked):
        text += chunk.choices[0].delta.content or ""
    return text


if __name__ == "__main__":
    Agent("doomed", shutdown_grace=0).run(process, host="127.0.0.1", port=0)
