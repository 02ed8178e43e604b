"""The prefix cache with pages that hold a complete sequence: prefixes of pages are shared, and copied or reused by
sequences that continue them.
"""

from __future__ import annotations

import pytest
from hash_model import VOCAB
from scheduler_traces import HashDevice, config_of, pools_of, require_pages

from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import FINISHED, Sequence, SequenceParams

CONTEXT = 64
PROMPT = [1 + index % (VOCAB - 1) for index in range(20)]


class Chat:
    """Consecutive requests, with ``pages`` pages."""

    def __init__(self, pages: int) -> None:
        config = config_of(page_size=CONTEXT, pages=pages, max_tokens=32, max_sequences=4, context=CONTEXT)
        self.scheduler, self.device = Scheduler(config), HashDevice(config)
        self.copies = self.count = 0

    def ask(self, prompt: list[int], adapter: str | None = None) -> tuple[int, list[int]]:
        """The number of cached tokens of the prompt, and all tokens including the answer. The device checks the
        contents of pages.
        """
        sequence = Sequence(self.count, prompt, SequenceParams(6, adapter=adapter))
        self.count += 1
        self.scheduler.add(sequence)
        while sequence.state != FINISHED:
            step = self.scheduler.next()
            assert step is not None
            self.copies += sum(map(len, step.copies))
            self.scheduler.commit(step, self.device.taken(step)())
            require_pages(self.scheduler)
        return sequence.cached_tokens, sequence.tokens


@pytest.mark.parametrize(("pages", "copies"), [(1, 0), (3, 2)])
def test_a_next_turn_starts_from_the_complete_conversation(pages: int, copies: int) -> None:
    chat = Chat(pages)
    found, tokens = chat.ask(PROMPT)
    assert found == 0
    for _ in range(2):
        # The last token was sampled, but its position was not computed.
        before = len(tokens) - 1
        found, tokens = chat.ask([*tokens, 3, 4, 5])
        assert found == before
    assert chat.copies == copies
    # Only the longest of several sequences with the same beginning is kept.
    assert len(pools_of(chat.scheduler)[0].nodes) == 1


def test_prompts_share_their_common_prefix_and_adapters_share_nothing() -> None:
    chat = Chat(4)
    chat.ask(PROMPT)
    assert chat.ask([*PROMPT[:12], 9, 9, 9])[0] == 12
    assert len(pools_of(chat.scheduler)[0].nodes) == 2
    assert chat.ask([2, *PROMPT])[0] == 0
    assert chat.ask(PROMPT, adapter="a")[0] == 0
    # The last token is always computed.
    assert chat.ask(PROMPT[:12])[0] == 11


def test_the_least_recently_used_pages_are_evicted() -> None:
    chat = Chat(2)
    prompts = [[index, *PROMPT] for index in (3, 4, 5)]
    assert [chat.ask(prompt)[0] for prompt in prompts] == [0, 0, 0]
    assert chat.ask(prompts[2])[0] == len(PROMPT)
    assert chat.ask(prompts[0])[0] == 0
