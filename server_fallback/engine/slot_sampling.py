"""The sampling of the sequence in each slot: settings in arrays, gathered once per step, and the state that the device
has for each slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearfar.compiler.ir.sampling import (
    BIAS,
    COUNTS,
    DRAW,
    MASK,
    TEMPERATURE,
    Settings,
    choosing,
    draw_at,
    token_counts,
)
from nearfar.compiler.runtime.batch import FloatArray, IntArray

from .resolved_sampling import ResolvedSampling, dense_bias
from .step_runner import WriteState


class SlotSampling:
    def __init__(self, num_slots: int, vocab_size: int, write_state: WriteState) -> None:
        self._vocab_size, self._write_state = vocab_size, write_state
        self._settings = np.zeros((num_slots, len(Settings._fields)), np.float32)
        # (N, 2): the slot itself, and which of the device's states apply to it.
        self._slots = np.zeros((num_slots, 2), np.int32)
        self._slots[:, 0] = np.arange(num_slots)
        self._seeds = np.zeros(num_slots, np.int64)
        # The mask that was last written to each slot of the device.
        self._masks: list[IntArray | None] = [None] * num_slots

    def assign(
        self, slot: int, sampling: ResolvedSampling, prompt_ids: Sequence[int], answer_ids: Sequence[int]
    ) -> None:
        """Another sequence has started to run in a slot."""
        self._settings[slot] = sampling.settings(0)
        self._slots[slot, 1] = sampling.flags
        self._seeds[slot] = sampling.seed
        self._masks[slot] = None
        if sampling.flags & COUNTS:
            self._write_state("token_counts", slot, token_counts(self._vocab_size, prompt_ids, answer_ids))
        if sampling.flags & BIAS:
            self._write_state("logit_bias", slot, dense_bias(self._vocab_size, sampling.sampling.logit_bias))

    def set_mask(self, slot: int, mask: IntArray | None) -> None:
        """Allow only the tokens of ``mask`` (ceil(V / 32),) from the next step on; None allows all. The array must not
        change.
        """
        if mask is None:
            self._slots[slot, 1] &= ~MASK
        else:
            self._slots[slot, 1] |= MASK
            if mask is not self._masks[slot]:
                self._write_state("token_mask", slot, mask)
                self._masks[slot] = mask

    def rows(self, slots: IntArray, indices: IntArray) -> tuple[IntArray, FloatArray]:
        """`sample_slots` (R, 2) and `sample_settings` (R, 8) of sampled rows.

        ``slots`` (R,); ``indices`` (R,) number the new tokens of each row's answer from 0 on. Greedy rows ignore what
        is drawn for them.
        """
        settings = self._settings[slots]
        if settings[:, TEMPERATURE].any():
            settings[:, DRAW] = draw_at(self._seeds[slots], indices.astype(np.int64))
        return self._slots[slots], settings

    def choosing(self, token_ids: Sequence[int]) -> FloatArray:
        """`sample_settings` (R, 8) of rows that choose these tokens, for their log-probabilities."""
        return choosing(token_ids, self._vocab_size)
