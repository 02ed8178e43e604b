"""The bodies of Triton's extensions to the Open Inference Protocol: "Generate" and "Model Repository"."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .common import Request


class GenerateRequest(Request):
    """As Triton's vLLM backend has it. ``parameters`` are those of /v1/completions, with
    ``exclude_input_in_output``.
    """

    text_input: str
    id: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)


class RepositoryIndexRequest(Request):
    ready: bool = False


class RepositoryRequest(Request):
    """Of a load or an unload."""

    parameters: dict[str, Any] = Field(default_factory=dict)
