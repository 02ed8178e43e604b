"""The messages of `inference.proto`, from its compiled form.

They are in a pool of their own: a process that also loads Triton's client has messages of the same names.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = Path(__file__).with_name("inference.binpb")


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
