"""Every error a user can meet, in one tree.

    NearfarError
    ├── CheckpointError      a checkpoint's files are missing, corrupt or disagree with each other
    │   └── UnsupportedModel   they are sound, but ask for mathematics that we do not compile
    ├── QuantizationError    a tensor's values do not fit the quantization asked for
    ├── BundleError          a bundle is missing, corrupt, or from another format version
    ├── OutputError          the place to write to exists, is full, or may not be written
    ├── DeviceError          this machine lacks what the bundle needs (adapter, feature, limit)
    ├── RequestError         a prompt, token list or option is out of range
    ├── Unavailable          it cannot be answered now; trying again later may help
    │   ├── QueueFull          too many requests wait already
    │   └── DeadlineExceeded   it took longer than the request allows
    └── ToolError            something that must be installed is not

A message says where, what and what to do: ``config.json: model_type 'mamba2' is not supported; supported: llama, ...``.
Across a process or HTTP an error travels as ``{code, message, details}``.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping


class NearfarError(Exception):
    """Base of all errors that are about the user's input or machine, never about a bug of ours."""

    code = "nearfar_error"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, object] = details

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "details": dict(self.details)}


class CheckpointError(NearfarError):
    code = "checkpoint_error"


class UnsupportedModel(CheckpointError):
    code = "unsupported_model"


class QuantizationError(NearfarError):
    code = "quantization_error"


class BundleError(NearfarError):
    code = "bundle_error"


class OutputError(NearfarError):
    code = "output_error"


class DeviceError(NearfarError):
    code = "device_error"


class RequestError(NearfarError):
    code = "request_error"


class Unavailable(NearfarError):
    code = "unavailable"


class QueueFull(Unavailable):
    code = "queue_full"


class DeadlineExceeded(Unavailable):
    code = "deadline_exceeded"


class ToolError(NearfarError):
    code = "tool_error"


def reason_of(error: Exception) -> str:
    """Why a file could not be read or written, without the error's number and the path, which the message around it names."""
    if isinstance(error, OSError):
        return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return str(error)
