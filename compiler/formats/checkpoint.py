"""Checkpoint: the result of every format reader. The rest of the compiler does not know formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..bundle.entries import OriginEntry
from ..ir.images import ImageSpec
from ..ir.sounds import SoundSpec
from ..ir.spec import ModelSpec
from ..ir.speech import CtcSpec, SpeechSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from ..quant import Codes, WeightForm
from ..quant.base import Array
from ..runtime.errors import CheckpointError
from ..runtime.text.tokenizer_files import TokenizerFiles

Named = TypeVar("Named")


def put_renamed(renamed: dict[str, Named], own: str, name: str, tensor: Named) -> None:
    """Add the tensor ``name`` under the name that others give it. Raises CheckpointError if another one has it."""
    if own in renamed:
        raise CheckpointError(
            f"tensors: {name} and another one are both {own}, so it is not known which is right; store one of them",
            tensor=name,
        )
    renamed[own] = tensor


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
class Derived:
    """A base of tensors that are read from ``stored`` and have its name."""

    stored: Tensor

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def dtype(self) -> str:
        return self.stored.dtype


@dataclass(frozen=True, slots=True)
class Shifted:
    """A vector that is stored plus one."""

    name: str
    stored: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.stored.rows(start, stop) - np.float32(1)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix (N, K) that the checkpoint stores quantized: a `Tensor` whose rows are also planes of a known format.

    ``planes(start, stop)`` reads the planes of rows [start, stop), which ``form`` defines, without any rounding. Up to
    ``padding`` of the last columns may be padding, if a row's integers do not fill its last byte.

    If the checkpoint's own format, ``source``, is rounded a little to fit ``form``, then ``exact(start, stop)`` reads
    the rows that it means.
    """

    name: str
    shape: tuple[int, int]
    form: WeightForm
    planes: Callable[[int, int], Mapping[str, Array]]
    padding: int = 0
    source: str | None = None
    exact: Callable[[int, int], npt.NDArray[np.float32]] | None = None

    @property
    def dtype(self) -> str:
        return self.source or self.form.name

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        if self.exact is not None:
            return self.exact(start, stop)
        return self.form.unpack(self.planes(start, stop), self.shape[1])

    @property
    def with_float_scales(self) -> StoredMatrix:
        """The same matrix without int8 scales."""
        form = self.form
        if not isinstance(form, Codes) or form.with_float_scales == form:
            return self

        def planes(start: int, stop: int) -> Mapping[str, Array]:
            return form.expanded(self.planes(start, stop))

        return replace(self, form=form.with_float_scales, planes=planes)

    def may_have(self, shape: tuple[int, ...]) -> bool:
        """Whether the matrix has this shape, without padding."""
        return len(shape) == 2 and shape[0] == self.shape[0] and 0 <= self.shape[1] - shape[1] <= self.padding


@dataclass(frozen=True, slots=True)
class DequantizedMatrix:
    """A matrix (N, K) that the checkpoint stores quantized, in a form that no kernel reads. ``dtype`` names it;
    ``rows(start, stop)`` reads rows as floats.
    """

    name: str
    shape: tuple[int, int]
    dtype: str
    rows: Callable[[int, int], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ActivationScales:
    """The static scales of a module's activations: its input and its output are rounded to multiples of their scale
    and clipped to -128 to 127 times it. None: not rounded.
    """

    input: float | None
    output: float | None


@dataclass(frozen=True, slots=True)
class QuantizedTensors:
    """The result of a reader of quantized weights: ``tensors`` by the names that an unquantized checkpoint has."""

    tensors: Mapping[str, Tensor]
    activation_scales: Mapping[str, ActivationScales] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk: its spec, and its tensors by the names that transformers gives them. It makes vectors if
    ``embedding`` is given, scores if ``classifier`` is, transcripts if ``speech`` or ``ctc`` is, and otherwise
    generates text. ``config``: the values of its config.json, or of the equivalent config.json. Longer texts
    than ``max_tokens`` are not meant for the model; None if there is no limit besides that of its spec.

    ``notes``: sentences for the user about contradictory files and how they were read. ``activation_scales``: the
    modules whose activations are rounded, by their names. ``assistant``: the layers of an assistant, whose tensors are
    among those of the model. ``images``: None if it reads no pictures; ``sounds``: None if it does not hear.
    ``towers``: the tensors of its towers as transformers stores them, by the names that graphs give them.
    ``origin``: what its files say about its license and the models that it was made from.
    """

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerFiles
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    embedding: EmbeddingSpec | None = None
    notes: tuple[str, ...] = ()
    activation_scales: Mapping[str, ActivationScales] = field(default_factory=dict)
    classifier: ClassifierSpec | None = None
    max_tokens: int | None = None
    assistant: ModelSpec | None = None
    images: ImageSpec | None = None
    sounds: SoundSpec | None = None
    speech: SpeechSpec | None = None
    ctc: CtcSpec | None = None
    towers: Mapping[str, Tensor] = field(default_factory=dict)
    origin: OriginEntry | None = None

    @property
    def task(self) -> EmbeddingSpec | ClassifierSpec | SpeechSpec | CtcSpec | None:
        """What it computes of a text or of sound; None if it generates text from text."""
        return self.embedding or self.classifier or self.speech or self.ctc

    @property
    def stored_forms(self) -> dict[str, int]:
        """The number of quantized weights, by the name of the format in which the checkpoint stores them."""
        counts: dict[str, int] = {}
        for tensor in self.tensors.values():
            if isinstance(tensor, StoredMatrix | DequantizedMatrix):
                counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.shape[0] * tensor.shape[1]
        return counts

    @property
    def with_float_scales(self) -> Checkpoint:
        """The same checkpoint without int8 scales, for kernels that do not read them."""
        tensors, towers = (
            {
                name: tensor.with_float_scales if isinstance(tensor, StoredMatrix) else tensor
                for name, tensor in each.items()
            }
            for each in (self.tensors, self.towers)
        )
        return replace(self, tensors=tensors, towers=towers)
