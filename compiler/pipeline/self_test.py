"""Makes the self-test of a bundle: a prompt, and the logits that the reference computes for it.

A runtime runs the prompt when it uses a GPU for the first time. The tolerances are measured here, on the model itself:
the prompt runs once with float32 and once with float16 activations, and the distance between the two results shows how
rounding changes this model's logits.

* float16: four times that distance, because a GPU may round towards zero, which is twice as far and always in the same
  direction, and because the rounding errors of a GPU and of numpy need not cancel. It is at least `FLOAT16_LEAST`, the
  tolerance of the tests for tiny models (tests/tolerances.py), and at most `FLOAT16_MOST`: a model that float16 changes
  by more than that is wrong in float16, even if its kernels are correct.
* bfloat16: eight times the tolerance of float16, because it has three bits less.
* int8: `INT8`, because with int8 activations, projections round their inputs, and the reference does not. A model that
  this changes by more is refused, because no device would run it.
* float32: the distance, but at least `FLOAT32_LEAST` and at most `FLOAT32_MOST`. Rounding is 2^13 times finer than in
  float16, so no model comes near `FLOAT32_LEAST`, which is ten times the tests' tolerance for tiny models, for more
  layers and longer sums. The exception is keys and values that are integers: the smallest difference may move a value
  to the next integer. With 4 bits, that is an eighth of the largest value, so the distance may be up to `INT8`, and
  int8 activations, which round 12 times as coarsely as float16, get four times the distance. A model that rounds its
  activations to 8 bits does this in every layer; its tolerance is `INT8`.

A wrong kernel exceeds both tolerances by far. On tiny models, attention scores that are 2 % too large move the logits
by 0.02, and a projection that omits its last column moves them by 0.16 and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import quant
from ..bundle.entries import SelfTestEntry, SelfTestRow
from ..bundle.folder import Bundle
from ..ir.graph import Graph, Parameter, Source
from ..ir.kv_format import kv_format
from ..ir.ops.sampling import log_sum_exp
from ..passes.split_rows import row_ends, slice_sources
from ..quant.base import Array, FloatArray
from ..quant.kernel_format import weight_format
from ..runtime.audio.windows import source_of, test_window, window_batch
from ..runtime.batch import DERIVED_INPUTS, Chunk, make_batch
from ..runtime.errors import CheckpointError, RequestError
from ..runtime.graph_walk import Execution, Read, walk
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.trust import distance as deviation

LENGTH = 24
SENTENCE = "Every morning the harbour master counts the boats, and writes their names in a blue book."
LIKELIEST = 8
SPREAD = 4
FLOAT32_LEAST = 1e-3
FLOAT32_MOST = 5e-3
FLOAT16_LEAST = 5e-3
FLOAT16_MOST = 0.25
INT8 = 0.05


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of a bundle: its architecture's graph on the bundle's own weights. No pass but `quantize_kv` has
    changed the graph.

    ``weights`` are the parameters of the bundle's plans, after the passes. ``audio`` is the graph that reads sound;
    None if the model reads none.
    """

    bundle: Bundle
    graph: Graph
    weights: Mapping[str, Parameter]
    audio: Graph | None = None


