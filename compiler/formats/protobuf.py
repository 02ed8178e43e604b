"""Reads the wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding): fields by number."""

from __future__ import annotations

import struct
from collections.abc import Iterator


class Damaged(ValueError):
    """The bytes are not a message."""


def fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The number and value of each field in order: an unsigned 64-bit integer, a float32 for 32 bits, or bytes. Raises
    Damaged.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Damaged(f"field number 0 before byte {at}")
        match kind:
            case 0:
                value, at = _varint(message, at)
                yield number, value
            case 2:
                size, at = _varint(message, at)
                at = _end(message, at, size)
                yield number, message[at - size : at]
            case 5:
                at = _end(message, at, 4)
                yield number, struct.unpack_from("<f", message, at - 4)[0]
            case 1:
                at = _end(message, at, 8)
                yield number, int.from_bytes(message[at - 8 : at], "little")
            case _:
                raise Damaged(f"unknown type {kind} before byte {at}")


def signed(value: int) -> int:
    """An unsigned 64-bit integer as a signed one."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise Damaged("it ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), at
    raise Damaged(f"a number of more than 10 bytes before byte {at}")


def _end(message: bytes, at: int, size: int) -> int:
    if size > len(message) - at:
        raise Damaged(f"{size} bytes are expected at byte {at}, and {len(message) - at} follow")
    return at + size
