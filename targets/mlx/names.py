"""The tensors of a folder under mlx-lm's names: `formats/mlx_names.py` read backwards, from the names of transformers.

experts       a tensor for each expert, or a stack of gates and what they gate  -> X.switch_mlp.gate_proj (E, N, K)
norms         Qwen3.5's                                                         -> plus one
convolutions  (C, 1, k)                                                         -> (C, k, 1), which is the same order

mlx-lm renames tensors of transformers too, but leaves behind the scales of quantized ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from nearfar.compiler.formats.mlx_names import LAYER, LFM2, PLUS_ONE, PROJECTIONS, SEPARATE, STACKED
from nearfar.compiler.ir.graph import Parameter, Source
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.weights import tensor_shapes

EXPERT = re.compile(r"(.*\.experts\.)\d{1,6}(\..*)")
# The names with "{}" for an expert's number -> mlx-lm's.
OF_EXPERTS = {
    f"{stem}{name}": f"{module}.{projection}"
    for module, (stem, names) in SEPARATE.items()
    for projection, name in names.items()
}
# Stacks of gates and what they gate, and those of the projections back, with mlx-lm's module.
HALVES = {names[0]: module for module, names in STACKED.items()}
WHOLE = {names[1]: module for module, names in STACKED.items()}
LFM2_DENSE = {f"feed_forward.{ours}": f"feed_forward.{theirs}" for theirs, ours in LFM2.items()}
# What names of a family begin with, in order -> mlx-lm's beginning.
PREFIXES: Mapping[str, Mapping[str, str]] = {
    "mamba2": {"model.embed_tokens.": "backbone.embeddings.", "model.": "backbone."},
    "qwen3_5_text": {"": "language_model."},
}
CONVOLUTIONS = (".conv1d.weight", ".conv.conv.weight")


@dataclass(frozen=True, slots=True)
class FolderTensors:
    """The tensors of a folder, as parameters of the checkpoint's, of the text model ``spec``. ``shapes``: of those
    whose shape is not that of their rows. ``file``: the name of the only file, None for model.safetensors or shards.
    """

    parameters: list[Parameter]
    spec: ModelSpec
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    file: str | None = None

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tensor with this shape as rows, or of its scales."""
        spec = self.spec
        if spec.experts is not None and (".switch_mlp." in name or ".switch_glu." in name):
            return (spec.experts.number, shape[0] // spec.experts.number, *shape[1:])
        if spec.states is not None and name.endswith(CONVOLUTIONS):
            return (shape[0] // spec.states.taps, spec.states.taps, 1)
        return self.shapes.get(name, shape)


def folder_tensors(
    parameters: Mapping[str, Parameter], spec: ModelSpec, prefixes: Mapping[str, str] | None = None
) -> FolderTensors:
    """The tensors of a folder: those that ``parameters`` read. ``prefixes``: see PREFIXES, those of the family if
    None.
    """
    forms = {source.tensor: parameter.form for parameter in parameters.values() for source in parameter.sources}
    prefixes = PREFIXES.get(spec.model_type, {}) if prefixes is None else prefixes
    found: dict[str, Parameter] = {}
    for name, shape in tensor_shapes(parameters).items():
        columns = shape[1] if len(shape) > 1 else None
        for part, source in parts_of(name, shape[0], spec):
            own = prefixed(part, prefixes)
            before = found[own].sources if own in found else ()
            found[own] = Parameter(own, (*before, source), columns, forms[name])
    return FolderTensors(list(found.values()), spec)


def parts_of(name: str, rows: int, spec: ModelSpec) -> Iterator[tuple[str, Source]]:
    """The tensors of the folder, without their prefix, that have rows of a checkpoint's tensor, with these rows."""
    match = LAYER.fullmatch(name)
    parts = dict(in_layer(match[2], Source(name, 0, rows), spec)) if match is not None else {}
    for own, sources in parts.items():
        assert match is not None
        for source in sources:
            yield f"{match[1]}{own}.weight", source
    if not parts:
        shifted = spec.model_type == "qwen3_5_text" and PLUS_ONE.fullmatch(name)
        yield name, Source(name, 0, rows, offset=1.0 if shifted else 0.0)


def in_layer(name: str, whole: Source, spec: ModelSpec) -> Iterator[tuple[str, list[Source]]]:
    """mlx-lm's modules that have rows of a layer's tensor, if their names differ."""
    module = name.removesuffix(".weight")
    experts = spec.experts.number if spec.experts is not None else 1
    expert = EXPERT.fullmatch(module)
    if expert is not None and f"{expert[1]}{{}}{expert[2]}" in OF_EXPERTS:
        yield OF_EXPERTS[f"{expert[1]}{{}}{expert[2]}"], [whole]
    elif name in HALVES:
        yield from halves(HALVES[name], whole, experts)
    elif name in WHOLE:
        yield f"{WHOLE[name]}.down_proj", [whole]
    elif is_dense_granite(spec) and module == "shared_mlp.input_linear":
        yield from halves("mlp", whole, 1)
    elif is_dense_granite(spec) and module == "shared_mlp.output_linear":
        yield "mlp.down_proj", [whole]
    elif spec.model_type == "lfm2_moe" and module in LFM2_DENSE:
        yield LFM2_DENSE[module], [whole]


def is_dense_granite(spec: ModelSpec) -> bool:
    return spec.model_type == "granitemoehybrid" and spec.experts is None


def halves(module: str, whole: Source, experts: int) -> Iterator[tuple[str, list[Source]]]:
    """The gates of all experts, and what they gate."""
    each = whole.stop // (2 * experts)
    for half, projection in enumerate(PROJECTIONS[:2]):
        starts = [(2 * expert + half) * each for expert in range(experts)]
        yield f"{module}.{projection}", [replace(whole, start=start, stop=start + each) for start in starts]


def prefixed(name: str, prefixes: Mapping[str, str]) -> str:
    for prefix, own in prefixes.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
