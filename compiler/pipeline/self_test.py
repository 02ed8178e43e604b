"""The self-test that a bundle carries: a prompt, and what the reference computes for it. A bundle flows in, an entry of the manifest out.

A runtime runs the prompt when it meets a GPU for the first time. How far it may then be off is measured here, on the model itself: the
prompt runs once with float32 and once with float16 activations, and the distance of the two is what rounding does to this model's logits.

* float16: four times that distance, because a GPU may round towards zero, which is twice as far and always to the same side, and because
  the roundings of a GPU and of numpy need not cancel. Never less than `FLOAT16_LEAST`, what tests allow tiny models (tests/tolerances.py).
  Never more than `FLOAT16_MOST`: a model that float16 changes by so much is wrong in float16, however right its kernels are.
* bfloat16: eight times as far as float16, for it has three bits less.
* int8: `INT8`, for the reference does not round where projections do then.
* float32: rounding is 2^13 times finer here, so no model comes near `FLOAT32_LEAST`, ten times what tests allow tiny models, for more
  layers and longer sums; unless keys and values are integers, where the finest difference may take a value to the next one. So where the
  distance is larger, it counts, up to `FLOAT32_MOST`.

A wrong kernel is far above both: on tiny models, attention scores that are 2 % too large move the logits by 0.02, a projection that forgets
its last column by 0.16 and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..bundle.folder import Bundle
from ..bundle.manifest import SelfTestEntry, SelfTestRow
from ..errors import CheckpointError
from ..ir.graph import Graph, Parameter, Source
from ..passes.split_large import slice_sources
from ..quant.base import FloatArray
from ..runtime.batch import Chunk, make_batch
from ..runtime.graph_walk import Execution, Read, walk
from ..text.tokenizer import Tokenizer

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
    """What a bundle is compared with: its architecture's graph, which no pass has changed but `quantize_kv`, on the bundle's own weights.

    ``weights`` are the parameters of the bundle's plans, after the passes.
    """

    bundle: Bundle
    graph: Graph
    weights: Mapping[str, Parameter]


def make_self_test(reference: Reference, progress: Callable[[int, int], None] = lambda *_: None) -> SelfTestEntry:
    """``progress`` receives nodes done and in all. Raises CheckpointError for a model whose logits are not numbers."""
    bundle = reference.bundle
    prompt = prompt_ids(bundle)
    exact, half = reference_logits(reference, prompt, progress)
    if not np.isfinite(exact).all():
        raise CheckpointError(
            f"{bundle.manifest.model}: computes logits that are not numbers; its weights are damaged "
            "(--no-self-test compiles it nevertheless)"
        )
    rows = [expected_row(row, logits) for row, logits in enumerate(exact)]
    # The largest logit is among those kept, and so is every row's scale.
    scale = max(abs(logit) for row in rows for logit in row.logits)
    distance = float(np.abs(half - exact).max() / scale) if np.isfinite(half).all() else np.inf
    offered = {entry.dtype for entry in bundle.manifest.activations}
    tolerances = {
        "float32": rounded_up(min(max(distance, FLOAT32_LEAST), FLOAT32_MOST)),
        "float16": rounded_up(min(max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "bfloat16": rounded_up(min(8 * max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "int8": INT8,
    }
    return SelfTestEntry(
        prompt_ids=prompt, rows=rows, tolerances={dtype: tolerances[dtype] for dtype in sorted(offered)}
    )


def prompt_ids(bundle: Bundle) -> list[int]:
    """Half a sentence, half ids that are spread over the vocabulary from its first to its last; fewer where the context is short."""
    manifest = bundle.manifest
    vocab_size, length = manifest.spec.vocab_size, min(LENGTH, manifest.context)
    tokenizer = Tokenizer(bundle.tokenizer_files())
    if tokenizer.chat_template is not None:
        # A wrong template is reported now, not at the first chat.
        tokenizer.chat_template.check()
    words = [token for token in tokenizer.encode(SENTENCE) if token < vocab_size][: length // 2]
    return words + spread(vocab_size, length - len(words))


def spread(size: int, count: int) -> list[int]:
    """``count`` of the numbers below ``size``, from 0 to the last at equal distances."""
    return [int(index) for index in np.linspace(0, size - 1, count)]


def expected_row(row: int, logits: npt.NDArray[np.float32]) -> SelfTestRow:
    """The likeliest tokens; and a few more, in other places each row, which see a part of the logits that was never written."""
    likeliest = np.argsort(-logits, kind="stable")[:LIKELIEST]
    others = (np.array(spread(len(logits), SPREAD)) + 97 * row) % len(logits)
    token_ids = [int(token) for token in dict.fromkeys([*likeliest, *others])]
    largest = float(logits.max())
    logsumexp = largest + float(np.log(np.exp(logits.astype(np.float64) - largest).sum()))
    return SelfTestRow(
        row=row,
        token_ids=token_ids,
        logits=[rounded(logits[token]) for token in token_ids],
        logsumexp=rounded(logsumexp),
    )


def rounded(value: float) -> float:
    """Six significant digits: finer than any tolerance."""
    return float(f"{value:.6g}")


def rounded_up(value: float) -> float:
    """Three significant digits, no less than the value."""
    exponent = math.floor(math.log10(value)) - 2
    return float(f"{math.ceil(value / 10**exponent - 1e-9) * 10**exponent:.3g}")


def reference_logits(
    reference: Reference, prompt: list[int], progress: Callable[[int, int], None]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The logits (S, V) of all rows with float32 and with float16 activations, in one walk over the weights."""
    pages = range(reference.bundle.manifest.pages_for(len(prompt)))
    batch = make_batch([Chunk(prompt, 0, pages, range(len(prompt)))], reference.bundle.manifest.page_size)
    dims = batch.dims(len(pages))
    executions = [Execution(reference.graph, batch.arrays(), dims, activation) for activation in ("float32", "float16")]
    # With float16 values may leave its range, which makes the distance infinite too.
    with np.errstate(over="ignore", invalid="ignore"):
        exact, half = walk(
            reference.graph, reference.graph.outputs["logits"], executions, packed_rows(reference), progress
        )
    return exact.astype(np.float32), half.astype(np.float32)


def packed_rows(reference: Reference) -> Read:
    """Reads the graph's parameters as the bundle has packed them, wherever the passes have put their rows."""
    packed: dict[str, list[tuple[Source, str, int]]] = {}
    for name, parameter in reference.weights.items():
        first = 0
        for source in parameter.sources:
            packed.setdefault(source.tensor, []).append((source, name, first))
            first += source.stop - source.start

    def read_source(source: Source) -> Iterator[FloatArray]:
        row = source.start
        while row < source.stop:
            entry = next((each for each in packed.get(source.tensor, ()) if holds(each[0], source, row)), None)
            assert entry is not None, f"a pass has lost row {row} of {source.tensor}"
            found, name, first = entry
            stop = min(found.stop, source.stop)
            yield reference.bundle.weight(name, first + row - found.start, first + stop - found.start)
            row = stop

    def read(parameter: Parameter, start: int, stop: int) -> FloatArray:
        parts = [part for source in slice_sources(parameter.sources, start, stop) for part in read_source(source)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return read


def holds(packed: Source, wanted: Source, row: int) -> bool:
    """Whether rows that were packed include a row as it is wanted."""
    return packed.start <= row < packed.stop and (packed.offset, packed.factor) == (wanted.offset, wanted.factor)
