"""The encoder's start: latent semantic analysis of the training text (Deerwester et al. 1990), as weights of a BERT.

A token's vector is where its stem lies in the directions in which the texts differ most. One more dimension holds how
much the token counts, by its inverse document frequency: attention weighs tokens by it, and drops it from the sum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .bert import Bert
from .wordpiece import CLS, MASK

ENDINGS = re.compile(r"(?:i[sz]ations?|ations?|ments?|ings?|i?ers?|i?ed|ies|ions?|able|ive|ally|ly|es|s|e|y)$")
# The share of a token's vector that is its own, beside its stem's.
OWN_SHARE = 0.3
# The length of the dimension of importance beside the others, at most.
IMPORTANCE_SHARE = 0.5
# The least and the most that a token counts are a factor of exp(2 x this) apart.
IMPORTANCE_SCORE = 2.0
SCALE = 0.05


def stem_of(piece: str) -> str:
    """The beginning that a word's forms share: "compil" for compile, compiles, compiled and compiling."""
    stem = ENDINGS.sub("", piece)
    if len(stem) < 4:
        return piece
    return stem[:-1] if stem[-1] == stem[-2] and stem[-1] not in "aeioul" else stem


def begin(model: Bert, pieces: Sequence[str], texts: Sequence[Sequence[int]], generator: torch.Generator) -> None:
    """Set all weights from texts, given as token ids."""
    hidden = model.config.hidden_size
    stems = {stem: index for index, stem in enumerate(dict.fromkeys(map(stem_of, pieces)))}
    stem_ids = torch.tensor([stems[stem_of(piece)] for piece in pieces])
    meaning, frequency = _analyse([stem_ids[list(text)] for text in texts if text], len(stems), hidden - 2)
    own = functional.normalize(torch.randn(len(pieces), hidden - 2, generator=generator), dim=-1)
    vectors = functional.normalize((1 - OWN_SHARE) * meaning[stem_ids] + OWN_SHARE * own, dim=-1)
    rarity = (len(texts) / (1 + frequency[stem_ids])).log().clamp(min=0.1)
    # The weight of a token in a sum is its rarity, so its score is the logarithm.
    score = rarity.log() - rarity.log().mean()
    importance = (score / IMPORTANCE_SCORE).clamp(-1, 1)
    importance[: MASK + 1] = -1.0
    importance[CLS] = 0.0
    basis = _orthogonal_to_ones(hidden, generator)
    table = torch.cat([vectors, IMPORTANCE_SHARE * importance[:, None]], 1) @ basis
    table[CLS] = basis[-1]
    with torch.no_grad():
        model.words.weight.copy_(functional.normalize(table, dim=-1) * SCALE * math.sqrt(hidden))
        for linear in (model.query, model.key, model.value, model.mix, model.up, model.down, model.dense):
            linear.weight.normal_(0, 0.02, generator=generator)
            linear.bias.zero_()
        without_importance = torch.eye(hidden) - torch.outer(basis[-1], basis[-1])
        model.value.weight.copy_(without_importance)
        model.mix.weight.copy_(8 * torch.eye(hidden))
        model.dense.weight.copy_(without_importance)
        model.down.weight.zero_()
        # Each head's first dimension: a constant query, and a key that is the importance. Its norm makes the table's
        # rows as long as the square root of the hidden size.
        size = hidden // model.config.num_attention_heads
        model.query.weight.zero_()
        model.query.bias[::size] = math.sqrt(size)
        model.key.weight.mul_(0.1)
        model.key.weight[::size] = basis[-1] * IMPORTANCE_SCORE / IMPORTANCE_SHARE / math.sqrt(hidden)


def _analyse(texts: Sequence[Tensor], stems: int, size: int) -> tuple[Tensor, Tensor]:
    """The directions (stems, size) of stems, and the number of texts with each (stems,)."""
    rows = torch.cat([torch.full_like(text, row) for row, text in enumerate(texts)])
    counts = torch.zeros(len(texts), stems).index_put_((rows, torch.cat(list(texts))), torch.ones(()), accumulate=True)
    frequency = (counts > 0).sum(0).float()
    weighted = counts.log1p() * (len(texts) / (1 + frequency)).log().clamp(min=0)
    weighted = functional.normalize(weighted, dim=-1)
    # The strongest direction is what all texts share.
    _, strengths, directions = torch.svd_lowrank(weighted, size + 1, niter=4)
    return functional.normalize(directions[:, 1:] * strengths[1:].sqrt(), dim=-1), frequency


def _orthogonal_to_ones(size: int, generator: torch.Generator) -> Tensor:
    """(size - 1, size): orthonormal rows, each with the mean zero."""
    start = torch.randn(size, size, generator=generator)
    start[0] = 1.0
    rows: Tensor = torch.linalg.qr(start.T)[0].T[1:].contiguous()
    return rows
