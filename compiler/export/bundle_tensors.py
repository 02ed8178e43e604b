"""The weights of a bundle as the tensors of the checkpoint that it was compiled from.

A manifest does not list where the rows of its weights come from. The architecture and the passes determine that, so
they run again here: their parameters must be the bundle's weights, by name, shape and format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from .. import quant
from ..arch import by_model_type, drafting, encoder_of
from ..arch.draft_heads import keep_sampled_rows
from ..arch.gemma4_assistant import ASSISTANT
from ..arch.gemma4_text import LAYOUT
from ..bundle.folder import Bundle
from ..bundle.manifest import DRAFT, GENERATE, HEARING, VISION, Manifest
from ..formats.towers import TEXT_ONLY
from ..ir.graph import Graph, Parameter, Source
from ..ir.plan import union
from ..passes import run_passes
from ..passes.fit_forms import FACTOR, Runs, fit_forms, scale_results
from ..pipeline.target import load_target
from ..quant import WeightForm
from ..quant.base import Array, FloatArray
from ..runtime.errors import BundleError, UnsupportedModel

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of ``source`` are the rows of a weight from ``first`` on."""

    weight: str
    first: int
    source: Source


@dataclass(frozen=True, slots=True)
class BundleTensor:
    """A tensor of the checkpoint: (N, K), or (N,) for a vector, whose ``form`` is None. ``pieces`` hold its rows in
    order.
    """

    bundle: Bundle
    name: str
    shape: tuple[int, ...]
    form: WeightForm | None
    pieces: tuple[Piece, ...]

    @property
    def has_factor(self) -> bool:
        """Whether the bundle's values are those of the checkpoint, multiplied by a factor."""
        return any(piece.source.factor != 1 for piece in self.pieces)

    @property
    def as_stored(self) -> BundleTensor:
        """The tensor of a checkpoint whose values already contain the factors."""
        pieces = tuple(replace(each, source=replace(each.source, factor=1.0)) for each in self.pieces)
        return replace(self, pieces=pieces)

    def times(self, factor: float) -> BundleTensor:
        pieces = (
            replace(each, source=replace(each.source, factor=each.source.factor / factor)) for each in self.pieces
        )
        return replace(self, pieces=tuple(pieces))

    def after(self, first: int) -> BundleTensor:
        """The tensor without its rows before ``first``."""
        pieces = []
        for piece in self.pieces:
            start, stop = max(piece.source.start, first), piece.source.stop
            if start < stop:
                own = replace(piece.source, start=start - first, stop=stop - first)
                pieces.append(replace(piece, first=piece.first + start - piece.source.start, source=own))
        return replace(self, shape=(self.shape[0] - first, *self.shape[1:]), pieces=tuple(pieces))

    def planes(self, rows: Rows) -> Mapping[str, Array]:
        """The planes of neighbouring rows of a matrix, in the order of ``rows``, with the factors; int8 scales as
        float32.
        """
        assert self.form is not None
        names = [plane.name for plane in self.form.planes(self.shape[1])]
        planes = self._read(
            rows, lambda piece, low, high: {n: self.bundle.plane(piece.weight, n, low, high) for n in names}
        )
        return self.form.expanded(planes) if isinstance(self.form, quant.Codes) else planes

    def rows(self, rows: Rows, shift: float = 0.0) -> FloatArray:
        """Neighbouring rows in the order of ``rows``, plus ``shift``, as float32."""

        def values(piece: Piece, low: int, high: int) -> Mapping[str, Array]:
            stored, source = self.bundle.weight(piece.weight, low, high), piece.source
            # A norm of Gemma is read as 1 + w, and requested as w or as 1 + w.
            difference = np.float32(shift * source.factor - source.offset)
            if difference:
                stored = stored + difference
            return {"w": stored if source.factor == 1 else stored / np.float32(source.factor)}

        result: FloatArray = self._read(rows, values)["w"].astype(np.float32, copy=False)
        return result

    def _read(self, rows: Rows, read: Callable[[Piece, int, int], Mapping[str, Array]]) -> Mapping[str, Array]:
        pairs = self.pieces[0].source.pairs
        if pairs is not None:
            rows = pairs.read_rows(rows)
        low, high = int(rows.min()), int(rows.max()) + 1
        parts = [read(piece, *weight_rows) for piece, weight_rows in self._overlapping(low, high)]
        planes = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        in_order = len(rows) == high - low and bool((np.diff(rows) == 1).all())
        return planes if in_order else {name: plane[rows - low] for name, plane in planes.items()}

    def _overlapping(self, low: int, high: int) -> Iterator[tuple[Piece, tuple[int, int]]]:
        """The pieces with rows in [low, high), and the range of their weight's rows."""
        for piece in self.pieces:
            start, stop = max(low, piece.source.start), min(high, piece.source.stop)
            if start < stop:
                yield piece, (piece.first + start - piece.source.start, piece.first + stop - piece.source.start)


