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

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ..bundle.folder import Bundle
from ..bundle.manifest import GENERATE, ActivationEntry, SelfTestEntry, SelfTestRow, StepEntry
from ..errors import CheckpointError
from ..ir.ops import Array
from ..quant.base import FloatArray
from ..runtime.batch import Batch, Chunk, Limits, make_batch
from ..runtime.reference import ReferenceRunner
from ..text.tokenizer import Tokenizer
from .row_blocks import row_blocks

LENGTH = 24
SENTENCE = "Every morning the harbour master counts the boats, and writes their names in a blue book."
LIKELIEST = 8
SPREAD = 4
FLOAT32_LEAST = 1e-3
FLOAT32_MOST = 5e-3
FLOAT16_LEAST = 5e-3
FLOAT16_MOST = 0.25
INT8 = 0.05


def make_self_test(bundle: Bundle, progress: Callable[[int, int], None] = lambda *_: None) -> SelfTestEntry:
    """``progress`` is told steps done and in all. Raises CheckpointError for a model whose logits are not numbers."""
    prompt = prompt_ids(bundle)
    exact, half = reference_logits(bundle, prompt, progress)
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
        "float32": rounded(min(max(distance, FLOAT32_LEAST), FLOAT32_MOST)),
        "float16": rounded(min(max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "bfloat16": rounded(min(8 * max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "int8": INT8,
    }
    return SelfTestEntry(prompt_ids=prompt, rows=rows, tolerances={dtype: tolerances[dtype] for dtype in sorted(offered)})


def prompt_ids(bundle: Bundle) -> list[int]:
    """Half a sentence, half ids that are spread over the vocabulary from its first to its last; fewer where the context is short."""
    manifest = bundle.manifest
    vocab_size, length = manifest.spec.vocab_size, min(LENGTH, manifest.context)
    words = [token for token in Tokenizer(bundle.tokenizer_files()).encode(SENTENCE) if token < vocab_size][: length // 2]
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
    return SelfTestRow(row=row, token_ids=token_ids, logits=[rounded(logits[token]) for token in token_ids], logsumexp=rounded(logsumexp))


def rounded(value: float) -> float:
    """Six significant digits: finer than any tolerance."""
    return float(f"{value:.6g}")


class BlockRunner(ReferenceRunner):
    """The reference, given the weights of each part of a step."""

    block: Mapping[str, FloatArray]

    def run_part(self, part: StepEntry, values: dict[str, Array], batch: Batch, weights: Mapping[str, FloatArray]) -> None:
        self.block = weights
        dims = batch.dims(self.num_pages, self.limits.sequences)
        self.run_step(self.manifest.plan(GENERATE), part, values, dims)

    def weight(self, name: str) -> FloatArray:
        return self.block[name]


def reference_logits(
    bundle: Bundle, prompt: list[int], progress: Callable[[int, int], None]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The logits (S, V) of all rows with float32 and with float16 activations, in one walk over the weights."""
    both = [ActivationEntry(dtype=dtype, needs=[]) for dtype in ("float32", "float16")]
    bundle = Bundle(bundle.path, bundle.manifest.model_copy(update={"activations": both}))
    manifest = bundle.manifest
    pages = range(manifest.pages_for(len(prompt)))
    batch = make_batch([Chunk(prompt, 0, pages, range(len(prompt)))], manifest.page_size)
    runners = [BlockRunner(bundle, limits=Limits(sequences=8, pages=len(pages)), activation=entry.dtype) for entry in both]
    values = [runner.start(batch) for runner in runners]
    plan = manifest.plan(GENERATE)
    logits, steps = plan.outputs["logits"], plan.steps
    # What follows the logits chooses tokens.
    last = max(index for index, step in enumerate(steps) if logits in step.outputs.values())
    for index, step in enumerate(steps[: last + 1]):
        progress(index, last + 1)
        for part, weights in row_blocks(bundle, step, prompt):
            for runner, found in zip(runners, values, strict=True):
                # Beyond float16's range is infinity, which makes the distance infinite too.
                with np.errstate(over="ignore", invalid="ignore"):
                    runner.run_part(part, found, batch, weights)
    progress(last + 1, last + 1)
    exact, half = (found[logits].astype(np.float32) for found in values)
    return exact, half
