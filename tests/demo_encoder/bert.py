"""The demo encoder in torch: a BERT of one layer whose first token becomes the vector, as transformers' BertModel with
pooling "cls" and a dense module.

Positions have no vectors here, so everything that the layer does with a token is the same in every text: it is computed
once for each token of the vocabulary, and a text costs one weighted sum per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .wordpiece import CLS, PAD


@dataclass(frozen=True, slots=True)
class BertConfig:
    vocab_size: int = 6144
    hidden_size: int = 256
    num_hidden_layers: int = 1
    num_attention_heads: int = 4
    intermediate_size: int = 256
    max_position_embeddings: int = 256
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-12


class Bert(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.words = nn.Embedding(config.vocab_size, hidden)
        self.query, self.key, self.value, self.mix = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, config.intermediate_size), nn.Linear(config.intermediate_size, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.word_norm, self.mix_norm, self.down_norm = (nn.LayerNorm(hidden, eps) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (rows, tokens) int64 with [CLS] first, padded with [PAD] -> unit vectors (rows, hidden)."""
        heads = self.config.num_attention_heads
        table = self.word_norm(self.words.weight)
        first = table[CLS]
        query, keys = self.query(first).view(heads, -1), self.key(table).view(len(table), heads, -1)
        scores = torch.einsum("hd,vhd->vh", query, keys) * query.shape[1] ** -0.5
        weights = scores[tokens].masked_fill((tokens == PAD)[..., None], -torch.inf).softmax(1)
        mixed = [
            functional.embedding_bag(tokens, values, per_sample_weights=weights[..., head].contiguous(), mode="sum")
            for head, values in enumerate(self.value(table).chunk(heads, 1))
        ]
        x = self.mix_norm(self.mix(torch.cat(mixed, 1)) + first)
        x = self.down_norm(self.down(functional.gelu(self.up(x))) + x)
        return functional.normalize(self.dense(x), dim=-1)
