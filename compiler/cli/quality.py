"""nearfar quality: the cost of quantization, from the next-token distributions of bundles and of their checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import ExportManifest
from ..errors import RequestError, reason_of
from ..formats import load
from ..measure.checkpoint_reference import CheckpointReference
from ..measure.quality import DEFAULT_WINDOW, Quality, counted_between, make_windows, measure, require_same_tokens
from ..pipeline.target import RUNNERS, open_runner
from ..runtime.batch import Limits
from ..runtime.generate import PREFILL_CHUNK
from ..text.tokenizer import Tokenizer
from .output import add_command, megabytes, print_json
from .phases import progress_bars
from .sign import add_trust, trusted_keys


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "quality",
        run,
        example="nearfar quality qwen3-web qwen3-cpu --reference ./Qwen3-0.6B --text wiki.txt",
    )
    parser.add_argument("bundles", metavar="BUNDLE", type=Path, nargs="+")
    parser.add_argument(
        "--reference", metavar="MODEL", required=True, help="the checkpoint, which is computed with numpy in float32"
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        required=True,
        help="a UTF-8 text; special tokens that it spells out count as special tokens",
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        help=f"tokens per window (default: {DEFAULT_WINDOW}, or the shortest context)",
    )
    parser.add_argument("--windows", type=int, metavar="N", help="read only the text's first N windows (default: all)")
    parser.add_argument(
        "--between", nargs=2, metavar=("START", "END"),
        help="count only the tokens after START up to END, such as a chat's answers: "
        "'<|im_start|>assistant' '<|im_end|>' (default: all tokens)",
    )  # fmt: skip
    parser.add_argument(
        "--runner", choices=RUNNERS, help="the runner that computes (default: the target of each bundle)"
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    trust = trusted_keys(options)
    bundles = [open_any(path, trust) for path in options.bundles]
    checkpoint = load(options.reference)
    for bundle in bundles:
        require_same_tokens(bundle, checkpoint)
    window = options.window or min(DEFAULT_WINDOW, *(bundle.manifest.context for bundle in bundles))
    tokenizer = Tokenizer(checkpoint.tokenizer)
    windows = make_windows(tokenizer, read_text(options.text), window, options.windows)
    counted = counted_between(tokenizer, windows, *options.between) if options.between else None
    reference = CheckpointReference(checkpoint, window)
    results = []
    with progress_bars(quiet=options.json) as bars:
        bars.start()
        task = bars.add_task("reference", total=len(windows))
        hidden = list(reference.hidden(windows, lambda done: bars.update(task, completed=done)))
        for bundle in bundles:
            task = bars.add_task(bundle.path.name[:17], total=len(windows))
            runner = open_runner(
                options.runner or bundle.manifest.target, bundle, Limits(tokens=PREFILL_CHUNK, rows=PREFILL_CHUNK)
            )
            quality = measure(runner, reference, windows, hidden, counted, partial(advance, bars, task))
            results.append((bundle, runner.device, quality))
            runner.close()
    if options.json:
        entries = [entry(*result) for result in results]
        print_json({"reference": options.reference, "text": str(options.text), "window": window, "bundles": entries})
        return
    console = Console()
    console.print(table(results))
    first = results[0][2]
    counted_tokens = f"{first.tokens:,} tokens in windows of {window}"
    summary = f"{counted_tokens}; the checkpoint's perplexity is {first.reference_perplexity:.3f}"
    console.print(summary, highlight=False)
    for device in dict.fromkeys(device for _, device, _ in results):
        console.print(f"computed by {escape(device)}", highlight=False)


def advance(bars: Progress, task: TaskID, done: int) -> None:
    bars.update(task, completed=done)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--text {path}: cannot be read: {reason_of(error)}; pass a file of UTF-8 text") from error


def weight_bytes(bundle: Bundle | ExportBundle) -> int:
    """The bytes of weights that are loaded."""
    return (
        sum(shard.size for shard in bundle.manifest.shards)
        if isinstance(bundle, Bundle)
        else bundle.manifest.model_bytes()
    )


def description(bundle: Bundle | ExportBundle) -> str:
    """The target, the weights, and the format of keys and values if it is not the default."""
    manifest = bundle.manifest
    group = f", groups of {manifest.group_size}" if isinstance(manifest, ExportManifest) and manifest.group_size else ""
    weights = manifest.quantization if isinstance(manifest, ExportManifest) else manifest.matrix_formats
    return f"{manifest.target}, {weights}{group}" + (f", KV {manifest.kv}" if manifest.kv != "activation" else "")


def entry(bundle: Bundle | ExportBundle, device: str, quality: Quality) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.path),
        "target": manifest.target,
        "quantization": manifest.quantization,
        "group_size": getattr(manifest, "group_size", None),
        "kv": manifest.kv,
        "device": device,
        "weight_bytes": weight_bytes(bundle),
        **asdict(quality),
        "perplexity_ratio": quality.perplexity_ratio,
    }


def table(results: list[tuple[Bundle | ExportBundle, str, Quality]]) -> Table:
    made = Table(title="next-token distributions compared with the checkpoint's in float32", title_justify="left")
    made.add_column("bundle", overflow="fold")
    for column in ("weights", "KL, nats", "99th perc.", "same top", "perplexity"):
        made.add_column(column, justify="right")
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
