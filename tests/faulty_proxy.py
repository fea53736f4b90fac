"""A TCP proxy in front of a real server, which can be slow, silent, closed, or truncate answers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Literal

Mode = Literal["pass", "refuse", "silent", "cut"]
_PIECE = 65_536
CUT_BYTES = 4_000  # bytes of an answer that are passed on in mode `cut`


class FaultyProxy:
    """Listens on loopback from the start; `mode` and `delay_seconds` (before each piece of an
    answer) apply to open connections too.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.mode: Mode = "pass"
        self.delay_seconds = 0.0
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the server behind it."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, mode: Mode) -> None:
        """Change the mode; open connections are closed."""
        self.mode = mode
        for connection in list(self._open):
            self._end(connection)

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.set("refuse")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self.mode == "refuse":
            self._end(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            self._end(client)
            return
        self._open |= {client, server}
        threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
        self._pass(server, client, True)

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        passed = 0
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if is_answer:
                    time.sleep(self.delay_seconds)
                    while self.mode == "silent":
                        time.sleep(0.05)
                    if self.mode == "cut":
                        piece = piece[: max(0, CUT_BYTES - passed)]
                target.sendall(piece)
                passed += len(piece)
                if is_answer and self.mode == "cut" and passed >= CUT_BYTES:
                    break
        self._end(source)
        self._end(target)

    def _end(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
