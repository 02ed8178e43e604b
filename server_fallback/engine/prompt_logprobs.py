"""Log-probabilities of a prompt's last tokens: the rows that must be sampled for them, and the values that such a row
gives.
"""

from __future__ import annotations

import math

import numpy as np

from nearfar.compiler.runtime.batch import Output

# The log-probability of a token that can hardly come: rounding may leave it no probability at all.
MIN_LOGPROB = -30.0


class PromptLogprobRows:
    """How many rows of a prompt are still to be sampled: ``pending`` ones are not scheduled, ``scheduled`` ones are not
    read back.

    The row at position p gives the log-probability of the token at p + 1, so these rows are the last ones before the
    row that samples the first token of the answer. They are never taken from a cache, which holds keys and values but
    no logits.
    """

    __slots__ = ("pending", "scheduled")

    def __init__(self, pending: int) -> None:
        self.pending, self.scheduled = pending, 0

    def schedule(self, rows: int) -> None:
        self.pending -= rows
        self.scheduled += rows

    def commit(self, rows: int) -> None:
        self.scheduled -= rows

    def restart(self) -> None:
        """The scheduled rows will never be read back; schedule them again."""
        self.schedule(-self.scheduled)


def prompt_logprob(output: Output, sample: int, token_id: int, vocab_size: int) -> float:
    """The log-probability of ``token_id`` after the sampled row ``sample``.

    It is exact for the most likely tokens, which the row lists. Any other token gets an equal share of the probability
    that they leave.
    """
    token_ids, logprobs = output.top_token_ids[sample], output.top_logprobs[sample]
    found = np.flatnonzero(token_ids == token_id)
    if len(found):
        return float(logprobs[found[0]])
    if output.next_token_ids[sample] == token_id:
        return float(output.token_logprobs[sample])
    left, others = 1 - float(np.exp(logprobs.astype(np.float64)).sum()), vocab_size - len(token_ids)
    return max(math.log(left / others), MIN_LOGPROB) if left > 0 and others > 0 else MIN_LOGPROB
