"""Grows a smaller Llama into a larger one. The far model starts with the near model's knowledge, so that its training
is spent on the new tasks (Net2Net, Chen et al. 2016, with zeros instead of copies).

The smaller model fills the first rows and columns of every matrix. The added parts output zeros at first, so the old
residual stream does not change, except for the small values in the new columns of the embedding.
"""

from __future__ import annotations

import torch

from .model import Llama, LlamaConfig

# Their outputs are added to the residual stream; all other matrices of a block read from it.
WRITERS = ("o_proj.weight", "down_proj.weight")
NEW_EMBEDDING_STD = 0.02


@torch.no_grad()
def grow(small: Llama, config: LlamaConfig) -> Llama:
    """Return ``small`` at a larger size, with the same head size and the same number of query heads per key/value head.
    New values are drawn from torch's generator.
    """
    large = Llama(config)
    old_layers, new_layers = small.model.config.num_hidden_layers, config.num_hidden_layers
    # The layers between them are new.
    places = {
        f"model.layers.{index}.": f"model.layers.{index * new_layers // old_layers}." for index in range(old_layers)
    }
    for name, parameter in large.named_parameters():
        if name.endswith(WRITERS):
            parameter.zero_()
        elif "embed_tokens" in name:
            parameter.normal_(std=NEW_EMBEDDING_STD)
    parameters = dict(large.named_parameters())
    for name, old in small.named_parameters():
        prefix = next((prefix for prefix in places if name.startswith(prefix)), "")
        new = parameters[places.get(prefix, "") + name.removeprefix(prefix)]
        if old.ndim == 1:
            # Zeros lower the mean square, so the normalized rows would be longer by this factor.
            new[: len(old)] = old * (len(old) / len(new)) ** 0.5
        else:
            rows, columns = old.shape
            if "embed_tokens" not in name:
                new[:rows, columns:] = 0
            new[:rows, :columns] = old
    return large
