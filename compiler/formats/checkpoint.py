"""Checkpoint: what every format reader returns, whatever files it read. The rest of the compiler sees no format."""

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
    """One tensor of a checkpoint, read in rows when asked."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str:
        """The dtype on disk, by the format's own name."""

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows start to stop of the first axis (elements, of a 1-D tensor) as C-contiguous f32: (stop - start, *shape[1:])."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a tokenizer needs: the path of tokenizer.json, and what tokenizer_config.json says beside it.

    ``add_bos_token`` None leaves it to tokenizer.json whether a text starts with the bos token. ``completed`` is the content of
    tokenizer.json with the tokens that other files add; None if they add none.
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
    """A model on disk: its spec, and its tensors by the names that transformers gives them. ``embedding`` None: it generates text.

    ``notes`` say what its user should know about how contradictory files were read, one sentence each.
    """

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerFiles
    embedding: EmbeddingSpec | None = None
    notes: tuple[str, ...] = ()
