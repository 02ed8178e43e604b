"""The arrays that plans know by name: the inputs of a batch, and the array that is valid for a step's role."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.expr import Expr
from ..ir.pages import KEPT_ROWS, SOURCE, STATE_SLOTS, WINDOW
from ..ir.sampling import Settings
from ..ir.speech import ROW_FRAMES
from .entries import StepEntry

Shape = tuple[Expr, ...]
TOKENS: Shape = ("S",)
STARTS: Shape = (["add", "B", 1],)
# The first patch of each tile of a picture, and the number of patches.
PATCH_STARTS = "patch_starts"
# The row and the column of each patch in its tile.
PATCH_POSITIONS = "patch_positions"
# The patches of two frames.
CHANGE_ROWS = "change_rows"
# The inputs of a batch that an engine makes. Code that indexes arrays by their values relies on these shapes.
INPUTS: Mapping[str, tuple[Shape, str]] = {
    "token_ids": (TOKENS, "int32"),
    "positions": (TOKENS, "int32"),
    "slots": (TOKENS, "int32"),
    "adapters": (TOKENS, "int32"),
    "token_types": (TOKENS, "int32"),
    "seq_starts": (STARTS, "int32"),
    STATE_SLOTS: (("B", 2), "int32"),
    KEPT_ROWS: (TOKENS, "int32"),
    "page_indptr": (STARTS, "int32"),
    "page_ids": (("L",), "int32"),
    f"{WINDOW}slots": (TOKENS, "int32"),
    f"{WINDOW}page_indptr": (STARTS, "int32"),
    f"{WINDOW}page_ids": (("LW",), "int32"),
    f"{SOURCE}positions": (TOKENS, "int32"),
    f"{SOURCE}slots": (TOKENS, "int32"),
    f"{SOURCE}page_indptr": (STARTS, "int32"),
    f"{SOURCE}page_ids": (("LS",), "int32"),
    "sample_rows": (("R",), "int32"),
    "sample_positions": (("R",), "int32"),
    "sample_starts": ((["add", "R", 1],), "int32"),
    "sample_page_indptr": ((["add", "R", 1],), "int32"),
    f"{WINDOW}sample_page_indptr": ((["add", "R", 1],), "int32"),
    "sample_slots": (("R", 2), "int32"),
    "feature_rows": (("F",), "int32"),
    "reach": (TOKENS, "int32"),
    ROW_FRAMES: (TOKENS, "int32"),
    "rope_positions": (("S", 3), "int32"),
    CHANGE_ROWS: (("C",), "int32"),
    PATCH_STARTS: ((["add", "I", 1],), "int32"),
    "sample_settings": (("R", len(Settings._fields)), "float32"),
}
# The only array that is valid for a role, because kernels use its values as indices, or one row of it per slot.
NAMES = {
    name: name
    for name in (
        "token_ids",
        "positions",
        "token_types",
        "slots",
        "adapters",
        "seq_starts",
        "page_indptr",
        "page_ids",
        "sampled",
        STATE_SLOTS,
    )
}
NAMES |= {"rows": "sample_rows", "settings": "sample_settings", "counts": "token_counts"}
# The arrays of steps that compute only sampled rows.
SAMPLED_NAMES = {"positions": "sample_positions", "seq_starts": "sample_starts", "page_indptr": "sample_page_indptr"}


def is_on_sampled_rows(step: StepEntry) -> bool:
    """Whether the step computes only the sampled rows of a batch."""
    return step.inputs.get("positions") == SAMPLED_NAMES["positions"]
