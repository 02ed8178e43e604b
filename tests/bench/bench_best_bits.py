"""The divergence of `--quality best` at several sizes, and that of other tools' quantizations of the same models.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_best_bits.py [--models near far] [--only TEXT]

For each demo model, every tool reads the same calibration text, from the tasks' training examples, if it reads any.
Then all results are compared with the float32 checkpoint on held-out answers, by the code of `nearfar quality`. The
results of other tools are imported with the codes that they stored, so no rounding is added. Bits are those of all
matrices, scales included. Tools that are not installed (llama-cpp-python, mlx-lm) are left out by name.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from demo_model.corpus import FAR, NEAR, WITHOUT_SLOTS, Corpus, held_out_examples, training_examples
from demo_model.example import Example, Split

from nearfar.compiler import quant
from nearfar.compiler.calibration.best import quantize_best
from nearfar.compiler.calibration.samples import generated_sample, read_sample
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats import Checkpoint, load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.measure.quality import CheckpointCandidate, counted_between, make_windows, measure
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.quant import Codes
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

SEED = 2024
EXAMPLES, CALIBRATION_EXAMPLES = 12, 1500
WINDOW = 256
SPLITS = (Split.HELD_OUT_SLOTS, Split.HELD_OUT_PARAPHRASES)
MODELS: Mapping[str, tuple[str, Corpus]] = {"near": ("demo", NEAR), "far": ("demo-far", FAR)}
BUDGETS = (4.5, 3.5)
LLAMA_TYPES = ("Q8_0", "Q4_0", "Q4_K_M", "Q3_K_M", "Q2_K")


@dataclass(frozen=True, slots=True)
class Model:
    """``original``: the folder of the checkpoint. ``calibration``: the file of the calibration text."""

    name: str
    original: Path
    checkpoint: Checkpoint
    calibration: Path
    folder: Path


# A checkpoint with its bits a weight.
Made = tuple[Checkpoint, float]
Maker = Callable[[Model], Made]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--only", metavar="TEXT", help="only rows whose name contains this text")
    parser.add_argument("--bits", nargs="+", type=float, default=BUDGETS, help="budgets of --quality best")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the files, and continue with those found there"
    )
    options = parser.parse_args()
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="nearfar-") as temporary:
            folder = (options.keep or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            compare(prepared(name, folder), options.only, options.bits)


def prepared(name: str, folder: Path) -> Model:
    demo, corpus = MODELS[name]
    stream = training_examples(random.Random(SEED + 1), corpus)
    calibration = folder / "calibration.txt"
    calibration.write_text(chat([next(stream) for _ in range(CALIBRATION_EXAMPLES)]), encoding="utf-8")
    path = Path(DEMOS[demo])
    return Model(name, path, load(str(path)), calibration, folder)


def compare(model: Model, only: str | None, budgets: list[float]) -> None:
    corpus = MODELS[model.name][1]
    examples = [
        example
        for task in corpus
        for split in SPLITS
        if not (split is Split.HELD_OUT_SLOTS and task in WITHOUT_SLOTS)
        for example in held_out_examples(task, split, EXAMPLES, SEED, corpus)
    ]
    random.Random(SEED).shuffle(examples)
    tokenizer = Tokenizer(model.checkpoint.tokenizer)
    windows = make_windows(tokenizer, chat(examples), WINDOW)
    counted = counted_between(tokenizer, windows, "<assistant>", "<end>")
    reference = CheckpointReference(model.checkpoint, WINDOW)
    hidden = list(reference.hidden(windows))
    print(f"\n{model.name}: {sum(map(int, (each.sum() for each in counted))):,} tokens of held-out answers\n")
    print("| quantization | bits a weight | KL of answers, nats | KL of all tokens | same top token | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, make in rows(budgets):
        if only is not None and only not in name:
            continue
        start = time.perf_counter()
        try:
            checkpoint, bits = make(model)
        except (Missing, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        seconds = time.perf_counter() - start
        own = CheckpointReference(checkpoint, WINDOW)
        candidate = CheckpointCandidate(own, list(own.hidden(windows)))
        answers = measure(candidate, reference, windows, hidden, counted)
        every = measure(candidate, reference, windows, hidden)
        spread = "" if answers.kl_interval is None else f" ± {answers.kl_interval[1] - answers.kl_mean:.1g}"
        cells = (name, f"{bits:.2f}", f"{answers.kl_mean:.3g}{spread}", f"{every.kl_mean:.3g}")
        print(f"| {' | '.join(cells)} | {answers.top1_agreement:.2%} | {seconds:.0f} |", flush=True)


class Missing(Exception):
    """A tool is not installed."""


def rows(budgets: list[float]) -> Iterator[tuple[str, Maker]]:
    yield "round to nearest, q4f16", rounded
    for bits in budgets:
        yield f"best, {bits:g} bits", partial(best, bits=bits)
    yield f"best, {budgets[0]:g} bits, text of the model", partial(best, bits=budgets[0], own_text=True)
    for file_type in LLAMA_TYPES:
        yield f"llama.cpp {file_type}", partial(llama, file_type=file_type)
        if file_type in ("Q4_K_M", "Q3_K_M"):
            yield f"best, as large as llama.cpp {file_type}", partial(best_as_large_as, file_type=file_type)
    for group in (32, 64):
        yield f"mlx-lm, 4 bits in groups of {group}", partial(mlx, group=group)
    for method in ("gptq", "awq", "dwq"):
        yield f"mlx-lm {method}, 4 bits", partial(mlx_learned, method=method)


def chat(examples: list[Example]) -> str:
    return "<bos>" + "".join(f"<user>{each.prompt}<end><assistant>{each.answer}<end>" for each in examples)


def rounded(model: Model) -> Made:
    return stored_as(model.checkpoint, "q4f16"), 4.5


def stored_as(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """The checkpoint with every matrix rounded to nearest."""
    form = quant.by_name(name)
    tensors = dict(checkpoint.tensors)
    for key, tensor in checkpoint.tensors.items():
        if len(tensor.shape) == 2:
            planes = form.pack(tensor.rows(0, tensor.shape[0]))

            def read(start: int, stop: int, planes: Mapping[str, np.ndarray] = planes) -> dict[str, np.ndarray]:
                return {plane: values[start:stop] for plane, values in planes.items()}

            tensors[key] = StoredMatrix(key, (tensor.shape[0], tensor.shape[1]), form, read)
    return replace(checkpoint, tensors=tensors)


def best(model: Model, bits: float, *, own_text: bool = False) -> Made:
    sample = generated_sample(model.checkpoint) if own_text else read_sample(model.checkpoint, model.calibration)
    quantized, _ = quantize_best(model.checkpoint, sample, bits, None)
    # The demo models' parameters have the names of their tensors.
    return quantized.checkpoint(model.checkpoint), quantized.record.bits


def best_as_large_as(model: Model, file_type: str) -> Made:
    return best(model, llama(model, file_type)[1])


def llama(model: Model, file_type: str) -> Made:
    if not (find_spec("llama_cpp") and find_spec("gguf")):
        raise Missing("llama-cpp-python and gguf are not installed")
    import gguf
    from llama_engine import quantize

    source = model.folder / "f32.gguf"
    if not source.is_file():
        options = CompileOptions(target="cpu", quantization="f32", self_test=False, force=True)
        bundle = compile_model(str(model.original), model.folder / "f32-bundle", options)
        # llama.cpp has no name for the model's split of words. It does not change the weights.
        export_gguf(bundle, source, GgufOptions(pre="starcoder"))
    target = model.folder / f"{file_type}.gguf"
    if not target.is_file():
        quantize(source, target, file_type)
    matrices = [each for each in gguf.GGUFReader(target).tensors if len(each.shape) == 2]
    bits = 8 * sum(int(each.n_bytes) for each in matrices) / sum(int(each.n_elements) for each in matrices)
    return load(str(target)), bits


def mlx(model: Model, group: int) -> Made:
    """mlx-lm's rounding to nearest."""
    target = model.folder / f"mlx-{group}"
    command = ["-m", "mlx_lm", "convert", "--hf-path", str(plain(model)), "--mlx-path", str(target), "-q"]
    return run_mlx(target, [*command, "--q-bits", "4", "--q-group-size", str(group)])


