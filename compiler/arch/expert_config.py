"""Reads the keys of config.json that mixtures of experts share into an ExpertSpec."""

from __future__ import annotations

from typing import Any

from ..formats.config import ConfigReader
from ..ir.spec import ExpertSpec

# Keys that change how a router is trained, not what it computes.
HARMLESS = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})


def read_experts(
    config: ConfigReader,
    *number_keys: str,
    chosen_key: str = "num_experts_per_tok",
    size_key: str = "intermediate_size",
    **values: Any,
) -> ExpertSpec:
    """``number_keys``: the names of the key with the number of experts, of which one is present. ``chosen_key`` is that
    of the number that each token uses, ``size_key`` that of their intermediate size. ``values`` are the fields that an
    architecture reads in its own way.

    Raises CheckpointError for wrong values.
    """
    key = next((each for each in number_keys if config.has(each)), number_keys[0])
    number, chosen = config.integer(key), config.integer(chosen_key)
    if chosen > number:
        raise config.contradiction(chosen_key, f"{chosen_key!r} is {chosen}, but there are {number} experts ({key!r})")
    return ExpertSpec(number=number, chosen=chosen, intermediate_size=config.integer(size_key), **values)
