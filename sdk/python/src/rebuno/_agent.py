# SPDX-License-Identifier: Apache-2.0
"""The agent: an HTTP service that the kernel delivers executions to."""

import asyncio
import contextlib
import copy
import logging
import math
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic import ValidationError as ModelError
from starlette.requests import Request
from starlette.responses import Response

from . import _protocol, _requests
from ._dispatch import Dispatch, explained
from ._handler import Handler, output_schema
from ._ports import LAST_PORT, why_not
from ._protocol import Delivery
from ._transport import Environment, Wire
from .errors import RebunoError

logger = logging.getLogger("rebuno")

_COMPLAINT_EVERY_S = 60.0
_NOT_UP = (1, 3)  # what uvicorn's versions say when they cannot listen


class Agent:
    """An HTTP service that runs one function, the handler, for each execution delivered to it.

    agent_id: the id it is registered under. secret, base_url: shared with the kernel and the
    kernel's URL, by default from `REBUNO_AGENT_SECRET` and `REBUNO_URL`. webhook_path: where
    the kernel delivers. kernel_timeout: seconds to wait for an answer of the kernel.
    description, output_schema (a JSON Schema or a pydantic model class): published to the
    kernel, with the schema of the handler's input. shutdown_grace: seconds that running steps
    get to finish when the agent closes.

    ValueError names what is missing. Nothing is sent before the agent is started.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        secret: str | None = None,
        base_url: str | None = None,
        webhook_path: str = "/webhook",
        kernel_timeout: float = 35.0,
        description: str | None = None,
        output_schema: dict[str, Any] | type[BaseModel] | None = None,
        shutdown_grace: float = 10.0,
    ) -> None:
        if not agent_id:
            raise ValueError("agent_id must not be empty: pass the id the agent is registered as")
        self.agent_id = agent_id
        self.secret = secret or os.environ.get("REBUNO_AGENT_SECRET", "")
        if not self.secret:
            raise ValueError("secret required (set REBUNO_AGENT_SECRET or pass secret=)")
        self.base_url = (base_url or os.environ.get("REBUNO_URL", "")).rstrip("/")
        if not self.base_url:
            raise ValueError("base_url required (set REBUNO_URL or pass base_url=)")
        self.webhook_path = webhook_path
        self.description = description
        self.output_schema = output_schema
        self.shutdown_grace = shutdown_grace
        self._kernel_timeout_s = kernel_timeout
        self._handler: Handler | None = None
        self._running: dict[str, Dispatch] = {}
        self._dispatches: set[Dispatch] = set()
        self._published = False
        self._publishing: asyncio.Task[None] | None = None
        self._closing = False
        self._next_complaint_s = -math.inf
        self._wire = self._wire_to(Environment())
        self.app = self._application()

    def run(self, process: Callable[..., Any], *, host: str = "0.0.0.0", port: int = 5000) -> None:
        """Serves `process` as the handler until the process is told to stop; blocks.

        SIGTERM and SIGINT close the agent as `close` does. Exits with a sentence that says why, if
        it cannot listen there.
        """
        self.bind(process)
        try:
            if int(port) > LAST_PORT:  # uvicorn would take the rest of it by 65536
                sys.exit(1)
            uvicorn.run(self.app, host=host, port=port, log_config=_log_config())
        except SystemExit as exc:
            if exc.code in _NOT_UP and (reason := why_not(host, int(port))):
                sys.exit(
                    f"agent {self.agent_id}: {reason}: run(…, port=…), and register the webhook's "
                    "URL with it"
                )
            raise

    def bind(self, process: Callable[..., Any]) -> None:
        """Makes `process`, sync or async, the handler. Its signature is its input's schema.

        One parameter annotated with a pydantic model gets the model; one that has no annotation,
        `Any` or `dict` gets the input as it is; otherwise each parameter gets the field of its
        name. What it returns, a Result or any JSON, completes the execution.
        """
        self._handler = Handler(process)

    async def join(self) -> None:
        """Waits until no handler runs."""
        while self._dispatches:
            await asyncio.wait({dispatch.task for dispatch in self._dispatches})

    async def close(self) -> None:
        """Stops: running steps get `shutdown_grace` seconds, then all is cancelled and released.

        Another process of the agent carries on at once; what was recorded replays there. May be
        called again.
        """
        self._closing = True
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.wait({self._publishing})
        stops = (dispatch.stop(self.shutdown_grace) for dispatch in tuple(self._dispatches))
        await asyncio.gather(*stops)
        await self._wire.close()

    async def publish_metadata(self) -> None:
        """Tells the kernel the agent's description and schemas. A failure is only logged.

        Done at start, and with the next delivery if it failed then.
        """
        try:
            metadata = {
                "description": self.description,
                "input_schema": self._handler.input_schema() if self._handler else None,
                "output_schema": output_schema(self.output_schema),
            }
            await self._wire.send(_requests.put_metadata(self.agent_id, metadata))
            self._published = True
        except (RebunoError, TypeError) as exc:
            said = explained(exc, self.agent_id)
            logger.warning("agent %s: metadata not published: %s", self.agent_id, said)

    def _wire_to(self, environment: Environment) -> Wire:
        """The way to the kernel; tests set `_wire` to one with an environment of their own."""

        def authorize(request: _protocol.Request, target: str) -> dict[str, str]:
            return _protocol.agent_headers(
                request,
                target,
                agent_id=self.agent_id,
                secret=self.secret,
                timestamp=str(int(environment.now())),
            )

        return Wire(
            self.base_url,
            authorize,
            timeout_s=self._kernel_timeout_s,
            refused_from=300,
            environment=environment,
        )

    def _application(self) -> FastAPI:
        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            self._closing = False
            self._publish_soon()
            try:
                yield
            finally:
                await self.close()

        app = FastAPI(title=self.agent_id, lifespan=lifespan)
        app.add_route(self.webhook_path, self._webhook, methods=["POST"], include_in_schema=False)
        return app

    async def _webhook(self, request: Request) -> Response:
        """Takes a delivery: answers at once, the handler runs behind it."""
        body = await request.body()
        signature = request.headers.get("Rebuno-Signature", "")
        if not _protocol.is_webhook_signed(self.secret, body, signature):
            self._complain_of_signature()
            return Response(status_code=401)
        if self._handler is None or self._closing:
            return Response(status_code=503)  # the kernel tries again
        try:
            delivery = Delivery.model_validate_json(body)
        except ModelError as exc:
            logger.error("agent %s: unreadable delivery: %s", self.agent_id, exc)
            return Response(status_code=400)
        if not self._published:
            self._publish_soon()
        self._take(delivery, self._handler)
        return Response(status_code=200)

    def _take(self, delivery: Delivery, handler: Handler) -> None:
        """Starts the handler, unless this delivery or a newer one of the dispatch is running."""
        running = self._running.get(delivery.execution_id)
        if running is not None:
            if not running.is_superseded_by(delivery):
                return
            logger.warning(
                "execution %s: delivered again, as attempt %d, while attempt %d ran here: "
                "what that has not recorded yet is dropped",
                delivery.execution_id,
                delivery.dispatch_attempt,
                running.delivery.dispatch_attempt,
            )
            running.cancel()
        dispatch = Dispatch(self._wire, delivery, handler, agent_id=self.agent_id)
        self._running[delivery.execution_id] = dispatch
        self._dispatches.add(dispatch)
        dispatch.task.add_done_callback(lambda _: self._ended(dispatch))

    def _ended(self, dispatch: Dispatch) -> None:
        self._dispatches.discard(dispatch)
        if self._running.get(dispatch.execution_id) is dispatch:
            del self._running[dispatch.execution_id]
        if not dispatch.task.cancelled() and (exc := dispatch.task.exception()) is not None:
            logger.error("execution %s: lost", dispatch.execution_id, exc_info=exc)

    def _complain_of_signature(self) -> None:
        """Logs it, at most once a minute: anybody may send such a request."""
        now_s = self._wire.environment.monotonic()
        if now_s < self._next_complaint_s:
            return
        self._next_complaint_s = now_s + _COMPLAINT_EVERY_S
        logger.warning(
            "agent %s: a delivery with a wrong signature was refused: is REBUNO_AGENT_SECRET the "
            "secret that the agent was registered with?",
            self.agent_id,
        )

    def _publish_soon(self) -> None:
        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.create_task(self.publish_metadata())


def _log_config() -> dict[str, Any]:
    """uvicorn's; this package's lines join them, unless the program has set up logging itself.

    From info up: only the log can name a resource that was created and never recorded.
    """
    config = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    if not logger.hasHandlers():
        config["loggers"][logger.name] = config["loggers"]["uvicorn"]
    return config
