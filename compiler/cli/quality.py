"""nearfar quality: the cost of quantization, from the next-token distributions of bundles and of their checkpoint, or
from the vectors of embedding models (`vector_quality.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import MANIFEST_FILE, ExportManifest, Manifest
from ..bundle.signature import TrustedKey, read_trusted_keys
from ..formats import Checkpoint
from ..formats.hub import hub_model
from ..formats.ignored_keys import IgnoredKeys
from ..given_file import MAX_DATA_BYTES, read_given_text
from ..measure.checkpoint_reference import CheckpointReference
from ..measure.quality import (
    DEFAULT_WINDOW,
    Candidate,
    CheckpointCandidate,
    Quality,
    RunnerCandidate,
    counted_between,
    make_windows,
    measure,
    require_same_ids,
    require_same_tokens,
)
from ..measure.report import weight_bytes_of
from ..runtime.errors import RequestError, reason_of
from ..runtime.generate import PREFILL_CHUNK
from ..runtime.runner import Limits
from ..runtime.text.tokenizer import Tokenizer
from .comparison import Comparison, bundle_entry, comparison_table
from .model import open_command_runner
from .options import Quality as Options
from .output import megabytes
from .phases import progress_bars
from .vector_quality import run_vectors

WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin")
# The runners that are compared with the reference.
Compared: TypeAlias = Bundle | ExportBundle | Checkpoint


def run(options: Options) -> None:
    require_bound(options.fail_above)
    trust = read_trusted_keys(options.trust)
    keys = IgnoredKeys(options.ignore_keys)
    checkpoint = keys.load(options.reference)
    text = read_text(options.text)
    candidates = [opened(name, trust, keys) for name in options.bundles]
    keys.require_found()
    if checkpoint.embedding is not None:
        run_vectors(options, checkpoint, candidates, text)
        return
    for each in candidates:
        if isinstance(each, Checkpoint):
            require_same_ids(each, checkpoint, text)
        else:
            require_same_tokens(each, checkpoint)
    window = options.window or min(DEFAULT_WINDOW, *(longest(each) for each in candidates))
    tokenizer = Tokenizer(checkpoint.tokenizer)
    windows = make_windows(tokenizer, text, window, options.windows)
    counted = counted_between(tokenizer, windows, *options.between) if options.between else None
    reference = CheckpointReference(checkpoint, window)
    results = []
    with progress_bars(quiet=options.json) as bars:
        bars.start()
        task = bars.add_task("reference", total=len(windows))
        hidden = list(reference.hidden(windows, lambda done: bars.update(task, completed=done)))
        for each in candidates:
            task = bars.add_task(each.path.name[:17], total=len(windows))
            with candidate_of(each, windows, window, options.runner) as candidate:
                quality = measure(candidate, reference, windows, hidden, counted, partial(advance, bars, task))
            results.append((each, candidate.device, quality))
    first = results[0][2]
    counted_tokens = f"{first.tokens:,} tokens in windows of {window}"
    summary = f"{counted_tokens}; the checkpoint's perplexity is {first.reference_perplexity:.3f}"
    entries, devices = [entry(*result) for result in results], [device for _, device, _ in results]
    losses = [(each.path.name, quality.kl_mean) for each, _, quality in results]
    Comparison(window, entries, table(results), summary, devices, losses).show(options)


def require_bound(bound: float | None) -> None:
    if bound is not None and not 0 <= bound < math.inf:
        raise RequestError(f"--fail-above {bound}: must be a number of at least 0")


def opened(name: str, trust: Sequence[TrustedKey], keys: IgnoredKeys) -> Compared:
    """A bundle; anything else is loaded as a checkpoint is. Raises BundleError or CheckpointError."""
    path = Path(name)
    if (path / MANIFEST_FILE).is_file() or (not path.exists() and hub_model(name) is None):
        return open_any(path, trust)
    return keys.load(name)


def longest(compared: Compared) -> int:
    """The tokens of the longest window."""
    return compared.spec.max_position_embeddings if isinstance(compared, Checkpoint) else compared.manifest.context


@contextmanager
def candidate_of(
    compared: Compared, windows: Sequence[Sequence[int]], window: int, runner: str | None
) -> Iterator[Candidate]:
    if isinstance(compared, Checkpoint):
        reference = CheckpointReference(compared, window)
        yield CheckpointCandidate(reference, list(reference.hidden(windows)))
        return
    limits = Limits(tokens=PREFILL_CHUNK, rows=PREFILL_CHUNK)
    opened_runner = open_command_runner(runner, compared, limits)
    yield RunnerCandidate(opened_runner)
    opened_runner.close()


def advance(bars: Progress, task: TaskID, done: int) -> None:
    bars.update(task, completed=done)


def read_text(path: Path) -> str:
    try:
        return read_given_text(path, MAX_DATA_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--text {path}: cannot be read: {reason_of(error)}; pass a file of UTF-8 text") from error


def weight_bytes(bundle: Compared) -> int:
    """The bytes of weights that are loaded; for a checkpoint, those of its files."""
    if isinstance(bundle, Checkpoint):
        files = [bundle.path] if bundle.path.is_file() else bundle.path.iterdir()
        return sum(file.stat().st_size for file in files if file.suffix.lower() in WEIGHT_SUFFIXES)
    return weight_bytes_of(bundle)


def description(bundle: Compared) -> str:
    """The target, the weights, int8 if it is the first activation dtype, and the format of keys and values if it is not
    the default.
    """
    if isinstance(bundle, Checkpoint):
        return f"model, {', '.join(sorted(bundle.stored_forms)) or 'floats'}"
    manifest = bundle.manifest
    group = f", groups of {manifest.group_size}" if isinstance(manifest, ExportManifest) and manifest.group_size else ""
    weights = manifest.quantization if isinstance(manifest, ExportManifest) else manifest.matrix_formats
    rounds = isinstance(manifest, Manifest) and manifest.activations[0].dtype == "int8"
    return f"{manifest.target}, {weights}{group}{', int8' if rounds else ''}" + (
        f", KV {manifest.kv}" if manifest.kv != "activation" else ""
    )


def entry(bundle: Compared, device: str, quality: Quality) -> dict[str, Any]:
    if isinstance(bundle, Checkpoint):
        forms = ", ".join(sorted(bundle.stored_forms)) or None
        own: dict[str, Any] = {"model": str(bundle.path), "quantization": forms}
        return {
            **own,
            "device": device,
            "weight_bytes": weight_bytes(bundle),
            **asdict(quality),
            "perplexity_ratio": quality.perplexity_ratio,
        }
    manifest = bundle.manifest
    formats = {"group_size": getattr(manifest, "group_size", None), "kv": manifest.kv}
    return {**bundle_entry(bundle, device, quality, **formats), "perplexity_ratio": quality.perplexity_ratio}


def table(results: list[tuple[Compared, str, Quality]]) -> Table:
    columns = ("weights", "KL, nats", "99th perc.", "same top", "perplexity")
    made = comparison_table("next-token distributions", columns)
    for bundle, _, quality in results:
        spread = "" if quality.kl_interval is None else f"\n± {(quality.kl_interval[1] - quality.kl_mean):.1g}"
        made.add_row(
            f"{escape(bundle.path.name)}\n[dim]{description(bundle)}",
            megabytes(weight_bytes(bundle)),
            f"{quality.kl_mean:.3g}{spread}",
            f"{quality.kl_p99:.3g}",
            f"{quality.top1_agreement:.2%}",
            f"{quality.perplexity:.3f}\nx {quality.perplexity_ratio:.4f}",
        )
    return made
