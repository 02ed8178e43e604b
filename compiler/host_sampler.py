"""Sampling on the host, for runners of frameworks whose graphs end at the logits."""

from __future__ import annotations

import numpy as np

from .batch import Array, Batch, FloatArray, IntArray, Output
from .ops import top_logprobs
from .quick_choice import log_probability, quick_choice
from .sampling import ALTERNATIVES, COUNTS, Settings, adjust_logits


class HostSampler:
    """What a runner keeps by sequence slot, and the choice of tokens by it, as `ops.py` says."""

    def __init__(self, vocab_size: int, num_slots: int) -> None:
        self._sampled = np.zeros(num_slots, np.int32)
        self._states: dict[str, Array] = {
            "token_counts": np.zeros((num_slots, vocab_size), np.int32),
            "logit_bias": np.zeros((num_slots, vocab_size), np.float32),
            "token_mask": np.zeros((num_slots, -(-vocab_size // 32)), np.int32),
        }

    def write(self, name: str, slot: int, values: Array) -> None:
        """See `Runner.write_state`."""
        self._states[name][slot] = values

    def token_ids(self, batch: Batch) -> IntArray:
        """(S,), those that were left in a slot among them."""
        given = batch.token_ids
        return np.where(given < 0, self._sampled[np.maximum(-1 - given, 0)], given).astype(np.int32)

    def choose(self, batch: Batch, logits: FloatArray) -> Output:
        """The next tokens of the sampled rows from their logits (R, V)."""
        rows, width = len(logits), min(ALTERNATIVES, logits.shape[1])
        tokens, logprobs = np.full(rows, -1, np.int32), np.zeros(rows, np.float32)
        for row in range(rows):
            if np.isfinite(logits[row]).all():
                tokens[row] = token = self._choose_row(batch, row, logits[row])
                logprobs[row] = log_probability(logits[row], token)
        wanted = rows if batch.alternatives else 0
        top = {"ids": np.zeros((wanted, width), np.int32), "logprobs": np.zeros((wanted, width), np.float32)}
        top_logprobs({"logits": logits, **top}, {})
        return Output(tokens, logprobs, top["ids"], top["logprobs"], lambda: logits)

    def _choose_row(self, batch: Batch, row: int, logits: FloatArray) -> int:
        """As `ops.adjust_logits` and `ops.sample`."""
        settings = Settings(*batch.sample_settings[row].tolist())
        slot, flags = batch.sample_slots[row].tolist()
        counts = self._states["token_counts"]
        if flags:
            bias, mask = self._states["logit_bias"], self._states["token_mask"]
            logits = adjust_logits(logits, settings, flags, counts[slot], bias[slot], mask[slot])
        token = quick_choice(logits, settings)
        if slot >= 0:
            self._sampled[slot] = token
            counts[slot, token] += flags & COUNTS
        return token
