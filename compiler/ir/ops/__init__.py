"""Every op: what it declares, its shape rule, and its meaning in numpy.

These functions are the definition. A kernel is correct if it computes the same values, and `runtime/reference.py` runs
any plan with these functions. All arithmetic is float32; a value that is stored as float16 is rounded by the executor
after the op.

A batch is ragged: S new tokens of B sequences, at least one of each. Rows ``seq_starts[b]`` to ``seq_starts[b + 1]``
belong to sequence b, by ascending position. New keys and values are written to pages first, then attention reads pages;
`encoders.py` and `convolutions.py` have the ops of models without pages, `clips.py` those that normalize sound,
`states.py` those with a state for each sequence, `images.py` those of models that see pictures.
"""

from __future__ import annotations

from . import (
    attention,
    clips,
    convolutions,
    drafts,
    elementwise,
    encoders,
    experts,
    images,
    kv_pages,
    norms,
    projections,
    rows,
    sampling,
    states,
)
from .op import Array, Attrs, Bound, DType, Kind, Op, Type, Use

__all__ = ["OPS", "Array", "Attrs", "Bound", "DType", "Kind", "Op", "Type", "Use"]

OPS: dict[str, Op] = {
    **rows.OPS,
    **projections.OPS,
    **experts.OPS,
    **norms.OPS,
    **elementwise.OPS,
    **kv_pages.OPS,
    **attention.OPS,
    **states.OPS,
    **encoders.OPS,
    **convolutions.OPS,
    **clips.OPS,
    **drafts.OPS,
    **images.OPS,
    **sampling.OPS,
}
