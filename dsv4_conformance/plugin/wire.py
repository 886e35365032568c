"""Messages between the process that writes the journal and its forked child: builtin values, framed by their length."""

from __future__ import annotations

import socket
import struct
from typing import Any

import execnet

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 16
LARGEST = 1 << 31


class Wire:
    """One end. ``send`` and ``receive`` raise OSError where the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()
        self._ended = False

    def send(self, *message: Any) -> None:
        """Send a tuple of builtin values."""
        packed = execnet.dumps(message)
        self.socket.sendall(_LENGTH.pack(len(packed)) + packed)

    def receive(self, timeout_s: float | None = None) -> tuple[Any, ...] | None:
        """The next message; None if there will be no more. Raises TimeoutError if none came in time."""
        while True:
            message = self._take()
            if message is not None or self._ended:
                return message
            self.socket.settimeout(timeout_s)
            try:
                data = self.socket.recv(_CHUNK)
            except ConnectionError:
                data = b""
            finally:
                self.socket.settimeout(None)
            self._ended = not data
            self._buffer += data

    def _take(self) -> tuple[Any, ...] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        length = _LENGTH.unpack_from(self._buffer)[0]
        if length > LARGEST:  # the child's descriptor was written to by something else
            self._ended = True
            return None
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        packed = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message = execnet.loads(packed)
        except Exception:
            message = None
        if not isinstance(message, tuple):
            self._ended = True
            return None
        return message
