"""Checkpoint: the result of every format reader. The rest of the compiler does not know formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError, reason_of
from ..ir.spec import EmbeddingSpec, ModelSpec


class Tensor(Protocol):
    """One tensor of a checkpoint, whose rows are read on request."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str:
        """The dtype on disk, in the format's own spelling."""

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows start to stop of the first axis (the elements, for a 1-D tensor) as C-contiguous f32: (stop - start,
        *shape[1:]).
        """


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The input of a tokenizer: the path of tokenizer.json, and the values of tokenizer_config.json.

    ``add_bos_token`` None: tokenizer.json determines whether a text starts with the bos token. ``completed`` is the
    content of tokenizer.json with the tokens that other files add; None if they add none.
    """

    tokenizer_json: Path
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    add_bos_token: bool | None = None
    completed: str | None = field(default=None, repr=False)

    def read(self) -> bytes:
        """The content of tokenizer.json, with the tokens that other files add. Raises CheckpointError."""
        if self.completed is not None:
            return self.completed.encode()
        try:
            return self.tokenizer_json.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{self.tokenizer_json}: cannot be read: {reason_of(error)}; download it again"
            ) from error


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk: its spec, and its tensors by the names that transformers gives them. ``embedding`` None: it
    generates text.

    ``notes``: sentences for the user about contradictory files and how they were read.
    """

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerFiles
    embedding: EmbeddingSpec | None = None
    notes: tuple[str, ...] = ()
