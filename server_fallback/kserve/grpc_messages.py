"""The messages of `inference.proto`, from its compiled form.

They are in a pool of their own: a process that also loads Triton's client has messages of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nearfar.compiler.runtime.errors import RequestError

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = Path(__file__).with_name("inference.binpb")
# A request has a few inputs, outputs and parameters, and may have 2,048 texts, each a field of its tensor.
MAX_FIELDS = 4096
# The sizes of the kinds of fields that have a fixed one.
FIXED_BYTES = {1: 8, 5: 4}


@cache
def message_classes() -> dict[str, Any]:
    """The classes by name, such as "ModelInferRequest"."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    classes: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)
    return classes


def message(name: str) -> Any:
    return message_classes()[f"inference.{name}"]


def as_message(name: str, value: Mapping[str, Any]) -> Any:
    """A message of its form in JSON."""
    from google.protobuf.json_format import ParseDict

    return ParseDict(value, message(name)())


def parse_message(name: str, data: bytes) -> Any:
    """Raises RequestError for bytes that are not such a message, or that have too many fields: a message of 4 MB can
    have two million, of which the library makes objects.
    """
    from google.protobuf.message import DecodeError

    kind = message(name)
    if _fields_left(kind.DESCRIPTOR, data, MAX_FIELDS) < 0:
        raise RequestError(f"the message has more than {MAX_FIELDS:,} fields; send less in one request")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(f"the bytes are not a {name}") from None


def _fields_left(descriptor: Any, data: bytes, most: int) -> int:
    """``most`` without the number of fields of a message and of the messages in it; negative if there are more. Source:
    the wire format of Protocol Buffers.
    """
    at = 0
    while at < len(data) and most >= 0:
        most -= 1
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind in FIXED_BYTES:
            at += FIXED_BYTES[kind]
        elif kind == 2:
            size, at = _varint(data, at)
            field = descriptor.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                most = _fields_left(field.message_type, data[at : at + size], most)
            at += size
        else:
            # Groups, which these messages do not have: the library refuses or skips them.
            break
    return most


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position after it. It may end early in bytes that are not a message."""
    value = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
