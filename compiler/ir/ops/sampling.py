"""Ops that choose tokens: adjust_logits, mark_logits, sample, top_logprobs. `ir/sampling.py` defines the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..sampling import ALTERNATIVES, COUNTS, MARK, Settings, choose_token
from ..sampling import adjust_logits as adjusted_row
from ..watermark import COLUMNS, WATERMARK
from ..watermark import mark_logits as marked_row
from .op import FLOAT32, INTEGERS, Array, Attrs, Inputs, Op, Shapes, Sizes, Type, Use, require_array
from .rows import check_sampled


def infer_adjust_logits(shapes: Shapes, attrs: Attrs) -> Type:
    return ("A", shapes["logits"][1]), "float32"


def adjust_logits(inputs: Inputs, attrs: Attrs) -> Array:
    """Logits after penalties, bias and mask, each applied if the row's flags request it; see `sampling.adjust_logits`.

    A is R if any row has a flag. Otherwise A is 0, the step is skipped, and `sample` uses the logits unchanged. logits
    (R, V), slots (R, 2): [slot, flags], settings (R, 8), and, by slot, counts (N, V), bias (N, V), mask (N, ceil(V/32))
    -> (A, V).
    """
    logits, slots = inputs["logits"], inputs["slots"]
    if not slots[:, 1].any():
        return np.zeros((0, logits.shape[1]), np.float32)
    counts, bias, mask = inputs["counts"], inputs["bias"], inputs["mask"]
    rows = zip(logits, inputs["settings"], slots, strict=True)
    return np.stack(
        [
            adjusted_row(x, Settings(*each), flags, counts[slot], bias[slot], mask[slot])
            for x, each, (slot, flags) in rows
        ]
    )


def infer_mark_logits(shapes: Shapes, attrs: Attrs) -> Type:
    return shapes["adjusted"], "float32"


def mark_logits(inputs: Inputs, attrs: Attrs) -> Array:
    """Logits of rows with the flag MARK, with those of a green list raised; see `watermark.mark_logits`.

    The list is that of the row's token: token_ids[rows[r]], or if that is negative, sampled[-1 - it]. adjusted (A, V),
    token_ids (S,), rows (R,), slots (R, 2), sampled (N,), watermark (1, 6) -> (A, V).
    """
    token_ids = inputs["token_ids"][inputs["rows"]]
    before = np.where(token_ids < 0, inputs["sampled"][np.maximum(-1 - token_ids, 0)], token_ids)
    y = inputs["adjusted"].copy()
    for row in np.flatnonzero(inputs["slots"][: len(y), 1] & MARK):
        y[row] = marked_row(y[row], inputs["watermark"][0], int(before[row]))
    return y


def infer_sample(shapes: Shapes, attrs: Attrs) -> Type:
    return (shapes["logits"][0],), "int32"


def sample_results(shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
    return {"logprobs": ((shapes["logits"][0],), "float32")}


def sample(inputs: Inputs, attrs: Attrs) -> Array:
    """Each row's next token, chosen by `sampling.choose_token` from the adjusted logits, and its log-probability.

    The log-probability is that under the softmax of the raw logits. A row with a slot >= 0 stores its token in
    sampled[slot], and with the flag COUNTS adds one to its count; no two rows of a batch have the same slot. If a logit
    is not finite, the token is -1, its log-probability 0, and no state changes. logits (R, V), adjusted (A, V),
    settings (R, 8), slots (R, 2), sampled (N,), counts (N, V) -> (R,), logprobs (R,).
    """
    logits, adjusted = inputs["logits"], inputs["adjusted"]
    y = np.full(len(logits), -1, np.int32)
    inputs["logprobs"][...] = 0
    for row, (slot, flags) in enumerate(inputs["slots"]):
        if not np.isfinite(logits[row]).all():
            continue
        token = choose_token((adjusted if len(adjusted) else logits)[row], Settings(*inputs["settings"][row]))
        y[row] = token
        inputs["logprobs"][row] = log_softmax(logits[row])[token]
        if slot >= 0:
            inputs["sampled"][slot] = token
            inputs["counts"][slot, token] += flags & COUNTS
    return y


def log_softmax(logits: Array) -> Array:
    """Of each row (..., V), in float64."""
    # The largest logit goes first: beside a large one, the logarithm of the sum would be lost.
    y: Array = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=-1, keepdims=True))
    return y


def log_sum_exp(logits: Array) -> np.float64:
    """log(sum(exp(logits))), in float64."""
    exact = logits.astype(np.float64)
    largest = exact.max()
    total: np.float64 = largest + np.log(np.exp(exact - largest).sum())
    return total


def infer_top_logprobs(shapes: Shapes, attrs: Attrs) -> Type:
    return (), "float32"


def top_logprobs_results(shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
    width = min(ALTERNATIVES, shapes["logits"][1])
    return {"ids": (("W", width), "int32"), "logprobs": (("W", width), "float32")}


def top_logprobs(inputs: Inputs, attrs: Attrs) -> None:
    """The most likely tokens of each row and their log-probabilities, best first; equal ones are in the order of their
    ids.

    W is R if the batch requests them, else 0. logits (R, V) -> ids, logprobs (W, min(20, V)).
    """
    ids, logprobs = inputs["ids"], inputs["logprobs"]
    for row in range(len(ids)):
        ids[row] = np.argsort(-inputs["logits"][row], kind="stable")[: ids.shape[1]]
        logprobs[row] = log_softmax(inputs["logits"][row])[ids[row]]


def check_vocabulary(use: Use, sizes: Sizes) -> None:
    """Every array has a column for each token of the vocabulary."""
    size = sizes.spec.vocab_size
    expected: dict[str, Type] = {
        "logits": (("R", size), "float32"),
        "adjusted": (("A", size), "float32"),
        "counts": (("N", size), "int32"),
        "bias": (("N", size), "float32"),
        "mask": (("N", -(-size // 32)), "int32"),
    }
    if "watermark" in use.shapes:
        require_array(use, "watermark", (1, COLUMNS), "int32")
        require_array(use, "rows", ("R",), "int32")
    for role in use.shapes.keys() & expected.keys():
        require_array(use, role, *expected[role])


ROWS = {"logits": FLOAT32, "settings": FLOAT32, "slots": INTEGERS, "counts": INTEGERS}
CHECKED: dict[str, Any] = {
    "checks": (check_vocabulary, check_sampled),
    "states": ("sampled", "counts", "bias", "mask", "watermark"),
    "names": {"slots": "sample_slots", "bias": "logit_bias", "mask": "token_mask", "watermark": WATERMARK},
}
OPS = {
    "adjust_logits": Op(
        infer_adjust_logits, adjust_logits, inputs={**ROWS, "bias": FLOAT32, "mask": INTEGERS}, **CHECKED
    ),
    "mark_logits": Op(
        infer_mark_logits,
        mark_logits,
        inputs={
            "adjusted": FLOAT32,
            **dict.fromkeys(("token_ids", "rows", "slots", "sampled", "watermark"), INTEGERS),
        },
        **CHECKED,
    ),
    "sample": Op(
        infer_sample,
        sample,
        inputs={**ROWS, "adjusted": FLOAT32, "sampled": INTEGERS},
        more=sample_results,
        **CHECKED,
    ),
    "top_logprobs": Op(
        infer_top_logprobs,
        top_logprobs,
        inputs={"logits": FLOAT32},
        result=None,
        more=top_logprobs_results,
        **CHECKED,
    ),
}
