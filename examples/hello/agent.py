"""A first agent: two tools, recorded by the kernel, on plain Python.

Start a kernel beside it with `rebuno dev --config rebuno.yaml`, then this file, then create an execution:

    rebuno exec create hello '{"name": "Ada"}' --watch
"""

from rebuno import Agent, tool


@tool
async def look_up(name: str) -> dict:
    """Finds a person. Safe to run again, should the agent die half-way."""
    return {"name": name, "email": f"{name.lower()}@example.com"}


@tool(idempotency="at_most_once")
async def send_greeting(email: str, text: str) -> str:
    """Sends a message. Never sent twice, not even when nobody knows whether it went out."""
    print(f"to {email}: {text}")
    return "sent"


async def process(name: str) -> dict:
    person = await look_up(name)
    status = await send_greeting(person["email"], f"Hello {person['name']}!")
    return {"greeted": person["email"], "status": status}


if __name__ == "__main__":
    Agent("hello").run(process, port=5000)
