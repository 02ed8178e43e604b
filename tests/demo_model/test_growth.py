"""Growing: before training, the larger model computes what the smaller one computes."""

from __future__ import annotations

import pytest
import torch

from demo_model.growth import grow
from demo_model.model import Llama, LlamaConfig

SMALL = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16
)
LARGE = LlamaConfig(
    hidden_size=48, intermediate_size=80, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)


@pytest.fixture(scope="module")
def small() -> Llama:
    torch.manual_seed(4)
    model: Llama = Llama(SMALL).eval()
    return model


def test_a_grown_model_begins_with_nearly_the_same_logits(small: Llama) -> None:
    large = grow(small, LARGE).eval()
    assert large.model.config == LARGE
    tokens, positions = torch.randint(0, SMALL.vocab_size, (2, 40)), torch.arange(40)[None]
    with torch.no_grad():
        before, after = (model.logits(model.model(tokens, positions)) for model in (small, large))
    # The remaining difference is due to the new columns of the embedding, which are small compared with the random 0.05
    # of the old ones.
    assert (before - after).norm() < 0.2 * before.norm()


def test_every_new_matrix_learns(small: Llama) -> None:
    large = grow(small, LARGE)
    tokens, positions = torch.randint(0, SMALL.vocab_size, (2, 40)), torch.arange(40)[None]
    optimizer = torch.optim.SGD(large.parameters(), 1.0)
    # Matrices that output zeros at first hide their inputs from the gradient for one step.
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            large.logits(large.model(tokens, positions))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        ).backward()
        optimizer.step()
    for name, parameter in large.named_parameters():
        assert parameter.grad is not None
        rows = parameter.grad.flatten(1) if parameter.ndim == 2 else parameter.grad[:, None]
        if "embed_tokens" not in name:
            assert (rows.abs().amax(1) > 0).all(), name
