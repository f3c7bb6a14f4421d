"""A first agent: two tools, recorded by the kernel, on plain Python.

Start a kernel beside it with `rebuno dev --config rebuno.yaml`, then this file, then create an execution:

    rebuno exec create hello '{"name": "Ada"}' --watch
"""

import asyncio

from rebuno import Agent, tool


@tool
async def look_up(name: str) -> dict:
    """Finds a person. Safe to run again, should the agent die half-way."""
    print(f"looking up {name}")
    await asyncio.sleep(5)  # time to kill the agent in
    return {"name": name, "email": f"{name.lower()}@example.com"}


@tool(idempotency="at_most_once")
async def send_greeting(email: str, text: str) -> str:
    """Sends a message. Never sent twice, not even when nobody knows whether it went out."""
    print(f"to {email}: {text}")
    return "sent"


async def process(name: str) -> dict:
    ada = await look_up(name)
    friend = await look_up(f"friend-of-{name}")
    sent = [await send_greeting(p["email"], f"Hello {p['name']}!") for p in (ada, friend)]
    return {"greeted": [ada["email"], friend["email"]], "status": sent}


if __name__ == "__main__":
    Agent("hello").run(process, host="127.0.0.1", port=5000)