def bundle_tensors(bundle: Bundle) -> dict[str, BundleTensor]:
    """The tensors by their names in the checkpoint. Raises UnsupportedModel for a decoder that makes embeddings or
    scores or sees pictures, and for rounded activations, and BundleError for one whose weights this version does not
    know.
    """
    manifest = bundle.manifest
    if GENERATE not in manifest.plans and encoder_of(manifest.spec.model_type) is None:
        raise UnsupportedModel(
            f"{bundle.path}: makes embeddings or scores; of decoders, only bundles that generate text can be exported"
        )
    if VISION in manifest.plans or HEARING in manifest.plans:
        does = "sees pictures" if VISION in manifest.plans else "hears"
        raise UnsupportedModel(
            f"{bundle.path}: {does}, which exported models do not; compile the model with {TEXT_ONLY} and "
            "export that bundle"
        )
    steps = [step for plan in manifest.plans.values() for step in plan.steps]
    parts = [part for step in steps for place in ("load", "store") for part in step.attrs.get(place, ())]
    if any(each == "fake_quantize" for each in (*(step.op for step in steps), *(part["op"] for part in parts))):
        raise UnsupportedModel(
            f"{bundle.path}: rounds activations to 8-bit integers, which the files of other programs cannot express"
        )
    pieces: dict[str, list[Piece]] = {}
    columns: dict[str, int | None] = {}
    for parameter in parameters_of(bundle).values():
        first = 0
        for source in parameter.sources:
            if source.factor:
                pieces.setdefault(source.tensor, []).append(Piece(parameter.name, first, source))
                columns[source.tensor] = parameter.columns
            first += source.stop - source.start
    return {name: make_tensor(bundle, name, columns[name], each) for name, each in pieces.items()}


def make_tensor(bundle: Bundle, name: str, columns: int | None, pieces: list[Piece]) -> BundleTensor:
    kept: list[Piece] = []
    # A tensor that two weights hold, such as a tied embedding, is read from the first.
    for piece in sorted(pieces, key=lambda piece: piece.source.start):
        if not kept or piece.source.start >= kept[-1].source.stop:
            kept.append(piece)
    rows = kept[-1].source.stop
    assert sum(piece.source.stop - piece.source.start for piece in kept) == rows, f"rows of {name} are missing"
    if columns is None:
        return BundleTensor(bundle, name, (rows,), None, tuple(kept))
    forms = {bundle.manifest.stored_weights[piece.weight].quantization for piece in kept}
    assert len(forms) == 1, f"{name} has parts in several formats"
    return BundleTensor(bundle, name, (rows, columns), quant.form_by_name(str(forms.pop())), tuple(kept))


