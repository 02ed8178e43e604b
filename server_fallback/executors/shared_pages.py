"""Shared pages: the payloads of a transfer between two workers on one Linux machine, in memory that both have.

    decode worker                                                     prefill worker
    listens at a random abstract address, names it in the request --> connects
    maps nothing: it checks the seals and reads  <-- descriptor ----- writes a block into a memory file, seals it
    takes a block  --- one byte, of which `MOST_OPEN` may be due ---> may send the next one

The frames pass through the connection of HTTP as always; a block's states that its payload is in the next descriptor.
Nobody frees anything: an abstract address, a descriptor on its way and an unnamed memory file end with their processes.
A worker in another network namespace, or on a system without sealed memory files, uses the connection for all.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
import sys
from contextlib import suppress

from .page_transfer import damaged

# The most blocks that are in shared memory and that the decode worker has not taken.
MOST_OPEN = 4
# Linux reads and writes no more at once. Larger blocks pass through the connection.
MOST_BYTES = 0x7FFFF000
# struct ucred: process, user and group.
CREDENTIALS = struct.Struct("3i")
ROOT = 0
TAKEN = b"\1"


def address_of(name: str) -> bytes:
    """The abstract address of a name in a request."""
    return b"\0nearfar-pages-" + name.encode()


def is_supported() -> bool:
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class SharedReader:
    """Of one transfer, on the decode worker. ``name`` is None if this system has no sealed memory files."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._listener: socket.socket | None = None
        self._channel: socket.socket | None = None

    def __enter__(self) -> SharedReader:
        if is_supported():
            listener, name = socket.socket(socket.AF_UNIX), secrets.token_hex(16)
            listener.setblocking(False)
            try:
                listener.bind(address_of(name))
                listener.listen()
            except OSError:
                # As in a sandbox that forbids it: the connection is enough.
                listener.close()
            else:
                self.name, self._listener = name, listener
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._channel, self._listener):
            if each is not None:
                each.close()

    def take(self, size: int) -> bytes:
        """The payload of the next block, of ``size`` bytes. It was sent before the block's frame, so this does not
        wait. Raises TransferFailed if it is not there, not sealed, or has another size.
        """
        try:
            channel = self._channel = self._channel or self._accepted()
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise damaged("a block in shared memory, and no descriptor of it") from error
        if not descriptors:
            raise damaged("a block in shared memory, and no descriptor of it")
        try:
            data = _content(descriptors[0], size)
        finally:
            os.close(descriptors[0])
        # A worker that is gone no longer counts them.
        with suppress(OSError):
            channel.send(TAKEN)
        return data

    def _accepted(self) -> socket.socket:
        """The worker's end. Other users of this machine can connect, too. Raises BlockingIOError if it did not."""
        if self._listener is None:
            raise BlockingIOError
        while True:
            channel, _ = self._listener.accept()
            channel.setblocking(False)
            if _is_ours(channel):
                return channel
            channel.close()


class SharedWriter:
    """Of one transfer, on the prefill worker. ``name`` is that of the request."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._channel: socket.socket | None = None
        self._open = 0

    def __enter__(self) -> SharedWriter:
        if self._name is not None and is_supported():
            channel = socket.socket(socket.AF_UNIX)
            channel.setblocking(False)
            try:
                channel.connect(address_of(self._name))
                self._channel = channel if _is_ours(channel) else None
            except OSError:
                # The decode worker is in another network namespace.
                self._channel = None
            if self._channel is None:
                channel.close()
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()

    async def send(self, data: bytes) -> bool:
        """Pass a payload, as soon as the decode worker has taken enough of those before it. False if it must pass
        through the connection.
        """
        channel = self._channel
        if channel is None or not 0 < len(data) <= MOST_BYTES:
            return False
        while self._open >= MOST_OPEN:
            try:
                taken = await asyncio.get_running_loop().sock_recv(channel, MOST_OPEN)
            except OSError:
                taken = b""
            if not taken:
                # The transfer is over, and the connection will report why.
                return False
            self._open -= len(taken)
        try:
            descriptor = _sealed(data)
        except OSError:
            # No memory or no descriptors are left. The connection needs less of both.
            return False
        try:
            socket.send_fds(channel, [TAKEN], [descriptor])
        except OSError:
            return False
        finally:
            os.close(descriptor)
        self._open += 1
        return True


def _sealed(data: bytes) -> int:
    """The descriptor of a memory file that nobody can change any more."""
    import fcntl

    descriptor = os.memfd_create("nearfar-pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError("the memory file is incomplete")
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _content(descriptor: int, size: int) -> bytes:
    """Reading cannot crash as mapped memory does that another process truncates; with the seals, it cannot change
    between two looks at it either. Raises TransferFailed.
    """
    import fcntl

    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise damaged("a descriptor that is not a memory file") from error
    if seals & _seals() != _seals():
        raise damaged("shared memory that is not sealed")
    data = os.pread(descriptor, size, 0) if os.fstat(descriptor).st_size == size else b""
    if len(data) != size:
        raise damaged(f"shared memory of {os.fstat(descriptor).st_size} bytes for a block of {size}")
    return data


def _seals() -> int:
    import fcntl

    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def _is_ours(channel: socket.socket) -> bool:
    """Whether the other end belongs to this process's user, or to root."""
    _, user, _ = CREDENTIALS.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return user in (os.geteuid(), ROOT)