def mlx_learned(model: Model, method: str) -> Made:
    """mlx-lm's own calibration, on our text instead of its own, which it would download. In groups of 64, its default,
    if these divide the model's rows.
    """
    target = model.folder / f"mlx-{method}"
    widths = {each.shape[1] for each in model.checkpoint.tensors.values() if len(each.shape) == 2}
    group = 32 if any(width % 64 for width in widths) else 64
    script = str(Path(__file__).with_name("mlx_calibration.py"))
    return run_mlx(target, [script, method, str(plain(model)), str(target), str(model.calibration), str(group)])


def plain(model: Model) -> Path:
    """A copy of the checkpoint, of which mlx-lm copies all files."""
    folder = model.folder / "original"
    if not folder.is_dir():
        shutil.copytree(model.original, folder)
    return folder


def run_mlx(target: Path, arguments: list[str]) -> Made:
    if not find_spec("mlx_lm"):
        raise Missing("mlx-lm is not installed")
    if not (target / "config.json").is_file():
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    checkpoint = load(str(target))
    bits, weights = 0, 0
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) != 2:
            continue
        elements = tensor.shape[0] * tensor.shape[1]
        weights += elements
        if not isinstance(tensor, StoredMatrix):
            # mlx-lm leaves a matrix whose rows are not whole groups as it is, in 16 bits.
            bits += 16 * elements
            continue
        assert isinstance(tensor.form, Codes), tensor.form
        # A scale and a bias of 16 bits for each group, whatever their dtype here.
        bits += elements * tensor.form.bits + 32 * elements // tensor.form.group
    return checkpoint, bits / weights


if __name__ == "__main__":
    main()