def make_self_test(
    reference: Reference, progress: Callable[[int, int], None] = lambda *_: None, tokens: int = LENGTH
) -> SelfTestEntry:
    """Make the self-test, of ``tokens``. ``progress`` receives the number of computed nodes and of all nodes.

    Raises CheckpointError for a model whose logits are not finite, with float32 activations, or with float16 if the
    bundle offers no other; and RequestError for int8 activations that change them by more than their tolerance.
    """
    bundle = reference.bundle
    prompt = prompt_ids(bundle, tokens)
    offered = {entry.dtype for entry in bundle.manifest.activations}
    exact, half, *rounded = reference_logits(reference, prompt, progress, coarse_matrices(reference))
    if not np.isfinite(exact).all():
        raise CheckpointError(
            f"{bundle.manifest.model}: computes logits that are not finite numbers; its weights are damaged "
            "(--no-self-test compiles it anyway)"
        )
    rows = [expected_row(row, logits) for row, logits in enumerate(exact)]
    # The rows include the largest logit of each position, so they determine the scale.
    scale = max(abs(logit) for row in rows for logit in row.logits)
    distance = float(np.abs(half - exact).max() / scale) if np.isfinite(half).all() else np.inf
    rounds = any(node.op == "fake_quantize" for node in reference.graph.nodes)
    if rounds:
        distance = max(distance, INT8)
    form = kv_format(bundle.manifest.kv)
    rounds_kv = form is not None and (form.bits < 8 or form.floats)
    if offered == {"float16"} and not np.isfinite(half).all():
        raise CheckpointError(
            f"{bundle.manifest.model}: its queries, keys or values exceed float16's largest number, 65504; use "
            "--activations float32"
        )
    tolerances = {
        "float32": rounded_up(min(max(distance, FLOAT32_LEAST), INT8 if rounds or rounds_kv else FLOAT32_MOST)),
        "float16": rounded_up(min(max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "bfloat16": rounded_up(min(8 * max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "int8": rounded_up(max(INT8, min(4 * distance, FLOAT16_MOST))) if rounds_kv else INT8,
    }
    for logits in rounded:
        loss = max(deviation(row, logits[row.row]) for row in rows) / scale
        require_int8(bundle.manifest.model, "logits", loss, tolerances["int8"])
    return SelfTestEntry(
        prompt_ids=prompt, rows=rows, tolerances={dtype: tolerances[dtype] for dtype in sorted(offered)}
    )


def prompt_ids(bundle: Bundle, tokens: int = LENGTH) -> list[int]:
    """The prompt: one half is a sentence, the other half is ids spread over the entire vocabulary. It is shorter if the
    context is.
    """
    manifest = bundle.manifest
    vocab_size, length = manifest.spec.vocab_size, min(tokens, manifest.context)
    tokenizer = Tokenizer(bundle.tokenizer_files())
    words = [token for token in tokenizer.encode(SENTENCE) if token < vocab_size][: length // 2]
    return words + spread(vocab_size, length - len(words))


def spread(size: int, count: int) -> list[int]:
    """``count`` numbers from 0 to ``size`` - 1, at equal distances."""
    return [int(index) for index in np.linspace(0, size - 1, count)]


def expected_row(row: int, logits: npt.NDArray[np.float32]) -> SelfTestRow:
    """The expected logits of the likeliest tokens and of a few others.

    The others differ from row to row. They detect parts of the logits that were never written.
    """
    likeliest = np.argsort(-logits, kind="stable")[:LIKELIEST]
    others = (np.array(spread(len(logits), SPREAD)) + 97 * row) % len(logits)
    token_ids = [int(token) for token in dict.fromkeys([*likeliest, *others])]
    return SelfTestRow(
        row=row,
        token_ids=token_ids,
        logits=[rounded(logits[token]) for token in token_ids],
        logsumexp=rounded(log_sum_exp(logits)),
    )


def rounded(value: float) -> float:
    """The value with six significant digits, which is finer than any tolerance."""
    return float(f"{value:.6g}")


def rounded_up(value: float) -> float:
    """The value rounded up to three significant digits."""
    exponent = math.floor(math.log10(value)) - 2
    return float(f"{math.ceil(value / 10**exponent - 1e-9) * 10**exponent:.3g}")


def require_int8(model: str, what: str, loss: float, tolerance: float) -> None:
    """Raise RequestError if int8 activations change results by more than runtimes allow."""
    if loss > tolerance:
        raise RequestError(
            f"--activations int8: rounding to 8 bits changes the {what} of {model} by {loss:.3g} of the largest, and "
            f"runtimes refuse more than {tolerance:.3g}; leave int8 out"
        )


def coarse_matrices(reference: Reference) -> list[str]:
    """The graph's matrices of integers, whose projections round their inputs with int8 activations; none if the bundle
    does not offer these, or if the model rounds them itself.
    """
    graph, manifest = reference.graph, reference.bundle.manifest
    is_offered = any(entry.dtype == "int8" for entry in manifest.activations)
    if not is_offered or any(node.op == "fake_quantize" for node in graph.nodes):
        return []
    used = quant.by_name(manifest.quantization)
    forms = {name: quant.form_of(each.form, used) for name, each in graph.parameters.items()}
    return [name for name, form in forms.items() if weight_format(form).scale_dtype]


def reference_logits(
    reference: Reference, prompt: list[int], progress: Callable[[int, int], None], coarse: Sequence[str] = ()
) -> list[npt.NDArray[np.float32]]:
    """The logits (S, V) of all rows with float32 and with float16 activations, in one walk over the weights; and with
    int8 activations, if there are ``coarse`` matrices.
    """
    manifest = reference.bundle.manifest
    pages = range(manifest.pages_for(len(prompt)))
    source = None if reference.audio is None else source_of(manifest, window=test_window(manifest))
    batch = make_batch([Chunk(prompt, 0, pages, range(len(prompt)), state=(0, 0), source=source)], manifest.page_size)
    dims = batch.dims(len(pages), num_states=1, num_source_pages=manifest.source_pages)
    # With float16, values may overflow, which makes the distance infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        heard = reference_sources(reference, progress)
        executions = [
            Execution(reference.graph, {**batch.arrays(DERIVED_INPUTS), **states}, dims, activation)
            for activation, states in zip(("float32", "float16"), heard, strict=True)
        ]
        if coarse:
            arrays = {**batch.arrays(DERIVED_INPUTS), **{name: each.copy() for name, each in heard[0].items()}}
            executions.append(Execution(reference.graph, arrays, dims, "float32", coarse))
        found = walk(reference.graph, reference.graph.outputs["logits"], executions, packed_rows(reference), progress)
    return [logits.astype(np.float32) for logits in found]


def reference_sources(reference: Reference, progress: Callable[[int, int], None]) -> list[dict[str, Array]]:
    """The states after the window of `test_window`, with float32 and with float16 activations; none if the model reads
    no sound.
    """
    graph, manifest = reference.audio, reference.bundle.manifest
    if graph is None:
        return [{}, {}]
    batch = window_batch(manifest, [test_window(manifest)])
    dims = batch.dims(0, num_source_pages=manifest.source_pages)
    executions = [Execution(graph, batch.arrays(), dims, activation) for activation in ("float32", "float16")]
    walk(graph, None, executions, packed_rows(reference), progress)
    return [{name: execution.values[name] for name in graph.states} for execution in executions]


def packed_rows(reference: Reference) -> Read:
    """A function that reads the graph's parameters from the bundle's packed weights, wherever passes have moved their
    rows.
    """
    packed: dict[str, list[tuple[Source, str, int]]] = {}
    for name, parameter in reference.weights.items():
        first = 0
        for source in parameter.sources:
            packed.setdefault(source.tensor, []).append((source, name, first))
            first += source.stop - source.start

    def read_source(source: Source) -> Iterator[FloatArray]:
        if source.factor == 0:
            # Its value does not depend on the checkpoint, so a pass may have moved it into an attribute.
            yield np.full(source.stop - source.start, source.offset, np.float32)
            return
        row = source.start
        while row < source.stop:
            entry = next((each for each in packed.get(source.tensor, ()) if holds(each[0], source, row)), None)
            assert entry is not None, f"a pass has lost row {row} of {source.tensor}"
            match, name, first = entry
            stop = min(match.stop, source.stop)
            yield reference.bundle.weight(name, first + row - match.start, first + stop - match.start)
            row = stop

    def read(parameter: Parameter, start: int, stop: int) -> FloatArray:
        sources = slice_sources(parameter.sources, row_ends(parameter.sources), start, stop)
        parts = [part for source in sources for part in read_source(source)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return read


def holds(packed: Source, requested: Source, row: int) -> bool:
    """Whether the packed rows include a row, with the requested offset and factor."""
    return packed.start <= row < packed.stop and (packed.offset, packed.factor) == (requested.offset, requested.factor)
