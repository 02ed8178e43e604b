"""A tiny Gemma 4 whose activations exceed float16's range, as those of the published models do: the residual stream,
the products of gate and up, and the outputs of projections in front of the norms behind sub-layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import TOKENS, new_family, randomize, save

FLOAT16_LARGEST = float(np.finfo(np.float16).max)
# The sizes besides those of `decoder_families.FAMILIES`. Few layers, because each amplifies the rounding of the last.
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# A norm behind a sub-layer adds numbers of this size to the residual stream.
LARGE_NORM = 3 * FLOAT16_LARGEST
BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm")
# Gate and up multiply to more than 65,504, and projections in front of a norm exceed it.
FACTORS = {"gate_proj": 300.0, "up_proj": 3000.0, "o_proj": 30_000.0, "per_layer_projection": 300.0}


def make_large(folder: Path) -> npt.NDArray[np.float32]:
    """Write the checkpoint. Returns transformers' logits of TOKENS in float32.

    Weights of the quantization f16 are exact: the matrices consist of float16 numbers, and the compiler scales one of
    them by a power of two (1 / sqrt(64)). Small queries keep the change that float16 activations cause small.
    """
    import torch

    model = new_family("gemma4_text", **SIZES)
    randomize(model)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            module = path.split(".")[-2]
            if module in BEHIND:
                parameter.mul_(LARGE_NORM)
            if module == "q_norm":
                parameter.mul_(0.25)
            if parameter.ndim == 2:
                parameter.copy_((parameter * FACTORS.get(module, 1)).half())
    largest = largest_values(model)
    assert min(largest.values()) > FLOAT16_LARGEST, largest
    return save(model, folder)


def largest_values(model: Any) -> dict[str, float]:
    """The largest magnitudes of every layer's results for TOKENS, of the inputs of the down projections, and of the
    outputs of the projections in front of norms.
    """
    import torch

    largest: dict[str, float] = {}

    def record(name: str, value: Any) -> None:
        largest[name] = float((value[0] if isinstance(value, tuple) else value).abs().max())

    hooks = []
    for path, module in model.named_modules():
        last = path.rpartition(".")[2]
        if last.isdigit() or last in ("o_proj", "down_proj", "per_layer_projection"):
            hooks.append(module.register_forward_hook(lambda _, __, y, path=path: record(path, y)))
        if last == "down_proj":
            hooks.append(module.register_forward_pre_hook(lambda _, x, path=path: record(f"{path} input", x)))
    with torch.no_grad():
        model.eval()(input_ids=torch.tensor([TOKENS]))
    for hook in hooks:
        hook.remove()
    return largest
