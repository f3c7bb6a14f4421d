# SPDX-License-Identifier: Apache-2.0
"""Why a port cannot be listened on, in a sentence. Pure but for looking."""

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

LAST_PORT = 65535

_WHY = {
    errno.EACCES: "this user may not; ports from 1024 on are open to all",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
}
_LISTENS = "0A"  # a socket's state in /proc/net/tcp


def why_not(host: str, port: int) -> str:
    """Tries it, and says what is in the way; `""`: nothing is."""
    where = f"cannot listen on {host}:{port}: "
    if not 0 <= port <= LAST_PORT:
        return f"{where}a port is a number from 0 to {LAST_PORT}, and 0 takes a free one"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return f"{where}there is no such host"
    problems = [_problem(family, address) for family, _, _, _, address in found]
    if errno.EADDRINUSE in problems:
        holder = _holder(port) or "another process"
        return f"{where}{holder} listens there; end that, or take another port"
    if None in problems or not problems:
        return ""
    problem = problems[0] or 0
    return where + _WHY.get(problem, os.strerror(problem))


def _problem(family: int, address: Any) -> int | None:
    """The number of the error; None: it can be had."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as exc:
        return exc.errno
    return None


def _holder(port: int) -> str:
    """The process, where Linux tells this user; never its arguments, which may hold secrets."""
    sockets = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in _rows(table)
        if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port
    }
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with suppress(OSError):
            for handle in (process / "fd").iterdir():
                if os.readlink(handle) in sockets:
                    return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _rows(table: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(table).read_text().splitlines()[1:]]
    except OSError:
        return []
