"""The best quantization of a checkpoint under a budget of bits (``--quality best``).

calibration tokens -> importance of tokens and rows (gradients)
                   -> each matrix: expected divergence of every candidate format -> formats under the budget
                   -> each matrix in order: codes and scales by GPTQ and coordinate descent, on inputs that contain the
                      errors of earlier matrices
                   -> all matrices together: descent on the divergence itself
                   -> a checkpoint whose matrices are stored quantized

Needs only numpy. One matrix and its H are in memory at a time, beside the activations of the calibration tokens. The
last step holds all matrices, so it is left out for models with more than TUNED_WEIGHTS weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..arch import by_model_type
from ..formats.checkpoint import Checkpoint, StoredMatrix, Tensor
from ..formats.towers import decoder_alone
from ..ir.graph import Graph, Parameter, Source
from ..ir.ops import Array
from ..pipeline.weights import check_tensors, read_rows
from ..quant.base import FloatArray
from ..quant.codes import Codes, codes_by_name
from ..runtime.windows import HeadlessGraph, without_head
from .choice import CANDIDATES, Unit, bits_of, choose, units_of
from .finished import Finished
from .fit import Fitted, fit, fits, row_errors
from .importance import Importance, measure_importance
from .record import Record
from .samples import Sample, generated_sample, read_sample
from .sequence import Inputs, walk_matrices
from .tune import TunedMatrix, Tuner, tune

DEFAULT_BITS = 4.5
# Part of the fingerprint, because results of other versions must not be continued.
VERSION = 2
SEED = 20
# The number of rows of a matrix on which each candidate format is tried.
SAMPLED_ROWS = 48
TRIAL_SWEEPS = 0
TUNED_WEIGHTS = 100_000_000
EPOCHS = 6

# Called with a phase, the finished units and all units of the phase.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector that was tuned."""

    name: str
    values: FloatArray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> str:
        return "F32"

    def rows(self, start: int, stop: int) -> FloatArray:
        return self.values[start:stop]


@dataclass(frozen=True, slots=True)
class Quantized:
    """``tensors`` replace those of the checkpoint: each has the name of a parameter and holds all of it."""

    tensors: Mapping[str, Tensor]
    record: Record

    def on(self, graph: Graph) -> Graph:
        """The graph with parameters that read these tensors unchanged."""
        parameters = dict(graph.parameters)
        # The heads that draft tokens read few of them.
        for name in self.tensors.keys() & parameters.keys():
            parameter = parameters[name]
            parameters[name] = replace(parameter, sources=(Source(name, 0, parameter.rows),))
        return replace(graph, parameters=parameters)

    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, tensors={**checkpoint.tensors, **self.tensors})


