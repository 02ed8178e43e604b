"""`nearfar quality` of embedding models: the cosines of vectors, and the results of a search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from ..bundle.folder import Bundle, ExportBundle
from ..formats import Checkpoint
from ..ir.tasks import EmbeddingSpec
from ..measure.quality import require_same_tokens
from ..measure.report import weight_bytes_of
from ..measure.vector_quality import SearchTask, VectorQuality, compare_vectors, make_task
from ..measure.vector_reference import VectorReference
from ..runtime.batch import FloatArray
from ..runtime.encoding import Text, encode
from ..runtime.errors import RequestError
from ..runtime.runner import Limits
from ..runtime.text.tokenizer import Tokenizer
from .comparison import Comparison, bundle_entry, comparison_table
from .model import open_command_runner
from .options import Quality
from .output import megabytes
from .phases import progress_bars

TEXTS_AT_ONCE = 64
Compared = tuple[Bundle | ExportBundle, str, VectorQuality]


def run_vectors(
    options: Quality,
    checkpoint: Checkpoint,
    bundles: Sequence[Bundle | ExportBundle | Checkpoint],
    text: str,
) -> None:
    """Measure and print. Raises RequestError for options and candidates that vectors do not have."""
    spec = checkpoint.embedding
    assert spec is not None
    if options.between:
        raise RequestError(f"--between: {checkpoint.path} makes embeddings and predicts no tokens; remove the option")
    candidates = [require_embeds(each, checkpoint, spec) for each in bundles]
    longest = min(each.manifest.context for each in candidates)
    window = options.window or longest
    if window > longest:
        raise RequestError(f"--window {window}: the context of a bundle is {longest}; use at most that")
    task = make_task(Tokenizer(checkpoint.tokenizer), spec, text, window, options.windows)
    reference = VectorReference(checkpoint, window)
    results: list[Compared] = []
    with progress_bars(quiet=options.json) as bars:
        bars.start()
        bar = bars.add_task("reference", total=len(task.texts))
        expected = reference.vectors(task.texts, lambda done: bars.update(bar, completed=done))
        for each in candidates:
            bar = bars.add_task(each.path.name[:17], total=1)
            results.append((each, *measured(each, task, expected, options.runner)))
            bars.update(bar, completed=1)
    first = results[0][2]
    summary = (
        f"{first.texts:,} texts and a search with each of {first.queries:,} sentences; the checkpoint's first result "
        f"is right in {first.reference_recall:.2%}"
    )
    entries, devices = [bundle_entry(*result) for result in results], [device for _, device, _ in results]
    losses = [(each.path.name, 1 - quality.cosine_mean) for each, _, quality in results]
    Comparison(window, entries, table(results), summary, devices, losses).show(options)


def require_embeds(
    candidate: Bundle | ExportBundle | Checkpoint, checkpoint: Checkpoint, spec: EmbeddingSpec
) -> Bundle | ExportBundle:
    """The bundle, if it makes vectors as the checkpoint does. Raises RequestError and BundleError."""
    if isinstance(candidate, Checkpoint):
        raise RequestError(f"{candidate.path}: is not a bundle; compile it, then compare the bundle's vectors")
    require_same_tokens(candidate, checkpoint)
    own = candidate.manifest.embedding
    if own is None or (own.pooling, own.size, own.dense) != (spec.pooling, spec.size, spec.dense):
        raise RequestError(f"{candidate.path}: makes other vectors than {checkpoint.path}; give the same model")
    return candidate


def measured(
    bundle: Bundle | ExportBundle, task: SearchTask, expected: FloatArray, runner: str | None
) -> tuple[str, VectorQuality]:
    """The device, and the quality of the bundle's vectors on it."""
    limits = Limits(tokens=bundle.manifest.context, sequences=TEXTS_AT_ONCE)
    opened = open_command_runner(runner, bundle, limits)
    try:
        found = np.stack(encode(opened, [Text(text) for text in task.texts]))
        return opened.device, compare_vectors(task, expected, found, opened.device)
    finally:
        opened.close()


def table(results: Sequence[Compared]) -> Table:
    columns = ("weights", "cosine", "worst", "same top", "same ten", "first is right")
    made = comparison_table("vectors", columns)
    for bundle, _, quality in results:
        made.add_row(
            f"{escape(bundle.path.name)}\n[dim]{bundle.manifest.target}, {bundle.manifest.quantization}",
            megabytes(weight_bytes_of(bundle)),
            f"{quality.cosine_mean:.5f}",
            f"{quality.cosine_min:.5f}",
            f"{quality.top1_agreement:.2%}",
            f"{quality.top10_overlap:.2%}",
            f"{quality.recall:.2%}",
        )
    return made
