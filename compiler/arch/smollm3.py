"""SmolLM3: Llama with layers that do not rotate queries and keys. Bakouch et al. 2025."""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_layer_types, read_num_layers, windows_of

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "smollm3"."""
    num_layers = read_num_layers(config)
    interval = config.integer("no_rope_layer_interval", default=4)
    # 1 for a layer that rotates, 0 for one that does not.
    rotated = config.integers("no_rope_layers")
    if rotated is None:
        rotated = tuple(int((layer + 1) % interval != 0) for layer in range(num_layers))
    if len(rotated) != num_layers:
        raise config.contradiction(
            "no_rope_layers",
            f"'no_rope_layers' has {len(rotated)} entries for {num_layers} layers ('num_hidden_layers')",
        )
    uses_windows = config.flag("use_sliding_window", default=False)
    window = config.optional_integer("sliding_window")
    kinds = read_layer_types(config, pattern=lambda layer: not uses_windows or window is None or bool(rotated[layer]))
    spec = read_decoder_config(
        config,
        bias_keys=("attention_bias", "mlp_bias"),
        windows=windows_of(config, kinds, window),
        default_theta=2_000_000.0,
        tied=True,
        harmless=frozenset({"max_window_layers"}),
    )
    return replace(spec, unrotated=tuple(layer for layer, rotates in enumerate(rotated) if not rotates))
