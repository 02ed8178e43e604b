"""Step inputs: the batch of a step, and the state that its answers need in the slots of the device: how they are
sampled, and which tokens are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearfar.compiler.runtime.batch import Batch
from nearfar.compiler.runtime.runner import Limits

from .answer import Answer
from .config import max_sequences
from .min_tokens import both_masks, end_ids, mask_without
from .model import TokenModel
from .sequence import Sequence
from .slot_sampling import SlotSampling
from .step import Step
from .step_batch import step_batch
from .step_runner import WriteState


class StepInputs:
    """Belongs to the engine's thread."""

    def __init__(self, limits: Limits, model: TokenModel, write_state: WriteState) -> None:
        self._model = model
        self._sampling = SlotSampling(max_sequences(limits), model.vocab_size, write_state)

    def batch(self, step: Step, answers: Mapping[Sequence, Answer]) -> Batch:
        """Write the states of a step's slots, and return its batch. Raises the errors of ``write_state``."""
        for sequence in step.admitted:
            answer = answers[sequence]
            self._sampling.assign(sequence.slot, answer.sampling, answer.request.prompt_ids, answer.token_ids)
        alternatives = logprobs = False
        for row in step.rows:
            answer = answers[row.sequence]
            if answer.token_ids and answer.is_plain and row.prompt_logprobs == 0:
                continue
            answer.start()
            if row.prompt_logprobs > 0:
                logprobs = True
                alternatives = alternatives or answer.request.prompt_alternatives > 0
            if row.sample:
                alternatives = alternatives or bool(answer.request.logprobs)
                logprobs = logprobs or answer.request.logprobs is not None
                if answer.mask_task is not None or answer.request.min_tokens > 0:
                    self._set_mask(answer, row.sequence)
        return step_batch(step, self._model.page_size, self._sampling, alternatives=alternatives, logprobs=logprobs)

    def _set_mask(self, answer: Answer, sequence: Sequence) -> None:
        """Write the mask of a constraint and of ``min_tokens``."""
        mask = None if answer.mask_task is None else answer.mask_task.mask
        # The token that this step samples already counts as in flight.
        if sequence.generated + sequence.in_flight <= answer.request.min_tokens:
            if answer.no_end is None:
                answer.no_end = mask_without(end_ids(answer.request, self._model.end_token_ids), self._model.vocab_size)
            mask = answer.no_end if mask is None else both_masks(mask, answer.no_end)
        self._sampling.set_mask(sequence.slot, mask)
