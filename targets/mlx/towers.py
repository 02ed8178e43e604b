"""The tensors of towers in a folder of mlx-vlm: as transformers stores them, but kernels of convolutions have the
channels last. Projections are quantized if their columns fill the groups of MLX; everything else stays floats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nearfar.compiler.arch.hearing import ear_of
from nearfar.compiler.arch.vision import tower_of
from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.checkpoint import Derived, StoredMatrix, Tensor
from nearfar.compiler.formats.convolutions import ChannelsLast, FlatMatrix
from nearfar.compiler.ir.graph import Graph, Parameter, Source
from nearfar.compiler.quant import Quantization, form_of

from .names import FolderTensors, folder_tensors, prefixed
from .packing import group_of_form
from .vlm import VisionLanguageModel

# The format of a matrix that mlx-vlm does not read quantized, before it becomes floats of the activations' dtype.
DENSE = "f32"
# What a projection reads that mlx-vlm converts to the dtype of its weights, which integers do not have.
PIXELS = ("changes", "patches")


def vlm_tensors(
    model: VisionLanguageModel, checkpoint: Checkpoint, graphs: Mapping[str, Graph], quantization: Quantization
) -> tuple[Checkpoint, FolderTensors]:
    """The checkpoint from which the folder's tensors are read, and these tensors."""
    text = folder_tensors(graphs[GENERATE].parameters, checkpoint.spec, model.prefixes)
    own = list(text.parameters)
    if model.copies_head and checkpoint.spec.tie_word_embeddings:
        table = next(each for each in own if each.name.endswith("embed_tokens.weight"))
        own.append(replace(table, name=f"{model.prefixes['lm_head.']}weight"))
    names, forms = names_of_towers(model, checkpoint), forms_of_projections(graphs)
    stored, shapes = dict[str, Tensor](), dict[str, tuple[int, ...]]()
    for name, tensor in checkpoint.towers.items():
        theirs = prefixed(name, names)
        matrix = as_rows(tensor, name)
        columns = math.prod(matrix.shape[1:]) if len(matrix.shape) > 1 else None
        form = None if columns is None else form_of_matrix(name, tensor, forms, quantization)
        own.append(Parameter(theirs, (Source(name, 0, matrix.shape[0]),), columns, form))
        stored[name] = matrix
        if len(tensor.shape) not in (1, 2):
            shapes[theirs] = (channels_last(tensor, name) if has_channels(tensor, name) else tensor).shape
    return replace(checkpoint, tensors={**checkpoint.tensors, **stored}), replace(text, parameters=own, shapes=shapes)


def names_of_towers(model: VisionLanguageModel, checkpoint: Checkpoint) -> Mapping[str, str]:
    vision, hearing = checkpoint.spec.vision, checkpoint.spec.hearing
    assert vision is not None
    parts = dict(tower_of(vision.model_type).PARTS)
    if hearing is not None:
        parts |= ear_of(hearing.model_type).PARTS
    return model.tower_prefixes(parts)


def forms_of_projections(graphs: Mapping[str, Graph]) -> dict[str, str | None]:
    """The format of each matrix by which a tower multiplies its own rows."""
    found: dict[str, str | None] = {}
    for name, graph in graphs.items():
        nodes = graph.nodes if name != GENERATE else []
        for node in nodes:
            if node.op == "linear" and node.inputs["x"] not in PIXELS:
                parameter = graph.parameters[node.inputs["weight"]]
                found |= {source.tensor: parameter.form for source in parameter.sources}
    return found


def form_of_matrix(
    name: str, tensor: Tensor, forms: Mapping[str, str | None], quantization: Quantization
) -> str | None:
    is_module = name in forms and name.endswith(".weight") and len(tensor.shape) == 2
    if not is_module:
        return DENSE
    group = group_of_form(form_of(forms[name], quantization))
    return forms[name] if group is None or tensor.shape[1] % group[0] == 0 else DENSE


def has_channels(tensor: Tensor, name: str) -> bool:
    """Whether a tensor is the kernel of a convolution, and not a table of positions."""
    return len(tensor.shape) > 3 or (len(tensor.shape) == 3 and name.endswith("conv1d.weight"))


def channels_last(tensor: Tensor, name: str) -> Tensor:
    return ChannelsLast(tensor) if has_channels(tensor, name) else tensor


def as_rows(tensor: Tensor, name: str) -> Tensor:
    """A vector, or a matrix with the numbers of the folder's tensor in their order."""
    if isinstance(tensor, StoredMatrix):
        return tensor
    if not tensor.shape:
        return OneNumber(tensor)
    return tensor if len(tensor.shape) < 3 else FlatMatrix(channels_last(tensor, name))


@dataclass(frozen=True, slots=True)
class OneNumber(Derived):
    """A tensor without dimensions, as a vector."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (1,)

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.stored.rows(0, 1).reshape(-1)[start:stop]
