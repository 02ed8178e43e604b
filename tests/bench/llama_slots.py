"""llama.cpp with several sequences in one batch, like llama-server's parallel slots but without the server.

Every call decodes one token of each slot whose prompt is complete, and fills the batch with prompt tokens of the other
slots. The most likely token is chosen. A slot starts the next request as soon as its own is answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np
from llama_engine import open_context

from nearfar.server_fallback.bench.client import Outcome

# As in llama-server.
BATCH = 2048


@dataclass(frozen=True, slots=True)
class TokenRequest:
    prompt_ids: Sequence[int]
    max_tokens: int


@dataclass(slots=True)
class Slot:
    """``computed`` is the number of tokens of the prompt and the answer in the cache."""

    index: int
    request: TokenRequest
    started: float
    computed: int = 0
    answer: list[int] = field(default_factory=list)
    first_token: float = 0.0


class LlamaSlots:
    def __init__(
        self, file: Path, slots: int, context: int, vocab_size: int, threads: int, *, unified: bool = False
    ) -> None:
        self._context = open_context(file, slots, context, BATCH, threads, unified=unified)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._num_slots, self._vocab_size = slots, vocab_size

    def run(
        self, requests: Sequence[TokenRequest], progress: Callable[[], None] = lambda: None
    ) -> tuple[list[Outcome], float]:
        """Returns the outcomes in the order of the requests, and the seconds that all of them took together."""
        outcomes: dict[int, Outcome] = {}
        rest = iter(enumerate(requests))
        slots: dict[int, Slot] = {}
        began = time.perf_counter()
        while True:
            for slot_id in range(self._num_slots):
                if slot_id not in slots and (following := next(rest, None)) is not None:
                    slots[slot_id] = Slot(*following, time.perf_counter())
            if not slots:
                return [outcomes[index] for index in range(len(requests))], time.perf_counter() - began
            for slot_id, row in self._decode(slots).items():
                slot = slots[slot_id]
                slot.answer.append(self._likeliest(row))
                slot.first_token = slot.first_token or time.perf_counter()
                if len(slot.answer) == slot.request.max_tokens:
                    outcomes[slot.index] = Outcome(
                        prompt_tokens=len(slot.request.prompt_ids),
                        completion_tokens=len(slot.answer),
                        time_to_first_token=slot.first_token - slot.started,
                        total=time.perf_counter() - slot.started,
                    )
                    llama_cpp.llama_memory_seq_rm(self._memory, slot_id, -1, -1)
                    del slots[slot_id]
                    progress()

    def _decode(self, slots: dict[int, Slot]) -> dict[int, int]:
        """Make one call. Returns the rows of the batch that have logits, by slot."""
        batch, size, rows = self._batch, 0, dict[int, int]()
        # Decoding slots come first, because each has one token.
        for slot_id, slot in sorted(slots.items(), key=lambda item: not item[1].answer):
            tokens = [*slot.request.prompt_ids, *slot.answer]
            stop = min(len(tokens), slot.computed + BATCH - size)
            for position in range(slot.computed, stop):
                batch.token[size], batch.pos[size] = tokens[position], position
                batch.n_seq_id[size], batch.seq_id[size][0] = 1, slot_id
                batch.logits[size] = position == len(tokens) - 1
                size += 1
            slot.computed = stop
            if stop == len(tokens):
                rows[slot_id] = size - 1
        batch.n_tokens = size
        assert llama_cpp.llama_decode(self._context, batch) == 0
        return rows

    def _likeliest(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
