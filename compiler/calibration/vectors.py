"""The best quantization of an embedding model under a budget of bits: like `best.py`, but what counts are the vectors.

texts -> effect of each matrix: how far the vectors move for a known error of its results
      -> each matrix: the error of every candidate format times this effect -> formats under the budget
      -> each matrix in order: codes and scales by GPTQ and coordinate descent, on inputs that contain the errors of
         earlier matrices
      -> a checkpoint whose matrices are stored quantized

Needs no gradients, so it works for every op. All weights are in memory as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..formats.checkpoint import Checkpoint, Tensor
from ..ir.graph import Graph, Parameter
from ..measure.vector_quality import unit_rows
from ..pipeline.graphs import graphs_of
from ..pipeline.weights import check_tensors, read_rows
from ..quant import by_name
from ..quant.base import FloatArray
from ..quant.codes import Codes
from ..runtime.encoder_batch import make_text_batch
from ..runtime.errors import RequestError, UnsupportedModel
from ..runtime.graph_walk import Execution
from ..runtime.text.tokenizer import Tokenizer
from .best import SAMPLED_ROWS, TRIAL_SWEEPS, Progress, Quantized, stored_matrix
from .choice import CANDIDATES, Unit, bits_of, choose, units_of
from .fit import SWEEPS, Fitted, fit, fits, row_errors
from .importance import groups_of_windows
from .record import Record
from .samples import LEAST_TOKENS, TOKENS, Sample, read_text
from .sequence import Inputs, walk_executions

# Tokens of a text, and the tokens on which each matrix's effect is measured.
LONGEST, EFFECT_TOKENS = 128, 1_024
# A float32 of each weight is in memory.
MOST_WEIGHTS = 1 << 30
BUILT_IN = "texts that come with nearfar"
# The format whose error shows a matrix's effect.
PROBE = by_name("q4f16")
# The ops whose matrices are fitted; others, such as tables of positions, stay float16.
FITTED = {"linear": "weight", "embed": "table"}
UNFITTED_BITS = 16


def sample_texts(checkpoint: Checkpoint, file: Path | None) -> Sample:
    """The paragraphs of a text, as token ids; None: of texts that come with nearfar. Raises RequestError."""
    if file is not None:
        text, source = read_text(file), file.name
    else:
        folder = resources.files(__package__) / "texts"
        passages, questions = (
            (folder / name).read_text(encoding="utf-8").strip() for name in ("passages.txt", "questions.txt")
        )
        text, source = "\n\n".join([passages, *questions.split("\n")]), BUILT_IN
    tokenizer, longest = Tokenizer(checkpoint.tokenizer), min(LONGEST, checkpoint.spec.max_position_embeddings)
    paragraphs = [each.strip() for each in text.split("\n\n") if each.strip()]
    texts = [tokenizer.encode_shortened(each, None, longest).ids for each in paragraphs]
    total = sum(map(len, texts))
    if file is not None and total < LEAST_TOKENS:
        raise RequestError(
            f"--calibration {file}: has {total} tokens; pass paragraphs of at least {LEAST_TOKENS} tokens, or leave "
            "the option out"
        )
    step = max(1, -(-total // TOKENS))
    return Sample(texts[::step], longest, source)


def fit_vectors(checkpoint: Checkpoint, sample: Sample, bits: float, progress: Progress = lambda *_: None) -> Quantized:
    """Quantize the matrices, with at most ``bits`` bits a weight on average, scales and unfitted matrices included.

    Raises RequestError for a budget that cannot be met, UnsupportedModel for a model that is too large.
    """
    (graph,) = graphs_of(checkpoint, sample.window).values()
    if "page_ids" in graph.inputs:
        raise UnsupportedModel(
            f"{checkpoint.path}: its layers need pages of keys and values or states, and --quality best fits complete "
            "texts; remove --quality"
        )
    check_tensors(checkpoint, graph.parameters)
    elements = sum(each.rows * (each.columns or 1) for each in graph.parameters.values())
    if elements > MOST_WEIGHTS:
        raise UnsupportedModel(
            f"{checkpoint.path}: has {elements:,} weights, and --quality best fits embedding models of at most "
            f"{MOST_WEIGHTS:,}; remove --quality"
        )
    weights = {name: read_rows(checkpoint, each, 0, each.rows) for name, each in graph.parameters.items()}
    return VectorCalibration(graph, weights, sample, bits, progress).run()


@dataclass(slots=True)
class VectorCalibration:
    """``weights``: every parameter as float32. ``names``: the matrices that are fitted."""

    graph: Graph
    weights: Mapping[str, FloatArray]
    sample: Sample
    bits: float
    progress: Progress
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        found = [node.inputs[FITTED[node.op]] for node in self.graph.nodes if node.op in FITTED]
        self.names = [name for name in dict.fromkeys(found) if name in self.graph.parameters]

    def run(self) -> Quantized:
        expected = self._vectors_with({}, self.sample.windows)
        forms, divergence = self._forms()
        fitted = self._fit(forms)
        found = self._vectors_with({name: each.matrix() for name, each in fitted.items()}, self.sample.windows)
        cosines = (unit_rows(expected) * unit_rows(found)).sum(axis=1)
        tensors: dict[str, Tensor] = {name: stored_matrix(name, each) for name, each in fitted.items()}
        size = sum(bits_of(each.form, *self.graph.parameters[name].shape) for name, each in fitted.items())
        used = size + UNFITTED_BITS * self._unfitted
        record = Record(
            method="gptq, coordinate descent, by vectors",
            budget=self.bits,
            bits=round(used / (self._unfitted + sum(self.weights[name].size for name in fitted)), 4),
            calibration=self.sample.source,
            calibration_sha256=self.sample.sha256,
            calibration_tokens=self.sample.tokens,
            formats={name: each.form.name for name, each in fitted.items()},
            expected_divergence=divergence,
            fitted_divergence=None,
            tuned_divergence=None,
            cosine_mean=round(float(cosines.mean()), 6),
            cosine_min=round(float(cosines.min()), 6),
        )
        return Quantized(tensors, record)

    @property
    def _unfitted(self) -> int:
        """The weights of matrices that are not fitted."""
        matrices = [name for name, each in self.graph.parameters.items() if each.columns is not None]
        return sum(self.weights[name].size for name in matrices if name not in self.names)

    def _vectors_with(self, changed: Mapping[str, FloatArray], texts: Sequence[Sequence[int]]) -> FloatArray:
        weights = {**self.weights, **changed}
        return self._vectors(texts, lambda parameter, _: weights[parameter.name])

    def _vectors(
        self,
        texts: Sequence[Sequence[int]],
        visit: Callable[[Parameter, Inputs], FloatArray],
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> FloatArray:
        (output,) = self.graph.outputs.values()
        executions = []
        for group in groups_of_windows(texts):
            batch = make_text_batch([list(text) for text in group])
            executions.append(Execution(self.graph, batch.arrays(self.graph.inputs), batch.dims(0)))
        read = lambda parameter: self.weights[parameter.name]  # noqa: E731
        return np.concatenate(walk_executions(self.graph, output, executions, read, visit, progress))

    def _forms(self) -> tuple[Mapping[str, Codes], float]:
        """The format of each matrix, and the expected divergence of the choice: 1 - cosine."""
        errors: dict[str, npt.NDArray[np.float64]] = {}
        probes: dict[str, float] = {}

        def visit(parameter: Parameter, inputs: Inputs) -> FloatArray:
            name, matrix = parameter.name, self.weights[parameter.name]
            if name in self.names and name not in errors:
                hessian = hessian_of(matrix, inputs)
                chosen = np.unique(np.linspace(0, len(matrix) - 1, SAMPLED_ROWS).astype(int))
                rows = matrix[chosen]
                share = len(matrix) / len(chosen)
                trials = fits(rows, hessian, CANDIDATES, TRIAL_SWEEPS)
                errors[name] = np.array([row_errors(each, rows, hessian).sum() for each in trials]) * share
                difference = probe(matrix) - matrix
                probes[name] = float(np.sum((difference @ hessian) * difference, dtype=np.float64))
            return matrix

        self._vectors(self.sample.windows, visit, lambda *at: self.progress("choice", *at))
        few = self.sample.windows[:: max(1, self.sample.tokens // EFFECT_TOKENS)]
        original = unit_rows(self._vectors_with({}, few))
        costs: dict[str, npt.NDArray[np.float64]] = {}
        for number, name in enumerate(self.names):
            self.progress("importance", number, len(self.names))
            moved = self._vectors_with({name: probe(self.weights[name])}, few)
            effect = float((1 - (original * unit_rows(moved)).sum(axis=1)).mean())
            costs[name] = errors[name] * (effect / probes[name] if probes[name] > 0 else 0.0)
        self.progress("importance", len(self.names), len(self.names))
        parameters = self.graph.parameters
        units = [
            Unit(
                unit,
                sum(self.weights[name].size for name in unit),
                {form: sum(bits_of(form, *parameters[name].shape) for name in unit) for form in CANDIDATES},
                {form: float(sum(costs[name][index] for name in unit)) for index, form in enumerate(CANDIDATES)},
            )
            for unit in units_of(self.graph, self.names)
        ]
        fitted = sum(unit.weights for unit in units)
        budget = self.bits - (UNFITTED_BITS - self.bits) * self._unfitted / fitted
        chosen_forms = choose(units, budget)
        return chosen_forms, round(sum(unit.costs[chosen_forms[unit.names[0]]] for unit in units), 6)

    def _fit(self, forms: Mapping[str, Codes]) -> dict[str, Fitted]:
        fitted: dict[str, Fitted] = {}

        def visit(parameter: Parameter, inputs: Inputs) -> FloatArray:
            name, matrix = parameter.name, self.weights[parameter.name]
            if name not in self.names:
                return matrix
            if name not in fitted:
                # The columns of a table do not compensate for each other.
                sweeps = SWEEPS if inputs.parts else 0
                fitted[name] = fit(matrix, hessian_of(matrix, inputs), forms[name], sweeps)
            return fitted[name].matrix()

        self._vectors(self.sample.windows, visit, lambda *at: self.progress("fit", *at))
        return fitted


def hessian_of(matrix: FloatArray, inputs: Inputs) -> FloatArray:
    """H of a matrix, which is a sum over tokens. All elements of a table's rows count alike."""
    return inputs.hessian() if inputs.parts else np.eye(matrix.shape[1], dtype=np.float32)


def probe(matrix: FloatArray) -> FloatArray:
    return PROBE.unpack(PROBE.pack(matrix), matrix.shape[1])