def parameters_of(bundle: Bundle) -> dict[str, Parameter]:
    """The parameters of the weights of a bundle, with their sources. Raises BundleError."""
    manifest = bundle.manifest
    target = load_target(manifest.target)
    spec, sizes = manifest.spec, (manifest.page_size, manifest.context)
    encoder, task = encoder_of(spec.model_type), manifest.embedding or manifest.classifier
    if encoder is not None and task is not None:
        graphs = {manifest.plan_names[0]: encoder.encode(spec, manifest.context, task)}
    else:
        graphs = {GENERATE: by_model_type(spec.model_type).forward(spec, *sizes)}
    if manifest.has_assistant:
        graphs = {name: keep_sampled_rows(graph, LAYOUT.final_norm, sizes[0]) for name, graph in graphs.items()}
    elif spec.draft_layers:
        graphs[DRAFT] = drafting(spec.model_type).draft_tokens(spec, *sizes)
    fused = union(
        run_passes(
            with_forms(graph, manifest),
            quant.by_name(manifest.quantization),
            target.MAX_BINDING_BYTES,
            manifest.kv,
            manifest.lora.rank if manifest.lora is not None and name == GENERATE else 0,
            host_tables=target.HOST_TABLES,
        ).parameters
        for name, graph in graphs.items()
    )
    expected = {
        name: (list(parameter.shape), None if parameter.columns is None else parameter.form or manifest.quantization)
        for name, parameter in fused.items()
    }
    # An assistant is a checkpoint of its own, and is not exported.
    actual = {
        name: (entry.shape, entry.quantization)
        for name, entry in manifest.stored_weights.items()
        if not name.startswith(ASSISTANT)
    }
    if expected != actual:
        names = sorted(name for name in expected | actual if expected.get(name) != actual.get(name))
        raise BundleError(
            f"{bundle.path}: weight {names[0]} is not one that this version makes of a {manifest.spec.model_type} "
            f"model ({len(names)} such weights); compile the bundle again",
            weights=names[:10],
        )
    return fused


def with_forms(graph: Graph, manifest: Manifest) -> Graph:
    """The graph in which each matrix has the format that the weight with its rows has in the bundle."""
    graph = scale_results(graph) if has_factors_apart(manifest) else graph
    return fit_forms(graph, partial(stored_runs, manifest))


def has_factors_apart(manifest: Manifest) -> bool:
    """Whether results are multiplied by the factors of projections, which weights contain otherwise."""
    return any(name.endswith(FACTOR) for name in manifest.stored_weights)


def stored_runs(manifest: Manifest, parameter: Parameter, stacked: int) -> Runs:
    """A weight in several formats has a part for each, which may be in parts itself."""
    parts: dict[int, tuple[int, str | None]] = {}
    for name, entry in manifest.stored_weights.items():
        if match := re.match(r"\.part(\d{1,6})(?=\.|$)", name.removeprefix(parameter.name)):
            rows, _ = parts.get(int(match[1]), (0, None))
            form = None if entry.quantization == manifest.quantization else entry.quantization
            parts[int(match[1])] = rows + entry.shape[0] // stacked, form
    ordered = [parts[index] for index in sorted(parts)]
    if len({form for _, form in ordered}) < 2:
        return [(0, stored_form(parameter, manifest))]
    starts = accumulate((rows for rows, _ in ordered), initial=0)
    return [(start, form) for start, (_, form) in zip(starts, ordered, strict=False)]


def stored_form(parameter: Parameter, manifest: Manifest) -> str | None:
    """None: the bundle's quantization. A pass names a weight by the projections that it stacks, such as "qkv_proj"."""
    if parameter.columns is None:
        return None
    module, _, own = parameter.name.removesuffix(".weight").rpartition(".")
    prefix, short = f"{module}." if module else "", own.removesuffix("_proj")
    best: tuple[int, str] | None = None
    for name, entry in manifest.stored_weights.items():
        if entry.quantization is None or not name.startswith(prefix):
            continue
        stem = name.removeprefix(prefix).partition(".")[0]
        rank = 0 if stem == own else 1 if short in stem.removesuffix("_proj") else 2
        if rank < 2 and (best is None or rank < best[0]):
            best = rank, entry.quantization
    return None if best is None or best[1] == manifest.quantization else best[1]
