"""The inputs that a plan declares, against those of a batch: the one place that refuses what does not match."""

from __future__ import annotations

from collections.abc import Mapping

from ..arch.decoder import BATCH_INPUTS
from ..bundle.manifest import Description, InputEntry, Manifest
from ..errors import BundleError, RequestError
from ..ir.expr import evaluate
from .batch import KNOWN_INPUTS, Batch

# What the frameworks' bundles take, which have no plan of ours to declare it.
EXPORT_INPUTS = {
    name: InputEntry.model_validate({"shape": shape, "dtype": dtype}) for name, (shape, dtype) in BATCH_INPUTS.items()
}


def require_inputs(batch: Batch, declared: Mapping[str, InputEntry], dims: Mapping[str, int]) -> None:
    """Raise RequestError unless a batch has the inputs that a plan declares, in their shapes and dtypes, and no extra ones."""
    for name in batch.extra:
        if name in KNOWN_INPUTS or name not in declared:
            raise RequestError(
                f"the batch has input '{name}', which the plan does not declare; leave it out", input=name
            )
    given = batch.arrays()
    for name, entry in declared.items():
        shape = tuple(evaluate(size, dims) for size in entry.shape)
        found = given.get(name)
        if found is None:
            raise RequestError(
                f"the batch lacks input '{name}', {list(shape)} of {entry.dtype}; pass it in Batch.extra", input=name
            )
        if found.shape != shape or found.dtype != entry.dtype:
            is_, must_be = f"{list(found.shape)} of {found.dtype}", f"{list(shape)} of {entry.dtype}"
            raise RequestError(f"input '{name}' of the batch is {is_}; the plan takes {must_be}", input=name)


def require_known_inputs(manifest: Description) -> None:
    """Raise BundleError for a plan with an input that only a caller with arrays of its own can give: what an engine makes has none."""
    for name in manifest.inputs if isinstance(manifest, Manifest) else ():
        if name not in KNOWN_INPUTS:
            raise BundleError(
                f"{manifest.model}: has input '{name}', which this engine does not provide; use a newer nearfar",
                input=name,
                known=KNOWN_INPUTS,
            )