def fingerprint(checkpoint: Checkpoint, graph: Graph, sample: Sample, bits: float) -> str:
    """A hash of everything that the result depends on."""
    found = hashlib.sha256(repr((VERSION, bits, sample.window, sample.windows)).encode())
    for name, parameter in sorted(graph.parameters.items()):
        found.update(name.encode())
        step = max(1, (4 << 20) // (parameter.columns or 1))
        for start in range(0, parameter.rows, step):
            found.update(read_rows(checkpoint, parameter, start, min(start + step, parameter.rows)).tobytes())
    return found.hexdigest()


def calibrate(
    checkpoint: Checkpoint,
    file: Path | None,
    bits: float | None,
    output: Path,
    progress: Progress = lambda *_: None,
) -> tuple[Quantized, Finished]:
    """`quantize_best` with the calibration text of a file, or with one that the model writes itself; see `samples.py`.
    ``bits`` None: DEFAULT_BITS. An embedding model is fitted by its vectors; see `vectors.py`.
    """
    if checkpoint.embedding is not None:
        from .vectors import fit_vectors, sample_texts

        # It takes too little time to store finished parts.
        texts = sample_texts(checkpoint, file)
        return fit_vectors(checkpoint, texts, DEFAULT_BITS if bits is None else bits, progress), Finished(None)
    if file is not None:
        sample = read_sample(checkpoint, file)
    else:
        sample = generated_sample(checkpoint, lambda done, total: progress("sample", done, total))
    return quantize_best(checkpoint, sample, DEFAULT_BITS if bits is None else bits, output, progress)


def quantize_best(
    checkpoint: Checkpoint,
    sample: Sample,
    bits: float,
    output: Path | None,
    progress: Progress = lambda *_: None,
) -> tuple[Quantized, Finished]:
    """Quantize every matrix, with at most ``bits`` bits a weight on average. Finished results are stored beside
    ``output`` until the caller removes them; None stores nothing.

    Raises RequestError for a budget that cannot be met, UnsupportedModel for a model without gradients.
    """
    checkpoint, window = decoder_alone(checkpoint), sample.window
    graph = by_model_type(checkpoint.spec.model_type).forward(checkpoint.spec, window, window)
    check_tensors(checkpoint, graph.parameters)
    job = Calibration(checkpoint, without_head(graph), sample, bits, progress)
    done = Finished(None) if output is None else Finished.beside(output, fingerprint(checkpoint, graph, sample, bits))
    return job.run(done), done


@dataclass(slots=True)
class Calibration:
    checkpoint: Checkpoint
    model: HeadlessGraph
    sample: Sample
    bits: float
    progress: Progress
    table_hessian: FloatArray | None = None

    def run(self, done: Finished) -> Quantized:
        importance = self._importance(done)
        forms, expected = self._forms(importance, done)
        fitted = self._fit(forms, importance, done)
        vectors, found = self._tune(fitted, done)
        tensors: dict[str, Tensor] = {name: stored_matrix(name, each) for name, each in fitted.items()}
        tensors |= {name: StoredVector(name, values) for name, values in vectors.items()}
        parameters = self.model.graph.parameters
        weights = sum(parameters[name].rows * (parameters[name].columns or 0) for name in fitted)
        size = sum(bits_of(each.form, *parameters[name].shape) for name, each in fitted.items())
        record = Record(
            method="gptq, coordinate descent" + (", tuned" if vectors else ""),
            budget=self.bits,
            bits=round(size / weights, 4),
            calibration=self.sample.source,
            calibration_sha256=self.sample.sha256,
            calibration_tokens=self.sample.tokens,
            formats={name: each.form.name for name, each in fitted.items()},
            expected_divergence=expected,
            fitted_divergence=None if found is None else round(found[0], 6),
            tuned_divergence=None if found is None else round(found[1], 6),
        )
        return Quantized(tensors, record)

    def _read(self, parameter: Parameter) -> FloatArray:
        return read_rows(self.checkpoint, parameter, 0, parameter.rows)

    def _importance(self, done: Finished) -> Mapping[str, Importance]:
        stored = done.get("importance")
        if stored is None:
            found = measure_importance(
                self.model,
                self.sample.windows,
                self.sample.window,
                self._read,
                np.random.default_rng(SEED),
                lambda part, total: self.progress("importance", part, total),
            )
            stored = {f"{key}/{name}": array for name, each in found.items() for key, array in each.arrays().items()}
            done.put("importance", stored)
        names = {name.partition("/")[2] for name in stored}
        return {
            name: Importance(
                **{key.partition("/")[0]: value for key, value in stored.items() if key.endswith(f"/{name}")}
            )
            for name in names
        }

    def _hessian(self, inputs: Inputs, own: Importance) -> FloatArray:
        """H of a matrix, which is a sum over tokens. A matrix that is a table and the head has both."""
        total = np.zeros((1, 1), np.float32)
        if inputs.parts:
            total = inputs.hessian(own.tokens)
        if own.gradients is not None:
            assert own.counts is not None
            # Each row of a table counts as if it were looked up equally often.
            total = total + (own.gradients / len(own.counts)).astype(np.float32)
        return total

    def _forms(self, importance: Mapping[str, Importance], done: Finished) -> tuple[Mapping[str, Codes], float]:
        """The format of each matrix, and the expected divergence of the choice."""
        model, graph = self.model, self.model.graph
        names = [name for name, parameter in graph.parameters.items() if parameter.columns is not None]
        costs: dict[str, Array] = {}
        head = model.head_weight.name

        def weigh(parameter: Parameter, matrix: FloatArray, inputs: Inputs) -> None:
            stored = done.get(f"costs-{parameter.name}")
            if stored is None:
                stored = {"costs": self._costs(matrix, inputs, importance[parameter.name])}
                done.put(f"costs-{parameter.name}", stored)
            costs[parameter.name] = stored["costs"]

        def visit(parameter: Parameter, inputs: Inputs) -> FloatArray:
            matrix = self._read(parameter)
            # The inputs of a head that is also the table are known at the end.
            if parameter.name != head or inputs.parts:
                weigh(parameter, matrix, inputs)
            return matrix

        rows = walk_matrices(
            model, self.sample.windows, self.sample.window, self._read, visit, lambda *at: self.progress("choice", *at)
        )
        if head not in costs:
            inputs = Inputs(rows)
            weigh(model.head_weight, self._read(model.head_weight), inputs)
            self.table_hessian = self._hessian(inputs, importance[head])
        units = []
        for unit in units_of(graph, names):
            shapes = [graph.parameters[name].shape for name in unit]
            units.append(
                Unit(
                    unit,
                    sum(shape[0] * shape[1] for shape in shapes),
                    {form: sum(bits_of(form, *shape) for shape in shapes) for form in CANDIDATES},
                    {form: float(sum(costs[name][index] for name in unit)) for index, form in enumerate(CANDIDATES)},
                )
            )
        chosen = choose(units, self.bits)
        expected = sum(unit.costs[chosen[unit.names[0]]] for unit in units)
        return chosen, round(expected, 6)

    def _costs(self, matrix: FloatArray, inputs: Inputs, own: Importance) -> npt.NDArray[np.float64]:
        """The expected divergence per token that each candidate causes, from a sample of the matrix's rows."""
        chosen = np.unique(np.linspace(0, len(matrix) - 1, SAMPLED_ROWS).astype(int))
        rows, hessian = matrix[chosen], self._hessian(inputs, own)
        # Each sum over tokens, with the weights of its rows.
        sums = []
        if own.rows is not None:
            sums.append((inputs.hessian(own.tokens), own.rows[chosen]))
        if own.gradients is not None and own.counts is not None:
            sums.append(((own.gradients / own.counts.sum()).astype(np.float32), own.counts[chosen]))
        found = []
        for fitted in fits(rows, hessian, CANDIDATES, TRIAL_SWEEPS):
            found.append(sum(float(row_errors(fitted, rows, each) @ weights) for each, weights in sums))
        return np.array(found) * (len(matrix) / len(chosen) / self.sample.tokens / 2)

    def _fit(
        self, forms: Mapping[str, Codes], importance: Mapping[str, Importance], done: Finished
    ) -> dict[str, Fitted]:
        fitted: dict[str, Fitted] = {}

        def visit(parameter: Parameter, inputs: Inputs) -> FloatArray:
            name = parameter.name
            stored = done.get(f"fitted-{name}")
            if stored is None:
                own = importance[name]
                tied = name == self.model.head_weight.name and not inputs.parts
                hessian = self.table_hessian if tied else self._hessian(inputs, own)
                assert hessian is not None
                stored = arrays_of(fit(self._read(parameter), hessian, forms[name]))
                done.put(f"fitted-{name}", stored)
            fitted[name] = fitted_of(stored)
            return fitted[name].matrix()

        walk_matrices(
            self.model,
            self.sample.windows,
            self.sample.window,
            self._read,
            visit,
            lambda *at: self.progress("fit", *at),
        )
        return fitted

    def _tune(
        self, fitted: dict[str, Fitted], done: Finished
    ) -> tuple[dict[str, FloatArray], tuple[float, float] | None]:
        """Replace the fitted matrices by tuned ones if these are better. Returns the tuned vectors, and the divergence
        before and after; None for a model that is too large.
        """
        parameters = self.model.graph.parameters
        if sum(each.codes.size for each in fitted.values()) > TUNED_WEIGHTS:
            return {}, None
        matrices = {name: TunedMatrix.of(each, self._read(parameters[name])) for name, each in fitted.items()}
        tuner = Tuner(matrices, {name: self._read(each) for name, each in parameters.items() if each.columns is None})
        before, after = tune(
            self.model,
            self.sample.windows,
            self.sample.window,
            self._read,
            tuner,
            EPOCHS,
            done,
            lambda *at: self.progress("tune", *at),
        )
        if after >= before:
            return {}, (before, before)
        fitted |= {name: each.fitted for name, each in tuner.matrices.items()}
        return tuner.vectors, (before, after)


def arrays_of(fitted: Fitted) -> dict[str, Array]:
    biases = {} if fitted.biases is None else {"biases": fitted.biases}
    return {"form": np.array(fitted.form.name), "codes": fitted.codes, "scales": fitted.scales, **biases}


def fitted_of(arrays: Mapping[str, Array]) -> Fitted:
    form = codes_by_name(str(arrays["form"]))
    assert form is not None
    return Fitted(form, arrays["codes"], arrays["scales"], arrays.get("biases"))


def stored_matrix(name: str, fitted: Fitted) -> StoredMatrix:
    planes = fitted.planes()
    rows, columns = fitted.codes.shape

    def read(start: int, stop: int) -> dict[str, Array]:
        return {plane: values[start:stop] for plane, values in planes.items()}

    return StoredMatrix(name, (rows, columns), fitted.form, read)
