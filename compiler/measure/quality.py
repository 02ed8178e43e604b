"""Quality: how far a bundle's distributions of next tokens are from those of its checkpoint in float32.

For a text in windows of token ids, compare a runner with the reference: divergence, agreement and perplexity over all
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..bundle.folder import Folder
from ..formats import Checkpoint
from ..ir.ops.sampling import log_softmax
from ..quant.base import FloatArray
from ..runtime.errors import BundleError, CheckpointError, DeviceError, RequestError
from ..runtime.generate import PREFILL_CHUNK, score
from ..runtime.runner import Runner
from ..runtime.text.tokenizer import Tokenizer
from .checkpoint_reference import CheckpointReference

DEFAULT_WINDOW = 512
# 95 % of a normal distribution lies within this number of standard deviations.
DEVIATIONS_95 = 1.96


@dataclass(frozen=True, slots=True)
class Quality:
    """Over ``tokens`` predicted tokens. KL is the Kullback-Leibler divergence of the bundle's distribution from the
    reference's, in nats.

    ``kl_interval`` is the 95 % confidence interval of the mean, computed over windows, or None for a single window;
    ``kl_p99`` is the 99th percentile over tokens. ``top1_agreement`` is the share of tokens, 0 to 1, for which both
    rank the same token first.
    """

    tokens: int
    kl_mean: float
    kl_interval: tuple[float, float] | None
    kl_p99: float
    top1_agreement: float
    perplexity: float
    reference_perplexity: float

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.reference_perplexity


class Candidate(Protocol):
    """The model that is compared with the reference."""

    @property
    def device(self) -> str: ...

    def blocks(self, index: int, window: Sequence[int]) -> Iterator[FloatArray]:
        """The logits of window number ``index``, in blocks: (n, V) in all for n tokens."""


@dataclass(frozen=True, slots=True)
class RunnerCandidate:
    """A bundle on a runner."""

    runner: Runner

    @property
    def device(self) -> str:
        return self.runner.device

    def blocks(self, index: int, window: Sequence[int]) -> Iterator[FloatArray]:  # noqa: ARG002
        return score(self.runner, window, PREFILL_CHUNK)


@dataclass(frozen=True, slots=True)
class CheckpointCandidate:
    """Another checkpoint, with its weights as its files store them. ``hidden`` are its rows of all windows."""

    reference: CheckpointReference
    hidden: Sequence[FloatArray]
    device: str = "numpy, directly from the files"

    def blocks(self, index: int, window: Sequence[int]) -> Iterator[FloatArray]:  # noqa: ARG002
        rows = self.hidden[index]
        for start in range(0, len(rows), PREFILL_CHUNK):
            yield self.reference.logits(rows[start : start + PREFILL_CHUNK])


@dataclass(frozen=True, slots=True)
class Rows:
    """Measurements of some predictions, one entry each: divergence, agreement, and the surprise of the text's own
    token, in nats.
    """

    kl: npt.NDArray[np.float64]
    agrees: npt.NDArray[np.bool_]
    surprise: npt.NDArray[np.float64]
    reference_surprise: npt.NDArray[np.float64]

    def where(self, mask: npt.NDArray[np.bool_]) -> Rows:
        return Rows(self.kl[mask], self.agrees[mask], self.surprise[mask], self.reference_surprise[mask])


def make_windows(tokenizer: Tokenizer, text: str, window: int, count: int | None = None) -> list[list[int]]:
    """The text's token ids in windows of ``window`` tokens, the first ``count`` or all. Each starts with the bos token
    if the tokenizer adds one.

    Raises RequestError for a window or a text without a token to predict.
    """
    lead = tokenizer.encode("")[:1]
    body = window - len(lead)
    if window < 2 or body < 1:
        raise RequestError(f"--window {window}: must hold a token and one to predict; give at least 2")
    if count is not None and count < 1:
        raise RequestError(f"--windows {count}: must be at least 1")
    # The text may be written in a chat's format, with control tokens.
    token_ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
    cut = [[*lead, *token_ids[start : start + body]] for start in range(0, len(token_ids), body)]
    windows = [each for each in cut if len(each) > 1][:count]
    if not windows:
        raise RequestError(f"the text has {len(token_ids)} tokens, and no token to predict; give a longer one")
    return windows


def counted_between(
    tokenizer: Tokenizer, windows: Sequence[Sequence[int]], start: str, end: str
) -> list[npt.NDArray[np.bool_]]:
    """A mask of the tokens of each window between the text ``start`` and the next ``end``, including the tokens of
    ``end``: a chat's answers.

    Raises RequestError for a marker without tokens, and if no token lies between the markers.
    """
    first, last = (
        tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False) for text in (start, end)
    )
    if not first or not last:
        raise RequestError(f"--between {start!r} {end!r}: must both be texts of at least one token")
    counted = [np.array(list(between(window, first, last)), bool) for window in windows]
    if not any(each[1:].any() for each in counted):
        raise RequestError(f"--between {start!r} {end!r}: no token of the text lies between the two")
    return counted


def between(window: Sequence[int], first: Sequence[int], last: Sequence[int]) -> Iterator[bool]:
    inside = False
    for stop in range(1, len(window) + 1):
        yield inside
        # The last tokens read, as many as the marker has.
        marker = last if inside else first
        if list(window[max(stop - len(marker), 0) : stop]) == list(marker):
            inside = not inside


def require_same_tokens(bundle: Folder, checkpoint: Checkpoint) -> None:
    """Raise BundleError if the bundle's token ids do not have the meaning of the checkpoint's."""
    mine, theirs = bundle.manifest.spec.vocab_size, checkpoint.spec.vocab_size
    if mine != theirs:
        raise BundleError(
            f"{bundle.path}: has a vocabulary of {mine}, {checkpoint.path} of {theirs}; pass the checkpoint that it "
            "was made from"
        )
    if bundle.tokenizer_files().content != checkpoint.tokenizer.content:
        raise BundleError(
            f"{bundle.path}: has another tokenizer than {checkpoint.path}; pass the checkpoint that it was made from"
        )


def require_same_ids(candidate: Checkpoint, checkpoint: Checkpoint, text: str) -> None:
    """Raise CheckpointError if two checkpoints give a text other token ids."""
    if candidate.spec.vocab_size != checkpoint.spec.vocab_size or any(
        own != other
        for own, other in zip(
            *(Tokenizer(each.tokenizer).encode(text, split_special_tokens=False) for each in (candidate, checkpoint)),
            strict=False,
        )
    ):
        raise CheckpointError(
            f"{candidate.path}: has other token ids than {checkpoint.path}, so their distributions cannot be compared; "
            "give two forms of one model"
        )


def measure(
    candidate: Candidate,
    reference: CheckpointReference,
    windows: Sequence[Sequence[int]],
    hidden: Sequence[FloatArray],
    counted: Sequence[npt.NDArray[np.bool_]] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Quality:
    """Compare every window of the candidate with the reference, whose ``hidden`` rows are passed in.

    ``counted`` marks the tokens to measure, None for all. ``progress`` receives the number of finished windows.

    Raises RequestError for windows beyond the bundle's context, DeviceError for logits that are not numbers.
    """
    measured = []
    for index, (window, rows) in enumerate(zip(windows, hidden, strict=True)):
        actual = compare_window(candidate, index, reference, window, rows)
        # Row i predicts token i + 1.
        measured.append(actual if counted is None else actual.where(counted[index][1:]))
        progress(index + 1)
    return summarize([each for each in measured if len(each.kl)])


def compare_window(
    candidate: Candidate, index: int, reference: CheckpointReference, window: Sequence[int], hidden: FloatArray
) -> Rows:
    parts = []
    start = 0
    for block in candidate.blocks(index, window):
        # Nothing follows the last row.
        following = window[start + 1 : start + 1 + len(block)]
        expected = reference.logits(hidden[start : start + len(following)])
        start += len(block)
        if following:
            parts.append(compare(expected, block[: len(following)], following))
    if not all(np.isfinite(part.kl).all() for part in parts):
        raise DeviceError(
            f"{candidate.device} computed logits that are not finite; try --runner numpy, or another quantization"
        )
    return concatenate(parts)


def compare(expected: FloatArray, actual: FloatArray, following: Sequence[int]) -> Rows:
    """Logits (n, V) of the reference and the bundle, and the text's next tokens (n,)."""
    here = np.arange(len(following)), np.asarray(following)
    reference, own = log_softmax(expected), log_softmax(actual)
    kl = (np.exp(reference) * (reference - own)).sum(axis=-1)
    # Rounding can make a sum near zero negative.
    return Rows(np.maximum(kl, 0), expected.argmax(-1) == actual.argmax(-1), -own[here], -reference[here])


def concatenate(parts: Sequence[Rows]) -> Rows:
    return Rows(
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.agrees for part in parts]),
        np.concatenate([part.surprise for part in parts]),
        np.concatenate([part.reference_surprise for part in parts]),
    )


def summarize(windows: Sequence[Rows]) -> Quality:
    rows = concatenate(windows)
    means = np.array([window.kl.mean() for window in windows])
    mean = float(rows.kl.mean())
    # Tokens of one window are not independent of each other, so the interval is computed over windows.
    spread = DEVIATIONS_95 * float(means.std(ddof=1)) / len(means) ** 0.5 if len(means) > 1 else None
    return Quality(
        tokens=len(rows.kl),
        kl_mean=mean,
        kl_interval=None if spread is None else (max(mean - spread, 0.0), mean + spread),
        kl_p99=float(np.quantile(rows.kl, 0.99)),
        top1_agreement=float(rows.agrees.mean()),
        perplexity=float(np.exp(rows.surprise.mean())),
        reference_perplexity=float(np.exp(rows.reference_surprise.mean())),
    )
