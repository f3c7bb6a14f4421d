# SPDX-License-Identifier: Apache-2.0
"""Runs one command and ends all that it started: a program of its own, not a module.

Standard input is a socket: the order as one line of JSON comes in, the outcome goes out. When the
other end closes, because the call was cancelled or the agent was killed, the command ends too.
Standard output and error are the command's.

As the "subreaper" of what it starts, this process inherits every orphan below it, so none can hide
by leaving its parent, group or session. It ends when nothing is left. It imports nothing of the
package: it must start fast and hold nothing that the command could use.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import time
import traceback
from typing import Any, NamedTuple

TICK_S = 0.02
GRACE_S = 1.0  # from SIGTERM to SIGKILL
PATIENCE_S = 10.0  # for what SIGKILL does not end at once
NPROC_MARGIN = 1000

PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


class Process(NamedTuple):
    """A process below this one. Its id alone may have been given away again."""

    pid: int
    started: int
    parent: int
    group: int
    threads: int


def main() -> None:
    """Reads the order, runs it, answers."""
    channel = socket.socket(fileno=os.dup(0))
    order = json.loads(channel.makefile("rb").readline())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not order["isolated"]:  # else bwrap does it, which may itself need a setuid bit
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        outcome = Tree(order).run(channel)
    except Exception:
        outcome = {"error": traceback.format_exc()}
    with contextlib.suppress(OSError):  # nobody may be there any more
        channel.sendall(json.dumps(outcome).encode() + b"\n")


class Tree:
    """The command and all that comes of it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._tasks_at_start = tasks_of_the_machine()
        self._status: int | None = None
        self._leader = 0

    def run(self, channel: socket.socket) -> dict[str, Any]:
        """Until the command has ended, and then nothing of it is left."""
        failure, self._leader = start(self._order, self._tasks_at_start)
        if failure:
            return {"error": failure}
        ended = self._watch(channel)
        if ended in ("timeout", "cancelled"):
            self._ask_to_end()
        left = self._end()
        return {"ended": ended, "status": self._status, "left": left}

    def _watch(self, channel: socket.socket) -> str:
        deadline = time.monotonic() + self._order["seconds"]
        leader = os.pidfd_open(self._leader)
        while True:
            wait = min(TICK_S, max(0.0, deadline - time.monotonic()))
            ready, _, _ = select.select([leader, channel.fileno()], [], [], wait)
            if leader in ready:
                return "exited"
            if channel.fileno() in ready:
                return "cancelled"
            if time.monotonic() >= deadline:
                return "timeout"
            if self._too_many():
                return "processes"
            self._reap_orphans()

    def _too_many(self) -> bool:
        # The machine's count is one small read; only when it has grown so much is ours looked at.
        most: int = self._order["processes"]
        if tasks_of_the_machine() - self._tasks_at_start <= most:
            return False
        return sum(process.threads for process in descendants()) > most

    def _ask_to_end(self) -> None:
        """SIGTERM, and a moment to obey."""
        for process in descendants():
            # bwrap would obey, and take everything with it at once.
            if not self._order["isolated"] or process.pid != self._leader:
                send(process, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and not self._leader_has_ended():
            self._reap_orphans()
            time.sleep(0.01)

    def _end(self) -> int:
        """SIGKILL for all, until none is left; returns how many would not end."""
        # The group first: one call that no fork escapes. Its id is ours until the leader is reaped.
        with contextlib.suppress(OSError):
            os.killpg(self._leader, signal.SIGKILL)
        began = time.monotonic()
        while not self._all_buried():
            waited = time.monotonic() - began
            if waited > PATIENCE_S:
                return len(descendants())
            # The kernel ends a sandbox with its first process; looking at each only delays it.
            if not self._order["isolated"] or waited > GRACE_S:
                kill_below()
            time.sleep(0.002)
        return 0

    def _all_buried(self) -> bool:
        """Whether nothing is left: what lives has a parent below this process, or this one."""
        self._reap_orphans()
        if self._leader_has_ended() and self._status is None:
            code = os.waitstatus_to_exitcode(os.waitpid(self._leader, 0)[1])
            self._status = code if code >= 0 else 128 - code
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def _leader_has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._status is not None or (os.waitid(os.P_PID, self._leader, options) is not None)

    def _reap_orphans(self) -> None:
        """Buries what ended, but for the leader: its id stands for its group."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self._leader:
                    return
                os.waitpid(ended.si_pid, 0)


def start(order: dict[str, Any], tasks: int) -> tuple[str, int]:
    """Starts the command in a session of its own: what went wrong, or "", and its process."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare(order, tasks)
            os.execvpe(order["argv"][0], order["argv"], os.environ)
        except BaseException as exc:
            os.write(tells, str(exc).encode())
        os._exit(127)
    os.close(tells)
    with os.fdopen(told, "rb") as report:
        failure = report.read().decode(errors="replace")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # the pipe closes when the last of the command's processes has gone
        os.dup2(null, fd)
    os.close(null)
    return failure, pid


def prepare(order: dict[str, Any], tasks: int) -> None:
    """What the command is born with."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python, or who started it, ignores some
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    limit(resource.RLIMIT_FSIZE, order["file_bytes"])
    limit(resource.RLIMIT_CORE, 0)
    # It counts all tasks of the user, so the bound is loose: what this many are exceeds in one
    # tick. Root has none; the count above is what holds there.
    limit(resource.RLIMIT_NPROC, tasks + 2 * order["processes"] + NPROC_MARGIN)
    # When time or memory is short, the agent and this supervisor go first.
    os.nice(5)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")


def limit(kind: int, value: int) -> None:
    """Lowers a limit, never raises one."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def kill_below() -> None:
    """Kills all that is there now. What was forked meanwhile is there the next time."""
    found = descendants()
    for group in {process.group for process in found} - {0, os.getpgrp()}:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for process in found:
        send(process, signal.SIGKILL)


def descendants() -> list[Process]:
    """Every process below this one, the nearest first."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := process_of(int(name))) is not None:
            children.setdefault(process.parent, []).append(process)
    found = list(children.get(os.getpid(), ()))
    for process in found:  # grows while it is walked
        found.extend(children.get(process.pid, ()))
    return found


def process_of(pid: int) -> Process | None:
    """What is known of a process; None for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(pid, *(int(fields[at]) for at in (19, 1, 2, 17)))


def send(process: Process, number: int) -> None:
    """Signals a process, and no other that has been given its id."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = process_of(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
    finally:
        os.close(fd)


def tasks_of_the_machine() -> int:
    """How many processes and threads there are."""
    with open("/proc/loadavg", encoding="ascii") as load:
        return int(load.read().split()[3].partition("/")[2])


if __name__ == "__main__":
    main()
