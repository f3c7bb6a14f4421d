"""Sessions as tests look at them."""

from typing import Any
from urllib.parse import quote

from harness.agent import Attempt
from harness.client import BearerClient

START = ["execution.created", "execution.started", "dispatch.queued"]
ENDED = {"completed", "failed", "cancelled"}


def end(client: BearerClient, run: Attempt, how: str) -> None:
    """One of `complete`, `fail` and `cancel`."""
    if how == "complete":
        run.complete("done").expect(204)
    elif how == "fail":
        run.fail().expect(204)
    else:
        client.cancel(run.id)


def status(client: BearerClient, execution_id: str) -> str:
    return str(client.execution(execution_id)["status"])


def of_session(client: BearerClient, session: str, query: str = "") -> list[dict[str, Any]]:
    """Its executions, the newest first."""
    target = f"/v0/executions?limit=200&session={quote(session, safe='')}{query}"
    found: list[dict[str, Any]] = client.get(target).expect(200).json["executions"]
    return found
