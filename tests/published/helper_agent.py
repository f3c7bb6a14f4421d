"""A subagent, as a user of the published SDK would write it."""

import asyncio
import os
import sys

from rebuno import Agent, step

effects = os.environ["EFFECTS"]


async def process(input: dict):
    question = input["question"]
    with open(effects, "a", encoding="utf-8") as f:
        f.write(f"helps {question}\n")
    if question == "fail":
        raise ValueError("no luck")
    if question == "wait":
        await asyncio.sleep(60)
    return await step("think", lambda: {"answer": question.upper()})


if __name__ == "__main__":
    Agent("helper").run(process, host="127.0.0.1", port=int(sys.argv[1]))
