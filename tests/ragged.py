"""Workloads for every runner: a prompt in chunks of any size, and ragged batches compared with each sequence alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.page_groups import dead_pages
from nearfar.compiler.runtime.runner import Runner

# Single tokens, less than a page, a page, one token more than a tile, and all 75 at once.
CHUNK_SIZES = (1, 7, 16, 33, 75)

# The tokens of three sequences, and the pages of each, interleaved and in no order; and of runners whose pages hold a
# whole sequence.
TOKENS = tuple(
    tuple((start + 17 * i * i + i) % 509 for i in range(length)) for start, length in ((3, 41), (200, 50), (77, 20))
)
PAGES = ((9, 2, 14), (0, 11, 3, 8), (5, 1))
WHOLE_PAGES = ((3,), (0,), (4,))
# Forward by forward, how many tokens of each sequence: prefills, then decodes beside prefills, 33 rows in all, and a
# sequence that pauses.
SCHEDULE = ((5, 17, 1), (1, 31, 1), (33, 0, 0), (1, 1, 17), (1, 1, 1))
# No row of these forward passes is sampled.
UNSAMPLED = (2,)


def chunked_logits(runner: Runner, token_ids: Sequence[int], size: int) -> Array:
    """The logits of every token, computed in chunks."""
    page_size = runner.manifest.page_size
    pages = list(range(runner.groups[0].pages))[::-1]
    logits = []
    for start in range(0, len(token_ids), size):
        tokens = token_ids[start : start + size]
        own = pages[: -(-(start + len(tokens)) // page_size)]
        chunk = chunk_of(runner, tokens, start, own, range(len(tokens)))
        output = runner.forward(make_batch([chunk], page_size))
        np.testing.assert_array_equal(output.next_token_ids, output.logits.argmax(-1))
        logits.append(output.logits)
    return np.concatenate(logits)


def chunk_of(
    runner: Runner, tokens: Sequence[int], start: int, pages: Sequence[int], sample: Sequence[int], state: int = 0
) -> Chunk:
    """New tokens of a sequence, in these pages, with its states in slot ``state``. A page group of window layers has
    the pool's pages in reverse. Entries of pages behind the window are 0, which is another sequence's page or an unused
    one.
    """
    page_size = runner.manifest.page_size
    first, *second = (
        [0 if index < dead else (size - 1 - page if group else page) for index, page in enumerate(pages)]
        for group, (size, window) in enumerate(runner.groups)
        for dead in [dead_pages(window, start, page_size)]
    )
    return Chunk(tokens, start, first, sample, window_pages=second[0] if second else None, state=(state, state))


def ragged_logits(runner: Runner) -> list[Array]:
    """The sampled logits of each sequence, run side by side."""
    logits: list[list[Array]] = [[], [], []]
    pages = pages_of(runner)
    done = [0, 0, 0]
    for forward, counts in enumerate(SCHEDULE):
        running = [(sequence, count) for sequence, count in enumerate(counts) if count]
        chunks = [
            chunk_of(
                runner,
                TOKENS[s][done[s] : done[s] + count],
                done[s],
                pages[s],
                () if forward in UNSAMPLED else sampled(count),
                s,
            )
            for s, count in running
        ]
        output = runner.forward(make_batch(chunks, runner.manifest.page_size))
        np.testing.assert_array_equal(output.next_token_ids, output.logits.argmax(-1).astype(np.int32))
        row = 0
        for (sequence, count), chunk in zip(running, chunks, strict=True):
            logits[sequence].append(output.logits[row : row + len(chunk.sample)])
            row += len(chunk.sample)
            done[sequence] += count
        assert row == len(output.logits)
    assert done == [len(tokens) for tokens in TOKENS]
    return [np.concatenate(each) for each in logits]


def sequences_alone(runner: Runner) -> list[Array]:
    """The same logits, computed with each sequence in one piece on the same pool."""
    results = []
    for s, tokens in enumerate(TOKENS):
        rows = []
        done = 0
        for forward, counts in enumerate(SCHEDULE):
            rows += [] if forward in UNSAMPLED else [done + row for row in sampled(counts[s])]
            done += counts[s]
        results.append(
            runner.forward(
                make_batch([chunk_of(runner, tokens, 0, pages_of(runner)[s], rows, s)], runner.manifest.page_size)
            ).logits
        )
    return results


def pages_of(runner: Runner) -> tuple[tuple[int, ...], ...]:
    """The pages of each sequence."""
    return PAGES if runner.manifest.page_size < runner.manifest.context else WHOLE_PAGES


def sampled(count: int) -> list[int]:
    """Every third row and the last."""
    return sorted({*range(0, count, 3), count - 1} - {-1})
