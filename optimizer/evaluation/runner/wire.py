"""Messages between supervisor and runner: one JSON object, preceded by its length, accompanied by
file descriptors. And tokens: the bytes that grant the timed calls of a block one by one.

Every message carries a nonce that the supervisor drew, so that text which a candidate prints or
writes to a guessed descriptor is never taken for a result. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
MAX_MESSAGE = 64 * 1024 * 1024
MAX_FDS = 8


class WireClosed(Exception):
    """The other side has closed the connection."""


class WireForged(Exception):
    """A message without the nonce; `content` is its body."""

    def __init__(self, message: str, content: Any = None) -> None:
        super().__init__(message)
        self.content = content


class Wire:
    """One end of the connection. Not thread-safe."""

    def __init__(self, sock: socket.socket, nonce: str) -> None:
        self._sock = sock
        self._nonce = nonce

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._sock.fileno()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message with file descriptors. Raises WireClosed."""
        body = json.dumps({**message, "nonce": self._nonce}).encode()
        try:
            socket.send_fds(self._sock, [_LENGTH.pack(len(body))], list(fds))
            self._sock.sendall(body)
        except (BrokenPipeError, ConnectionError) as gone:
            raise WireClosed(str(gone)) from gone

    def sender(self) -> Callable[[Mapping[str, Any]], None]:
        """A function that sends messages as `send` does, without descriptors. It calls only C
        functions, so that a Python function which is replaced later changes no message."""
        encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, repr, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, False, True
        )
        pack, sendall, nonce, join = _LENGTH.pack, self._sock.sendall, self._nonce, "".join

        def messages() -> Generator[None, Mapping[str, Any], None]:
            while True:
                message = yield
                body = join(encode({**message, "nonce": nonce}, 0)).encode()
                sendall(pack(len(body)) + body)

        running = messages()
        next(running)
        return running.send

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors. Raises WireClosed, or WireForged for a message
        without the nonce."""
        try:
            head, fds, _, _ = socket.recv_fds(self._sock, _LENGTH.size, MAX_FDS)
        except ConnectionError as gone:
            raise WireClosed(str(gone)) from gone
        head += self._exactly(_LENGTH.size - len(head)) if head else b""
        if not head:
            raise WireClosed("end of the conversation")
        (length,) = _LENGTH.unpack(head)
        if length > MAX_MESSAGE:
            raise WireForged(f"a message of {length} bytes")
        try:
            message = json.loads(self._exactly(length))
        except RecursionError as deep:  # a candidate may write text that is nested without end
            raise WireForged("a message that is nested too deeply") from deep
        if not isinstance(message, dict) or message.pop("nonce", None) != self._nonce:
            raise WireForged("a message without the nonce", message)
        return message, list(fds)

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = self._sock.recv(min(count, 1 << 20))
            except ConnectionError as gone:
                raise WireClosed(str(gone)) from gone
            if not part:
                raise WireClosed("end of the conversation")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._sock.close()


# -- tokens

DRAW_BYTES = 8
REQUEST = b"?"  # for a call; followed by a report on the outputs of the call before
CALL, END = b"c", b"e"  # first byte of a token: a call is granted, or the block ends
# Then the seed of the call's values (on a CPU of its weights only, see `seed_of_weights`), and the
# draw of the elements that the runner is to read of the
# previous call's outputs (zeros where the supervisor reads them itself).
TOKEN_BYTES = 1 + 2 * DRAW_BYTES


def token(granted: bool, seed: bytes, draw: bytes) -> bytes:
    """The reply to a request; `seed` and `draw` have DRAW_BYTES each."""
    return (CALL if granted else END) + seed + draw


def seed_of_weights(seed: int) -> int:
    """The seed of a call's weights where the supervisor writes its inputs: it does not reveal the
    seed of the inputs."""
    drawn = hashlib.sha256(b"weights" + seed.to_bytes(DRAW_BYTES, "little")).digest()
    return int.from_bytes(drawn[:DRAW_BYTES], "little")


def seed_in(token: bytes) -> int:
    return int.from_bytes(token[1 : 1 + DRAW_BYTES], "little")


def draw_in(token: bytes) -> bytes:
    return token[1 + DRAW_BYTES :]
