"""Compares the tokens that two runners choose with the states of their sequence slots."""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.sampling import BIAS, COUNTS, GREEDY, IN_PROMPT, MASK, Settings
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Output, Runner


def assert_same_choices(runner: Runner, reference: Runner, atol: float = 1e-3) -> None:
    """Eight forwards of two sequences, one of which has penalties, bias and mask, give the same tokens on both, and
    log-probabilities within ``atol``. Closes both.

    They need two slots, two rows and room for 8 tokens in page 0 and in page 1.
    """
    found, expected = slot_answers(runner), slot_answers(reference)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.next_token_ids.tolist() == theirs.next_token_ids.tolist()
        np.testing.assert_allclose(mine.token_logprobs, theirs.token_logprobs, atol=atol)
        assert mine.top_token_ids.tolist() == theirs.top_token_ids.tolist()
    assert [len(output.top_token_ids) for output in found] == [0, 0, 0, 2, 0, 0, 0, 0]


def slot_answers(runner: Runner) -> list[Output]:
    vocab_size = runner.manifest.spec.vocab_size
    rng = np.random.default_rng(2)
    counts = (rng.integers(0, 3, vocab_size) | IN_PROMPT * rng.integers(0, 2, vocab_size)).astype(np.int32)
    bias = rng.normal(size=vocab_size).astype(np.float32)
    mask = rng.integers(-(2**31), 2**31, -(-vocab_size // 32)).astype(np.int32)
    for name, values in (("token_counts", counts), ("logit_bias", bias), ("token_mask", mask)):
        runner.write_state(name, 1, values)
    futures = []
    for i, draw in enumerate(np.random.default_rng(3).random(8).tolist()):
        settings = Settings(1.2, 50, 0.97, 0.01, draw, 1.4, 0.3, 0.5)
        # Slot 0 is greedy and unadjusted beside it; from the second forward on, each takes its own token from its slot.
        chunks = [
            Chunk(
                [-1 - slot] if i else [5 + slot],
                i,
                [slot],
                [0],
                settings if slot else GREEDY,
                slot,
                slot * (COUNTS | BIAS | MASK),
            )
            for slot in (1, 0)
        ]
        # All forward passes are submitted before the first output is read, if the runner works asynchronously.
        futures.append(runner.submit(make_batch(chunks, runner.manifest.page_size, alternatives=i == 3, logprobs=True)))
    answers = [future.result() for future in futures]
    runner.close()
    return answers
