"""Trust: a runner is used only if it computes the same as the reference.

`check_runner` runs the bundle's self-test on a runner that was just opened and compares its logits with those in the
manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..bundle.entries import SelfTestEntry, SelfTestRow
from ..bundle.manifest import HEARING, VISION, Manifest
from ..ir.ops.sampling import log_sum_exp
from .audio.windows import source_of, test_window, window_batch
from .batch import Chunk, FloatArray, Source, make_batch
from .errors import DeviceError
from .feature_test import feature_difference
from .plan_runner import PlanRunner
from .runner import Runner
from .vector_test import largest_difference


def check_runner(runner: PlanRunner, manifest: Manifest) -> None:
    """Run the tests of a bundle that has some. Raises DeviceError if the results are not finite or not those of the
    reference.

    Of a self-test, the first half of the prompt is one prefill, the second half without its last token continues it,
    and the last token is a decode step.
    """
    if manifest.self_test is not None:
        if manifest.speech is not None:
            runner.listen(window_batch(manifest, [test_window(manifest)]))
        source = None if manifest.speech is None else source_of(manifest, window=test_window(manifest))
        deviation = largest_deviation(runner, manifest.self_test, manifest.page_size, source)
        require_close(runner, "logits", deviation, manifest.self_test.tolerances)
    if manifest.vector_test is not None:
        what = "scores" if manifest.embedding is None else "vectors"
        deviation = largest_difference(runner, manifest.vector_test)
        require_close(runner, what, deviation, manifest.vector_test.tolerances)
    towers = ((VISION, manifest.vision_test, "pictures"), (HEARING, manifest.hearing_test, "sound"))
    for plan, test, what in towers:
        if test is not None and (plan == HEARING or runner.limits.patches):
            deviation = feature_difference(runner, manifest, plan, test)
            require_close(runner, f"features of {what}", deviation, test.tolerances)


def require_close(runner: PlanRunner, what: str, deviation: float, tolerances: Mapping[str, float]) -> None:
    # The reference computes in float32, whichever dtypes a bundle offers.
    tolerance = tolerances.get(runner.activation, min(tolerances.values()))
    if not deviation <= tolerance:
        fault = (
            f"the {what} are off by {deviation:.3g} of the largest"
            if np.isfinite(deviation)
            else f"the {what} are not finite"
        )
        advice = "compile the model again, or for another --target"
        if runner.activation == "int8":
            # The tolerance does not depend on the model, and some lose more by rounding.
            advice = (
                "8 bits may be too coarse for the activations of this model: compile it without int8 in --activations"
            )
        raise DeviceError(
            f"{runner.device}: computes {runner.manifest.model} incorrectly: {fault}, and at most {tolerance:.3g} is "
            f"rounding; {advice}",
            deviation=deviation if np.isfinite(deviation) else None, tolerance=tolerance,
        )  # fmt: skip


def largest_deviation(runner: Runner, test: SelfTestEntry, page_size: int, source: Source | None = None) -> float:
    """The distance of the runner's logits from the expected ones, relative to the largest logit of the test; infinite
    if not finite.
    """
    rows = {row.row: row for row in test.rows}
    scale = max(abs(logit) for row in test.rows for logit in row.logits)
    deviation = 0.0
    for row, logits in logits_of_prompt(runner, test.prompt_ids, page_size, source):
        if not np.isfinite(logits).all():
            return float("inf")
        deviation = max(deviation, distance(rows[row], logits) / scale)
    return deviation


def logits_of_prompt(
    runner: Runner, prompt: list[int], page_size: int, source: Source | None = None
) -> Iterator[tuple[int, FloatArray]]:
    """Yield the row's index in the prompt and its logits (V,), for as many rows of each forward as the runner's limits
    allow.
    """
    limits = runner.limits
    size = max(1, min(len(prompt) // 2, limits.tokens))
    starts = [*range(0, len(prompt) - 1, size), len(prompt) - 1]
    pages = range(-(-len(prompt) // page_size))
    for start, stop in zip(starts, [*starts[1:], len(prompt)], strict=True):
        sampled = range(max(0, stop - start - limits.rows), stop - start)
        chunk = Chunk(prompt[start:stop], start, pages, sampled, state=(0, 0), source=source)
        output = runner.forward(make_batch([chunk], page_size))
        yield from zip((start + row for row in sampled), output.logits, strict=True)


def distance(expected: SelfTestRow, logits: FloatArray) -> float:
    """The largest difference from the expected logits and from the expected log-sum-exp over all logits."""
    differences = np.abs(logits[expected.token_ids].astype(np.float64) - expected.logits)
    return float(max(differences.max(), abs(log_sum_exp(logits) - expected.logsumexp)))
