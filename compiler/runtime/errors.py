"""Every error that a user can see, in one tree.

    NearfarError
    ├── CheckpointError      a checkpoint's files are missing, are corrupt or contradict each other
    │   └── UnsupportedModel   the files are sound, but the model needs mathematics that we do not compile
    ├── QuantizationError    a tensor's values do not fit the requested quantization, or too much quality is lost
    ├── BundleError          a bundle is missing, is corrupt or has another format version
    ├── OutputError          the output path exists already, its disk is full, or it cannot be written
    ├── DeviceError          this machine lacks what the bundle needs (adapter, feature, limit)
    ├── RequestError         a prompt, a token list or an option is invalid or out of range
    ├── Unavailable          the request cannot be answered now; a later attempt may succeed
    │   ├── QueueFull          too many requests are waiting already
    │   └── DeadlineExceeded   the answer took longer than the request allows
    └── ToolError            a required program or library is not installed

A message says where the problem is, what it is and what to do: ``config.json: model_type 'mamba2' is not supported;
supported: llama, ...``. Between processes and over HTTP, an error is sent as ``{code, message, details}``.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from urllib.error import URLError


class NearfarError(Exception):
    """The base of all errors. They are caused by the user's input or machine, never by a bug of ours."""

    code = "nearfar_error"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, object] = details

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "details": dict(self.details)}


class CheckpointError(NearfarError):
    """A checkpoint is missing, incomplete or damaged."""

    code = "checkpoint_error"


class UnsupportedModel(CheckpointError):
    """A model, or a part of its configuration, does not compile."""

    code = "unsupported_model"


class QuantizationError(NearfarError):
    """A quantization does not fit a model's weights."""

    code = "quantization_error"


class BundleError(NearfarError):
    """A bundle is incomplete, damaged, or of another format."""

    code = "bundle_error"


class OutputError(NearfarError):
    """A file or folder cannot be written."""

    code = "output_error"


class DeviceError(NearfarError):
    """A device, its driver or a library is missing, too small, or has failed."""

    code = "device_error"


class RequestError(NearfarError):
    """A request is wrong, and is refused again if it is repeated."""

    code = "request_error"


class Unavailable(NearfarError):
    """Nobody can answer now; a later attempt may succeed."""

    code = "unavailable"


class QueueFull(Unavailable):
    """Too many requests wait."""

    code = "queue_full"


class DeadlineExceeded(Unavailable):
    """The answer was not complete in time."""

    code = "deadline_exceeded"


class ToolError(NearfarError):
    """A tool has failed."""

    code = "tool_error"


def reason_of(error: Exception) -> str:
    """Why a file could not be read or written, without the error number and the path. The caller's message names the
    path.
    """
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        return reason_of(error.reason)
    if isinstance(error, OSError):
        return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return str(error)
