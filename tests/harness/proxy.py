"""A TCP proxy whose connections can be cut at a chosen moment."""

import contextlib
import socket
import threading
from collections.abc import Callable

Trigger = Callable[[bytes], bool]


class Proxy:
    """Forwards 127.0.0.1:port to a target until told otherwise.

    `cut_on` is asked about each chunk that goes to the target; when it says yes the chunk is passed
    on or swallowed, as `deliver` says, and the connection is broken in both directions.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.cut_on: Trigger | None = None
        self.deliver = False
        self.cuts = 0
        self._closed = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near, False), daemon=True)
        back.start()
        self._pump(near, far, True)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket, outgoing: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if outgoing and self._cuts(chunk):
                    if self.deliver:
                        self._break(source)  # first, so that no answer can slip through
                        sink.sendall(chunk)
                    break
                sink.sendall(chunk)
        self._break(source)
        self._break(sink)

    def _cuts(self, chunk: bytes) -> bool:
        with self._lock:
            if self.cut_on is None or not self.cut_on(chunk):
                return False
            self.cut_on = None
            self.cuts += 1
            return True

    @staticmethod
    def _break(end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def break_all(self) -> None:
        """Breaks every connection there is now."""
        with self._lock:
            for end in self._open:
                self._break(end)

    def close(self) -> None:
        self._closed = True
        self._break(self._listener)
        self._acceptor.join(5)
        self._listener.close()
        self.break_all()
