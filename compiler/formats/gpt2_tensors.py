"""The tensors of a GPT-2 by the names of other decoders. Its matrices are stored with a row for each input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .checkpoint import Tensor, put_renamed

_TOP = {"wte": "model.embed_tokens", "wpe": "model.embed_positions", "ln_f": "model.norm"}
_LAYER = {
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
# The repository of the first release holds a model without a head, whose names have no prefix.
_NAME = re.compile(r"(?:transformer\.)?(?:h\.(?P<layer>\d{1,5})\.)?(?P<module>[\w.]+)\.(?P<kind>weight|bias)")
# Masks of attention, which old files hold.
_BUFFER = re.compile(r"(?:transformer\.)?h\.\d+\.attn\.(?:bias|masked_bias)")


@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix (rows, columns) that is stored as (columns, rows)."""

    stored: Tensor
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape[::-1]

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(self.stored.rows(0, self.stored.shape[0]).T[start:stop])


def gpt2_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A name that is not known stays as it is."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _BUFFER.fullmatch(name):
            continue
        match = _NAME.fullmatch(name)
        names = _TOP if match is None or match["layer"] is None else _LAYER
        if match is None or match["module"] not in names:
            renamed[name] = tensor
            continue
        module = names[match["module"]]
        if names is _LAYER:
            module = f"model.layers.{int(match['layer'])}.{module}"
        short = f"{module}.{match['kind']}"
        is_stored_by_input = names is _LAYER and len(tensor.shape) == 2
        put_renamed(renamed, short, name, Transposed(tensor, short) if is_stored_by_input else tensor)
    return renamed
