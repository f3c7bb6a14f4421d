# SPDX-License-Identifier: Apache-2.0
"""Moves requests to the kernel and answers back; repeats what is safe to repeat.

Knows bytes, headers and failures, not what a request means.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from ._protocol import Request, error_from, is_unavailable
from .errors import NetworkError, RebunoError

# A request and the path it goes to (escaped, with the base URL's own): the headers that prove it.
Authorize = Callable[[Request, str], dict[str, str]]


@dataclass(frozen=True)
class Environment:
    """What a process gives: clocks, sleep, chance and the network. Tests give their own.

    `provider` answers in the place of every model's provider, `driver` makes what stands in for
    the driver of a resource, by its key: `rebuno.testing.replay` lets nothing out.
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = random.random
    transport: httpx2.AsyncBaseTransport | None = None
    provider: httpx2.AsyncBaseTransport | None = None
    driver: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Patience:
    """How long a repeatable request is tried: so often, and not begun after `total_s`."""

    attempts: int
    total_s: float
    first_s: float = 0.1
    longest_s: float = 5.0

    def pause_s(self, failures: int, chance: float) -> float:
        """The pause after so many failures: exponential, the upper half of it by chance."""
        step: float = min(self.first_s * 2 ** (failures - 1), self.longest_s)
        return step * (0.5 + chance / 2)


LASTING = Patience(attempts=30, total_s=120)  # an agent outlives its kernel's restart
BRIEF = Patience(attempts=3, total_s=5)  # somebody waits for the answer, or the next is due


class Wire:
    """One HTTP client, one kernel. Statuses from `refused_from` up are raised as errors."""

    def __init__(
        self,
        base_url: str,
        authorize: Authorize,
        *,
        timeout_s: float,
        refused_from: int,
        environment: Environment,
    ) -> None:
        self.base_url = base_url
        self.environment = environment
        self._authorize = authorize
        self._timeout_s = timeout_s
        self._refused_from = refused_from
        self._client: httpx2.AsyncClient | None = None

    async def send(self, request: Request, patience: Patience = BRIEF) -> bytes:
        """Returns the answer's body. Raises the error it stands for, or NetworkError."""
        env = self.environment
        started, failures = env.monotonic(), 0
        while True:
            try:
                return await self._send_once(request)
            except RebunoError as exc:
                failures += 1
                passes = isinstance(exc, NetworkError) or is_unavailable(exc)
                late = env.monotonic() - started >= patience.total_s
                if not (request.repeatable and passes) or late or failures >= patience.attempts:
                    raise
            await env.sleep(patience.pause_s(failures, env.chance()))

    async def lines(self, request: Request) -> AsyncGenerator[str, None]:
        """Yields the answer's lines as they come, for as long as it lasts."""
        http = self._http()
        try:
            response = await http.send(self._signed(request, read_timeout_s=60.0), stream=True)
            try:
                if response.status_code >= self._refused_from:
                    raise error_from(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    yield line
            finally:
                await response.aclose()
        except httpx2.RequestError as exc:
            raise self._unreachable(exc) from exc

    async def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _send_once(self, request: Request) -> bytes:
        try:
            response = await self._http().send(self._signed(request))
        except httpx2.RequestError as exc:
            raise self._unreachable(exc) from exc
        if response.status_code >= self._refused_from:
            raise error_from(response.status_code, response.content)
        return response.content

    def _signed(self, request: Request, read_timeout_s: float | None = None) -> httpx2.Request:
        """The request as httpx2 sends it, signed anew: a repeat has a time of its own."""
        url = httpx2.URL(self.base_url + request.path)
        headers = {**request.headers, **self._authorize(request, url.raw_path.decode("ascii"))}
        timeout = httpx2.Timeout(self._timeout_s, read=read_timeout_s or self._timeout_s)
        return self._http().build_request(
            request.method, url, headers=headers, content=request.body, timeout=timeout
        )

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            # The kernel keeps idle connections for 60 s; we let go of them earlier.
            limits = httpx2.Limits(
                max_connections=None, max_keepalive_connections=100, keepalive_expiry=30.0
            )
            transport = self.environment.transport
            self._client = httpx2.AsyncClient(limits=limits, transport=transport)
        return self._client

    def _unreachable(self, exc: httpx2.RequestError) -> NetworkError:
        why = str(exc) or type(exc).__name__
        return NetworkError(f"no answer from the kernel at {self.base_url}: {why}")
