"""Tensors of decoders that their graphs read in another form than they are stored, or that are not stored at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ..ir.spec import ModelSpec
from ..runtime.errors import CheckpointError
from .checkpoint import Tensor
from .distance_tensors import MadeTensor
from .gpt2_tensors import gpt2_tensors
from .moonshine_files import moonshine_streaming_tensors, moonshine_tensors
from .whisper_files import whisper_tensors

# The vector that `ops.elementwise.xielu` reads, in each of Apertus' layers, and the tensors that it is made of.
XIELU = "mlp.xielu"
XIELU_PARTS = ("alpha_p", "alpha_n", "beta", "eps")
_ACTIVATION = re.compile(r"(?P<layer>model\.layers\.\d{1,5}\.)mlp\.act_fn\.(?P<part>\w+)")
# The names of GPT-NeoX's tensors outside of its layers, and buffers that old files hold.
_NEOX = {
    "gpt_neox.embed_in.weight": "model.embed_tokens.weight",
    "gpt_neox.final_layer_norm.weight": "model.norm.weight",
    "gpt_neox.final_layer_norm.bias": "model.norm.bias",
    "embed_out.weight": "lm_head.weight",
}
_NEOX_BUFFER = re.compile(r"gpt_neox\.layers\.\d+\.attention\.(?:bias|masked_bias|rotary_emb\.inv_freq)")


def decoder_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> Mapping[str, Tensor]:
    """The tensors as the family's graph reads them."""
    make = MADE.get(spec.model_type)
    return tensors if make is None else make(tensors, spec)


def neox_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:  # noqa: ARG001
    """Those of GPT-NeoX by the names of other decoders."""
    return {
        _NEOX.get(name, re.sub(r"^gpt_neox\.", "model.", name)): tensor
        for name, tensor in tensors.items()
        if not _NEOX_BUFFER.fullmatch(name)
    }


def olmo_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """With ones as the factors of OLMo's norms, which have none."""
    norms = ("input_layernorm", "post_attention_layernorm")
    names = [f"model.layers.{layer}.{norm}.weight" for layer in range(spec.num_layers) for norm in norms]
    ones = np.ones(spec.hidden_size, np.float32)
    made = {name: MadeTensor(name, len(ones), lambda: ones) for name in (*names, "model.norm.weight")}
    return {**tensors, **made}


def apertus_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """With a vector for each activation. Raises CheckpointError for one that lacks a part."""
    parts: dict[str, dict[str, Tensor]] = {}
    others: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _ACTIVATION.fullmatch(name)
        if match is None or match["part"] not in XIELU_PARTS:
            others[name] = tensor
        else:
            parts.setdefault(match["layer"], {})[match["part"]] = tensor
    for layer in (f"model.layers.{index}." for index in range(spec.num_layers)):
        missing = next((part for part in XIELU_PARTS if part not in parts.get(layer, {})), None)
        if missing is not None:
            name = f"{layer}mlp.act_fn.{missing}"
            raise CheckpointError(
                f"tensor {name} is missing; the weights do not match config.json, or a file was not downloaded",
                tensor=name,
            )
    made = {
        f"{layer}{XIELU}": MadeTensor(f"{layer}{XIELU}", len(XIELU_PARTS), partial(xielu_factors, own))
        for layer, own in parts.items()
    }
    return {**others, **made}


def xielu_factors(stored: Mapping[str, Tensor]) -> npt.NDArray[np.float32]:
    """The factors of squares and of exponentials, which are stored as what softplus makes them of, beta and eps."""
    positive, negative, beta, eps = (float(stored[part].rows(0, 1).reshape(-1)[0]) for part in XIELU_PARTS)
    return np.array([np.logaddexp(0, positive), beta + np.logaddexp(0, negative), beta, eps], np.float32)


def xielu_parts(factors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What is stored of factors: the inverse of `xielu_factors`."""
    positive, negative, beta, eps = factors.astype(np.float64)
    # No number has a softplus of 0.
    before = (np.log(np.expm1(max(each, np.finfo(np.float32).tiny))) for each in (positive, negative - beta))
    return np.array([*before, beta, eps], np.float32)


MADE: Mapping[str, Callable[[Mapping[str, Tensor], ModelSpec], dict[str, Tensor]]] = MappingProxyType(
    {
        "apertus": apertus_tensors,
        "gpt2": lambda tensors, spec: gpt2_tensors(tensors),  # noqa: ARG005
        "gpt_neox": neox_tensors,
        "moonshine": moonshine_tensors,
        "moonshine_streaming": moonshine_streaming_tensors,
        "olmo": olmo_tensors,
        "whisper": whisper_tensors,
    }
)
