"""The agent of script/demo: it ships an order in five steps. Each effect is one line in a file, so that it can be counted.

The second step charges a card, and policy.yaml has a person look at it first.
"""

import asyncio
import os
import sys

from rebuno import Agent, execution, tool

EFFECTS = os.environ["DEMO_EFFECTS"]
ran_here: set[str] = set()  # steps whose body ran in this process; any other result came from the record


def happen(effect: str) -> None:
    step_id = execution().step_id
    ran_here.add(step_id)
    with open(EFFECTS, "a", encoding="utf-8") as f:
        f.write(f"{effect}\n")
        f.flush()
        os.fsync(f.fileno())


@tool
async def reserve_stock(item: str, pieces: int) -> str:
    happen(f"reserve_stock {item} x{pieces}")
    await asyncio.sleep(0.3)
    return f"{pieces} of {item} reserved"


@tool(idempotency="at_most_once")
async def charge_card(customer: str, cents: int) -> str:
    happen(f"charge_card {customer} {cents}")
    await asyncio.sleep(0.3)
    return "receipt-1"


@tool
async def release_stock(item: str, pieces: int) -> str:
    happen(f"release_stock {item} x{pieces}")
    await asyncio.sleep(0.3)
    return f"{pieces} of {item} released"


@tool
async def print_label(address: str) -> str:
    happen(f"print_label {address}")
    await asyncio.sleep(0.3)
    return "label-1"


@tool(idempotency="at_most_once")
async def book_courier(label: str) -> str:
    happen(f"book_courier {label}")
    await asyncio.sleep(2.0)
    return "pickup-1"


@tool
async def send_mail(to: str, text: str) -> str:
    happen(f"send_mail {to}")
    await asyncio.sleep(0.3)
    return "sent"


async def call(body, *args) -> str:
    """Runs a tool and says whether its result came from the record."""
    before = len(ran_here)
    result = await body(*args)
    if result.startswith(f"{body.__name__} not allowed"):
        return result
    if len(ran_here) == before:
        print(f"replayed {body.__name__} -> {result}", flush=True)
    else:
        await asyncio.sleep(0.4)  # a moment in which nothing runs, for the demo to strike in
    return result


async def process(order: str, customer: str) -> dict:
    print(f"started attempt {execution().dispatch_attempt}", flush=True)
    await call(reserve_stock, order, 2)
    receipt = await call(charge_card, customer, 4200)
    if receipt.startswith("charge_card not allowed"):  # what a model would read when a person has said no
        print(receipt, flush=True)
        await call(release_stock, order, 2)
        return {"refused": receipt}
    label = await call(print_label, "1 Main Street")
    pickup = await call(book_courier, label)
    await call(send_mail, customer, f"your {order} is on its way: {pickup}, {receipt}")
    return {"receipt": receipt, "label": label, "pickup": pickup}


if __name__ == "__main__":
    Agent("shop").run(process, host="127.0.0.1", port=int(sys.argv[1]))
