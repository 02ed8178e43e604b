"""Cases of `conformance/sampling.json` as inputs of the sampling ops: one row per token, each with its own slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.sampling import BIAS, COUNTS, IN_PROMPT, MASK, Sampler, Settings

SETTINGS = ("top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")


def rows_of(case: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays that `adjust_logits` and `sample` read and write, except ``adjusted``."""
    logits = np.array(case["logits"], np.float32)
    sampler = Sampler(case["temperature"], case["seed"])
    given = {name: case[name] for name in SETTINGS if name in case}
    settings = [Settings(temperature=case["temperature"], draw=sampler.draw(), **given) for _ in case["tokens"]]
    rows, columns = len(settings), len(logits)
    counts = np.bincount(case.get("answer", []), minlength=columns).astype(np.int32)
    counts[case.get("prompt", [])] |= IN_PROMPT
    bias = np.zeros(columns, np.float32)
    for token, value in case.get("bias", {}).items():
        bias[int(token)] = value
    words = np.zeros(-(-columns // 32), np.uint32)
    for token in case.get("allowed", []):
        words[token // 32] |= np.uint32(1 << token % 32)
    flags = COUNTS * bool(counts.any()) | BIAS * ("bias" in case) | MASK * ("allowed" in case)
    return {
        "logits": np.tile(logits, (rows, 1)),
        "settings": np.array(settings, np.float32),
        "slots": np.array([(row, flags) for row in range(rows)], np.int32),
        "sampled": np.full(rows, -1, np.int32),
        "counts": np.tile(counts, (rows, 1)),
        "bias": np.tile(bias, (rows, 1)),
        "mask": np.tile(words.view(np.int32), (rows, 1)),
        "logprobs": np.zeros(rows, np.float32),
    }
