"""What the activation dtypes of cpu and webgpu cost in accuracy: the logits of the demo model against the numpy
reference. WebGPU bundles run on the device that wgpu finds.

`make bench-activations`. Each of eight prompts is continued by the reference's 24 greedy tokens. The error of a step is
the largest difference of its logits, as a part of the reference's largest logit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from light_bundle import few_kernels, one_compilation
from tokenizers import Tokenizer

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner
from nearfar.server_fallback.executors.devices import default_arch
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.webgpu.runner import WebGPURunner

PROMPTS = (
    "dim the kitchen lights to 30 percent",
    "what is 27 + 58?",
    "sort pear apple fig",
    "tell me a story",
    "who is Ada Kovac?",
    "can the cloud see my confidential messages?",
    "set a timer for 5 minutes",
    "spell banana backwards",
)
STEPS = 24
ACTIVATIONS = ("float32", "float16", "int8")
LIMITS = Limits(tokens=64, pages=32)
RUNNERS = {"cpu": CpuRunner, "webgpu": WebGPURunner}


def main() -> None:
    backend = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    prompts = [backend.encode(prompt).ids for prompt in PROMPTS]
    print("| target | weights | activations | largest error | median error | other tokens |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ("q4f16", "q8f16"):
            cases = [(target, name) for target in RUNNERS for name in ACTIVATIONS]
            bundles = {case: compiled(*case, quantization, Path(folder)) for case in cases}
            reference = ReferenceRunner(bundles["cpu", "float32"], limits=LIMITS)
            texts, expected = zip(*(continued(reference, prompt) for prompt in prompts), strict=True)
            for (target, name), bundle in bundles.items():
                runner = RUNNERS[target](bundle, limits=LIMITS)
                found = np.concatenate([continued(runner, text[:-STEPS], text)[1] for text in texts])
                print(f"| {target} | {quantization} | {name} | {row(np.concatenate(expected), found)} |", flush=True)
                runner.close()


def compiled(target: str, activation: str, quantization: str, folder: Path) -> Bundle:
    arch = default_arch("cpu") if target == "cpu" else None
    options = CompileOptions(target=target, arch=arch, quantization=quantization, activations=(activation,))
    with one_compilation(), few_kernels(keep=("linear",)):
        return compile_model(str(CHECKPOINT), folder / f"{target}-{quantization}-{activation}", options)


def continued(
    runner: Runner, prompt: Sequence[int], text: Sequence[int] = ()
) -> tuple[list[int], npt.NDArray[np.float64]]:
    """The prompt with STEPS tokens, those of ``text`` or greedy ones, and the logits (STEPS, V) that precede them."""
    page_size = runner.manifest.page_size
    pages = list(range(-(-(len(prompt) + STEPS) // page_size)))
    token_ids, logits = list(prompt), []
    start = 0
    for _ in range(STEPS):
        chunk = Chunk(token_ids=token_ids[start:], start=start, pages=pages, sample=[len(token_ids) - start - 1])
        logits.append(runner.forward(make_batch([chunk], page_size)).logits[0].astype(np.float64))
        start = len(token_ids)
        token_ids.append(text[start] if text else int(logits[-1].argmax()))
    return token_ids, np.array(logits)


def row(expected: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> str:
    errors = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
    others = int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
    return f"{errors.max():.2%} | {np.median(errors):.3%} | {others} of {len(errors)}"


if __name__ == "__main__":
    main()
