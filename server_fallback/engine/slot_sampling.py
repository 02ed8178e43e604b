"""How the sequence in each slot samples: settings in arrays, gathered once a step, and what the device keeps by slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nearfar.compiler.batch import Array, FloatArray, IntArray
from nearfar.compiler.sampling import BIAS, COUNTS, MASK, Settings, draw_at

from .resolved_sampling import ResolvedSampling, token_counts

TEMPERATURE, DRAW = Settings._fields.index("temperature"), Settings._fields.index("draw")


class SlotSampling:
    """``write_state`` sets a slot's row of a device state, as `Runner.write_state` does."""

    def __init__(self, num_slots: int, vocab_size: int, write_state: Callable[[str, int, Array], None]) -> None:
        self._vocab_size, self._write_state = vocab_size, write_state
        self._settings = np.zeros((num_slots, len(Settings._fields)), np.float32)
        self._flags = np.zeros(num_slots, np.int32)
        self._seeds = np.zeros(num_slots, np.uint64)
        # How many tokens of the answer were part of the prompt.
        self._answered = np.zeros(num_slots, np.int64)

    def assign(self, slot: int, sampling: ResolvedSampling, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Another sequence has started to run in a slot."""
        self._settings[slot] = sampling.settings(0)
        self._flags[slot] = sampling.flags
        self._seeds[slot] = sampling.seed
        self._answered[slot] = sampling.answered
        if sampling.flags & COUNTS:
            self._write_state("token_counts", slot, token_counts(self._vocab_size, prompt_ids, answer_ids))
        if sampling.flags & BIAS:
            assert sampling.logit_bias is not None
            self._write_state("logit_bias", slot, sampling.logit_bias)

    def set_mask(self, slot: int, mask: IntArray | None) -> None:
        """Allow only the tokens of ``mask`` (ceil(V / 32),) from the next step on; None allows all."""
        if mask is None:
            self._flags[slot] &= ~MASK
        else:
            self._flags[slot] |= MASK
            self._write_state("token_mask", slot, mask)

    def rows(self, slots: IntArray, indices: IntArray) -> tuple[IntArray, FloatArray]:
        """`sample_slots` (R, 2) and `sample_settings` (R, 8) for rows of ``slots`` (R,), each for the token ``indices`` (R,) of its answer."""
        settings = self._settings[slots]
        sampled = settings[:, TEMPERATURE] > 0
        if sampled.any():
            draws = draw_at(self._seeds[slots], (self._answered[slots] + indices).astype(np.uint64))
            settings[:, DRAW] = np.where(sampled, draws, 0.0)
        sample_slots = np.empty((len(slots), 2), np.int32)
        sample_slots[:, 0], sample_slots[:, 1] = slots, self._flags[slots]
        return sample_slots, settings
