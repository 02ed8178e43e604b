"""The quality of each weight format of the demo model on each target: `nearfar quality` on held-out prompts and
answers.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_quality.py [--windows N]

It prints a table. Only answers count, because the model was not trained on prompts. WebGPU bundles run on the device
that wgpu finds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from demo_model.corpus import NEAR, WITHOUT_SLOTS, held_out_examples
from demo_model.example import Split

from nearfar.compiler.cli.quality import description, weight_bytes
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats import load
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.measure.quality import (
    DEFAULT_WINDOW,
    Quality,
    RunnerCandidate,
    counted_between,
    make_windows,
    measure,
)
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.runtime.generate import PREFILL_CHUNK
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

SEED = 2024
EXAMPLES = 20
SPLITS = (Split.HELD_OUT_SLOTS, Split.HELD_OUT_PARAPHRASES)
FORMATS: tuple[Mapping[str, Any], ...] = ({"quantization": "q4f16"}, {"quantization": "q8f16"}, {"quantization": "f16"})
GROUPS: tuple[Mapping[str, Any], ...] = (
    {"quantization": "q4f16", "group_size": 64},
    {"quantization": "q4f16", "group_size": 128},
)
INT8 = tuple({**options, "activations": ("int8",)} for options in FORMATS[:2])
KV: Mapping[str, Any] = {"quantization": "f16", "kv": "q8"}
KV_4: Mapping[str, Any] = {"quantization": "f16", "kv": "q4"}
# The demo model's feed-forward layer has 352 columns, which 64 and 128 do not divide, so MLX supports only groups of
# 32.
CASES = [
    *(("webgpu", options) for options in (*FORMATS, *INT8, KV, KV_4)),
    *(("cpu", options) for options in (*FORMATS, KV, KV_4)),
    *(("onnx", options) for options in (*FORMATS, *GROUPS, KV)),
    *(("mlx", options) for options in (*FORMATS, KV)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--windows", type=int, metavar="N", help=f"the first N of {DEFAULT_WINDOW} tokens (default: all)"
    )
    options = parser.parse_args()
    checkpoint = load(str(CHECKPOINT))
    tokenizer = Tokenizer(checkpoint.tokenizer)
    windows = make_windows(tokenizer, held_out_text(), DEFAULT_WINDOW, options.windows)
    counted = counted_between(tokenizer, windows, "<assistant>", "<end>")
    reference = CheckpointReference(checkpoint, DEFAULT_WINDOW)
    hidden = list(reference.hidden(windows))
    print("| bundle | weights | mean KL, nats | 99th percentile | same top token | perplexity |")
    print("|---|---|---|---|---|---|", flush=True)
    devices = []
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        for number, (target, given) in enumerate(CASES):
            try:
                bundle = compile_any(
                    str(CHECKPOINT), Path(folder) / str(number), CompileOptions(target=target, self_test=False, **given)
                )
                runner = open_runner(target, bundle, Limits(tokens=PREFILL_CHUNK, rows=PREFILL_CHUNK))
            except NearfarError as error:
                print(f"{target} {given}: {error.message}", file=sys.stderr, flush=True)
                continue
            found = measure(RunnerCandidate(runner), reference, windows, hidden, counted)
            print(row(description(bundle), weight_bytes(bundle), found), flush=True)
            devices.append(f"{target}: {runner.device}")
            runner.close()
    print(f"\n{found.tokens:,} tokens; the checkpoint's perplexity is {found.reference_perplexity:.3f}")
    print("\n".join(dict.fromkeys(devices)))


def held_out_text() -> str:
    """One chat with the held-out examples of all tasks, in an order determined by the seed."""
    examples = [
        example for task in NEAR for split in splits(task) for example in held_out_examples(task, split, EXAMPLES, SEED)
    ]
    random.Random(SEED).shuffle(examples)
    return "<bos>" + "".join(f"<user>{example.prompt}<end><assistant>{example.answer}<end>" for example in examples)


def splits(task: str) -> Iterator[Split]:
    yield from (split for split in SPLITS if not (split is Split.HELD_OUT_SLOTS and task in WITHOUT_SLOTS))


def row(name: str, size: int, found: Quality) -> str:
    assert found.kl_interval is not None
    spread = found.kl_interval[1] - found.kl_mean
    cells = (
        name, f"{size / 1000:,.0f} kB", f"{found.kl_mean:.2g} ± {spread:.1g}", f"{found.kl_p99:.2g}",
        f"{found.top1_agreement:.2%}",
        f"x {found.perplexity_ratio:.4f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
