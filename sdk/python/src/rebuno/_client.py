# SPDX-License-Identifier: Apache-2.0
"""The client: creates executions, follows them, decides approvals."""

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from . import _requests
from ._protocol import EventStream, read
from ._transport import BRIEF, LASTING, Environment, Wire
from .errors import NetworkError
from .types import (
    Approval,
    Delta,
    Event,
    Execution,
    ExecutionList,
    ExecutionStatus,
    ForkPoints,
    SpawnedBy,
    Step,
)

_ENDED = (ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED)
_LAST_EVENTS = tuple(f"execution.{status}" for status in _ENDED)
_PAGE = 1000  # events a request
_POLL_S = 0.5


class Client:
    """Talks to a kernel as its user. An async context manager.

    base_url: the kernel's, by default from `REBUNO_URL`; ValueError without one. api_key: by
    default from `REBUNO_API_KEY`; without one no Authorization is sent, as a local kernel in
    dev mode allows. timeout: seconds to wait for an answer.

    Every method raises NetworkError when the kernel cannot be reached, and an APIError of its
    code when the kernel refuses: NotFoundError, ForbiddenError and so on. Reads, and creations
    with an idempotency key, are first repeated a few times.
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, timeout: float = 35.0
    ) -> None:
        self.base_url = (base_url or os.environ.get("REBUNO_URL", "")).rstrip("/")
        if not self.base_url:
            raise ValueError("Client base_url is required (set REBUNO_URL or pass base_url=)")
        self.api_key = api_key or os.environ.get("REBUNO_API_KEY", "")
        self._timeout_s = timeout
        self._wire = self._wire_to(Environment())

    async def __aenter__(self) -> Self:
        """Returns the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connections."""
        await self.close()

    async def close(self) -> None:
        """Closes the connections. May be called again."""
        await self._wire.close()

    async def create(
        self,
        agent_id: str,
        input: Any = None,
        *,
        session: str = "",
        parent_execution_id: str = "",
        idempotency_key: str = "",
        spawned_by: SpawnedBy | None = None,
        on_behalf_of: str = "",
    ) -> Execution:
        """Starts an execution of an agent on `input`, any JSON; returns it as it is then.

        session: executions of one session run one at a time, each seeing what the one before
        left. parent_execution_id: a completed execution to continue from instead.
        idempotency_key: a repeat with the same key returns the execution that is there.
        spawned_by: the step that this execution is to settle, as a subagent. on_behalf_of: the
        end user it serves; recorded, never interpreted.
        """
        request = _requests.create_execution(
            agent_id,
            input,
            session=session,
            parent_execution_id=parent_execution_id,
            idempotency_key=idempotency_key,
            spawned_by=spawned_by,
            on_behalf_of=on_behalf_of,
        )
        patience = LASTING if spawned_by else BRIEF  # an agent asks, that outlives its kernel
        return read(Execution, await self._wire.send(request, patience))

    async def get(self, execution_id: str) -> Execution:
        """Returns an execution as it is now."""
        return read(Execution, await self._wire.send(_requests.get_execution(execution_id)))

    async def list(
        self,
        *,
        agent_id: str = "",
        session: str = "",
        status: str = "",
        cursor: str = "",
        limit: int = 50,
    ) -> ExecutionList:
        """Returns a page of executions, newest first, at most 200.

        `cursor` is the `next_cursor` of the page before.
        """
        request = _requests.list_executions(
            agent_id=agent_id, session=session, status=status, cursor=cursor, limit=limit
        )
        return read(ExecutionList, await self._wire.send(request))

    async def events(
        self, execution_id: str, *, after_seq: int = 0, limit: int = 100
    ) -> builtins.list[Event]:
        """Returns a page of the log, oldest first: at most `limit` (1000) after `after_seq`."""
        request = _requests.events(execution_id, after_seq, limit)
        return read(builtins.list[Event], await self._wire.send(request))

    async def watch(self, execution_id: str) -> AsyncGenerator[Event, None]:
        """Yields the events of the log from the first on, as they happen, until it has ended.

        A lost connection is taken up again where it broke.
        """
        env = self._wire.environment
        after_seq, ended = 0, False
        while True:
            asked = env.monotonic()
            request = _requests.events(
                execution_id, after_seq, _PAGE, wait_s=int(min(self._timeout_s / 2, 25))
            )
            page = read(builtins.list[Event], await self._wire.send(request, LASTING))
            for event in page:
                after_seq = event.event_seq
                ended = ended or event.type in _LAST_EVENTS
                yield event
            if not page and ended:  # a cancel's own events follow the one that ended it
                return
            if not page and env.monotonic() - asked < _POLL_S:
                await env.sleep(_POLL_S)  # a kernel that does not wait

    async def stream(self, execution_id: str) -> AsyncGenerator[Delta, None]:
        """Yields what models write in this execution, from now until it ends.

        It is a live view: a reader that is slow, or was away, misses pieces.
        """
        env = self._wire.environment
        failures = 0
        while True:
            try:
                async with aclosing(self._deltas(execution_id)) as deltas:
                    async for delta in deltas:
                        failures = 0
                        yield delta
                if (await self.get(execution_id)).status in _ENDED:
                    return
            except NetworkError:
                failures += 1
                if failures >= LASTING.attempts:
                    raise
            await env.sleep(LASTING.pause_s(max(failures, 1), env.chance()))

    async def wait(self, execution_id: str, timeout: float | None = None) -> Execution:
        """Returns the execution once it has completed, failed or been cancelled.

        TimeoutError after `timeout` seconds; the execution goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                execution = await self.get(execution_id)
                if execution.status not in _ENDED:
                    async for _ in self.watch(execution_id):
                        pass
                    execution = await self.get(execution_id)
                return execution
        except TimeoutError:
            raise TimeoutError(
                f"execution {execution_id} has not ended within {timeout} s; it goes on"
            ) from None

    async def list_steps(self, execution_id: str, *, status: str = "") -> builtins.list[Step]:
        """Returns the steps in order of creation; `status` is a step's, or `terminal`."""
        request = _requests.list_steps(execution_id, status)
        return read(builtins.list[Step], await self._wire.send(request))

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Returns one step, with its arguments and outcome."""
        return read(Step, await self._wire.send(_requests.get_step(execution_id, step_id)))

    async def cancel(self, execution_id: str) -> None:
        """Cancels an execution; ConflictError if it has ended."""
        await self._wire.send(_requests.cancel(execution_id))

    async def fork(
        self, execution_id: str, *, at_seq: int, session: str = "", policy_bundle: str = ""
    ) -> Execution:
        """Starts a copy of an execution as it was after event `at_seq`; returns the copy.

        What was recorded up to there replays, the rest runs anew: under `policy_bundle` (YAML),
        if given. session: a new session for the copy.
        """
        request = _requests.fork(execution_id, at_seq, session=session, policy_bundle=policy_bundle)
        return read(Execution, await self._wire.send(request))

    async def fork_points(self, execution_id: str) -> ForkPoints:
        """Returns where an execution can be forked, and what could be restored there."""
        return read(ForkPoints, await self._wire.send(_requests.fork_points(execution_id)))

    async def list_approvals(self, *, status: str = "pending") -> builtins.list[Approval]:
        """Returns approvals, the one that expires first in front; an empty status means all."""
        request = _requests.list_approvals(status)
        return read(builtins.list[Approval], await self._wire.send(request))

    async def get_approval(self, approval_id: str) -> Approval:
        """Returns one approval."""
        return read(Approval, await self._wire.send(_requests.get_approval(approval_id)))

    async def grant_approval(
        self, approval_id: str, *, decided_by: str = "", rationale: str = ""
    ) -> None:
        """Lets the step run. `decided_by` is by default the API key's own name.

        ConflictError if it is decided already, ForbiddenError if that person may not.
        """
        await self._decide(approval_id, "grant", decided_by, rationale)

    async def deny_approval(
        self, approval_id: str, *, decided_by: str = "", rationale: str = ""
    ) -> None:
        """Refuses the step. Otherwise as `grant_approval`."""
        await self._decide(approval_id, "deny", decided_by, rationale)

    async def _decide(self, approval_id: str, verb: str, by: str, why: str) -> None:
        request = _requests.decide_approval(approval_id, verb, decided_by=by, rationale=why)
        await self._wire.send(request)

    async def _deltas(self, execution_id: str) -> AsyncGenerator[Delta, None]:
        """Yields what one connection brings."""
        reader = EventStream()
        async with aclosing(self._wire.lines(_requests.watch_deltas(execution_id))) as lines:
            async for line in lines:
                for data in reader.feed(line):
                    yield read(Delta, data.encode())

    def _wire_to(self, environment: Environment) -> Wire:
        """The way to the kernel; tests set `_wire` to one with an environment of their own."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return Wire(
            self.base_url,
            lambda request, target: headers,
            timeout_s=self._timeout_s,
            refused_from=400,
            environment=environment,
        )
