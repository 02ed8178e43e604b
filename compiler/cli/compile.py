"""nearfar compile: a checkpoint becomes a bundle."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from .. import quant
from ..bundle.folder import Bundle
from ..bundle.manifest import EXPORTS
from ..demo import DEMOS
from ..pipeline.target import TARGETS
from .output import add_command, megabytes, print_json

PHASES = {"kernels": "lowering kernels", "weights": "packing weights", "self-test": "running reference"}


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "compile",
        run,
        example="nearfar compile ./Qwen3-0.6B --target webgpu --quantization q4f16 -o qwen3-web",
    )
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder, a name on its hub such as Qwen/Qwen3-0.6B, or demo")
    parser.add_argument("-o", "--output", metavar="BUNDLE", type=Path, required=True, help="the folder to make")
    parser.add_argument("--target", choices=(*TARGETS, *EXPORTS), default="webgpu", help="the device or framework (default: %(default)s)")
    parser.add_argument(
        "--arch",
        metavar="ARCH",
        help="what to compile kernels for, where the target asks: of cpu x86_64 or aarch64 (default: the target's)",
    )
    parser.add_argument("--quantization", choices=quant.NAMES, default="q4f16", help="the weights' format (default: %(default)s)")
    parser.add_argument(
        "--context", type=int, metavar="N", help="the longest sequence in tokens (default: 4096, or what the model was trained for)"
    )
    parser.add_argument(
        "--activations", nargs="+", choices=("float16", "bfloat16", "float32", "int8"), metavar="DTYPE",
        help="activation dtypes to offer, best first: float16, float32, on cuda and mlx bfloat16, on cpu int8 (default: the format's)",
    )  # fmt: skip
    parser.add_argument(
        "--group-size", type=int, choices=quant.GROUPS, metavar="N",
        help="of onnx and mlx: how many weights share a scale, 32, 64 or 128 (default: 32)",
    )  # fmt: skip
    parser.add_argument("--device", metavar="DEVICE", help="of onnx: what the graph is for: cpu, webgpu, cuda, ... (default: cpu)")
    parser.add_argument(
        "--kv", choices=("activation", "q8"), default="activation",
        help="keys and values: activation, as computed, or q8, 8-bit integers in half the memory of float16 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--lora-rank", type=int, default=0, metavar="RANK",
        help="take LoRA adapters of up to this rank, a choice for each request (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--tuning", nargs="+", type=Path, default=[], metavar="FILE",
        help="ship what engine.exportTuning() measured on some GPUs, so that these need not measure again",
    )  # fmt: skip
    parser.add_argument(
        "--no-self-test", action="store_false", dest="self_test",
        help="leave out the prompt by which runtimes find out whether a GPU computes right",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace a bundle that exists")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of progress")


def run(options: argparse.Namespace) -> None:
    from ..pipeline.compile import CompileOptions, compile_any

    started = time.perf_counter()
    wanted = CompileOptions(
        target=options.target,
        arch=options.arch,
        quantization=options.quantization,
        context=options.context,
        activations=tuple(options.activations) if options.activations else None,
        group_size=options.group_size,
        device=options.device,
        kv=options.kv,
        lora_rank=options.lora_rank,
        self_test=options.self_test,
        tuning=tuple(options.tuning),
        force=options.force,
    )
    with progress_bars(quiet=options.json) as bars:
        bundle = compile_any(str(DEMOS.get(options.model, options.model)), options.output, wanted, phases(bars))
    seconds = time.perf_counter() - started
    size = bundle.size_bytes()
    kernels = len(bundle.manifest.kernels) if isinstance(bundle, Bundle) else 0
    if options.json:
        print_json({"bundle": str(options.output), "bytes": size, "seconds": round(seconds, 3), "kernels": kernels})
        return
    # A path that is wrapped is none any more.
    name, console = escape(shlex.quote(str(options.output))), Console(soft_wrap=True)
    console.print(f"[bold green]compiled[/] {name}  {megabytes(size)}, {f'{kernels} kernels, ' if kernels else ''}{seconds:.1f} s")
    if bundle.manifest.embedding is None:
        console.print(f"try it:  nearfar run {name} 'hello'", highlight=False)
    elif bundle.manifest.target == "webgpu":
        console.print(f"it makes embeddings: engine.embeddings.create in a page, or nearfar serve {name}", highlight=False)
    else:
        console.print(f"it makes embeddings; try it:  nearfar serve {name}", highlight=False)


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Progress]:
    """Bars on the terminal's error stream, so that what a command prints can be piped on. They show from ``start()`` on."""
    columns = (TextColumn("{task.description:17}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True), disable=quiet)
    try:
        yield bars
    finally:
        # Stopping what never started would print an empty line above an error.
        if bars.tasks:
            bars.stop()


def phases(bars: Progress) -> Callable[[str, int, int], None]:
    """What `compile_model` tells its progress to: one bar a phase, from the phase's start."""
    tasks: dict[str, TaskID] = {}

    def progress(phase: str, done: int, total: int) -> None:
        if phase not in tasks:
            bars.start()
            tasks[phase] = bars.add_task(PHASES[phase], total=total)
        bars.update(tasks[phase], completed=done)

    return progress
