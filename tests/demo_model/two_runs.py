"""What every recipe promises: a plan gives the same weights again, bit for bit, and its loss falls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .recipe import AfterStep


def require_equal_weights(first: nn.Module, second: nn.Module) -> None:
    weights = second.state_dict()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def require_the_same_again(train: Callable[[AfterStep], nn.Module], least_fall: float) -> None:
    """Train twice, on one thread, because another number gives other weights. The loss of the last step is lower than
    that of the first by ``least_fall``.
    """
    losses: list[float] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, second = train(lambda _, loss: losses.append(loss)), train(lambda *_: None)
    finally:
        torch.set_num_threads(threads)
    assert losses[-1] < losses[0] - least_fall
    require_equal_weights(first, second)
