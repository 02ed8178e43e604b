"""Sample on the host, for the frameworks whose graphs end at the logits."""

from __future__ import annotations

from math import isfinite

import numpy as np

from ..ir.ops.sampling import top_logprobs
from ..ir.sampling import ALTERNATIVES, COUNTS, MARK, Settings, adjust_logits
from ..ir.watermark import COLUMNS, WATERMARK, mark_logits
from .base_runner import ArrayLayout
from .batch import Array, Batch, FloatArray, IntArray
from .quick_choice import log_probability, quick_choice
from .runner import Output


class HostSampler:
    """The states of a runner by sequence slot, and the choice of tokens from them, as `ir/ops/` defines it."""

    def __init__(self, vocab_size: int, num_slots: int) -> None:
        self._sampled = np.zeros(num_slots, np.int32)
        self._states: dict[str, Array] = {
            "token_counts": np.zeros((num_slots, vocab_size), np.int32),
            "logit_bias": np.zeros((num_slots, vocab_size), np.float32),
            "token_mask": np.zeros((num_slots, -(-vocab_size // 32)), np.int32),
            WATERMARK: np.zeros((1, COLUMNS), np.int32),
        }

    @property
    def layouts(self) -> dict[str, ArrayLayout]:
        """The shapes and dtypes of the states that `write` writes, by name; the first dim counts slots."""
        return {name: ArrayLayout(state.shape, str(state.dtype)) for name, state in self._states.items()}

    def write(self, name: str, slot: int, values: Array) -> None:
        """See `Runner.write_state`."""
        self._states[name][slot] = values

    def token_ids(self, batch: Batch) -> IntArray:
        """(S,): the batch's token ids, with references to a slot replaced by the token sampled into it."""
        token_ids = batch.token_ids
        return np.where(token_ids < 0, self._sampled[np.maximum(-1 - token_ids, 0)], token_ids).astype(np.int32)

    def choose(self, batch: Batch, logits: FloatArray) -> Output:
        """The next tokens of the sampled rows from their logits (R, V); reading the output's logits copies them."""
        rows, width = len(logits), min(ALTERNATIVES, logits.shape[1])
        tokens, logprobs = np.full(rows, -1, np.int32), np.zeros(rows, np.float32)
        settings, slots = batch.sample_settings.tolist(), batch.sample_slots.tolist()
        # Before this step's tokens replace those in the slots.
        before = self.token_ids(batch)[batch.sample_rows].tolist()
        for row in range(rows):
            values = logits[row]
            largest = int(values.argmax())
            # argmax and argmin both return the index of a NaN if there is one.
            if isfinite(values[largest]) and isfinite(values[values.argmin()]):
                tokens[row] = token = self._choose_row(
                    values, largest, Settings(*settings[row]), before[row], *slots[row]
                )
                if batch.logprobs:
                    logprobs[row] = log_probability(values, token)
        num_top_rows = rows if batch.alternatives else 0
        top = {
            "ids": np.zeros((num_top_rows, width), np.int32),
            "logprobs": np.zeros((num_top_rows, width), np.float32),
        }
        top_logprobs({"logits": logits, **top}, {})
        return Output(tokens, logprobs, top["ids"], top["logprobs"], logits.copy)

    def _choose_row(
        self, logits: FloatArray, largest: int, settings: Settings, before: int, slot: int, flags: int
    ) -> int:
        """As `ops.adjust_logits`, `ops.mark_logits` and `ops.sample`, for logits (V,) whose largest index is known.
        ``before`` is the token that they follow.
        """
        counts = self._states["token_counts"]
        if flags:
            bias, mask = self._states["logit_bias"], self._states["token_mask"]
            logits = adjust_logits(logits, settings, flags, counts[slot], bias[slot], mask[slot])
        if flags & MARK:
            logits = mark_logits(logits, self._states[WATERMARK][0], before)
        token = quick_choice(logits, settings) if flags or settings.temperature else largest
        if slot >= 0:
            self._sampled[slot] = token
            if flags & COUNTS:
                counts[slot, token] += 1
        return token
