"""A model's provider, in this process: answers as a test tells it to, chunk by chunk."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from rebuno import RebunoTransport

Answer = httpx2.Response | Exception | asyncio.Event

SSE = {"content-type": "text/event-stream"}
URL = "https://model.example/v1/chat"


class Chunks(httpx2.AsyncByteStream):
    """A body that comes in these chunks; it waits at an Event, breaks at an Exception."""

    def __init__(self, *chunks: bytes | Exception | asyncio.Event) -> None:
        self._chunks = chunks
        self.given = 0
        self.waiting = asyncio.Event()
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, asyncio.Event):
                self.waiting.set()
                await chunk.wait()
                continue
            self.given += 1
            yield chunk

    async def aclose(self) -> None:
        self.is_closed = True


class Provider(httpx2.AsyncBaseTransport):
    """The answers in order; an Event before an answer holds it up."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.asked = asyncio.Event()
        self.closed = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.asked.set()
        while True:
            answer = self._answers.pop(0)
            if isinstance(answer, asyncio.Event):
                await answer.wait()
                continue
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def aclose(self) -> None:
        self.closed += 1

    def client(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=RebunoTransport(self), **options)


def said(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> httpx2.Response:
    """A plain answer."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    named = {"content-type": "application/json"} | (headers or {})
    return httpx2.Response(status, headers=named, stream=Chunks(data))


def streamed(*chunks: bytes | Exception | asyncio.Event, **headers: str) -> httpx2.Response:
    return httpx2.Response(200, headers=SSE | headers, stream=Chunks(*chunks))


def recorded(body: str, status: int = 200, kind: str = "application/json") -> dict[str, Any]:
    """The result that the record holds of an answer."""
    return {"status": status, "headers": {"content-type": kind}, "body": body}
