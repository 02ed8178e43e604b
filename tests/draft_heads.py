"""Tiny checkpoints of Qwen3.5 with heads that draft tokens, and what transformers' own layer of such heads computes.

Transformers' model ignores the heads' tensors, but its `MtpLayer` has their mathematics. Its modules have other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import new_family, randomize, save

FAMILY = "qwen3_5_text"
# The modules of MtpLayer, and those of a checkpoint.
MODULES = {
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "eh_proj": "mtp.fc",
    "mtp_block": "mtp.layers.0",
    "post_norm": "mtp.norm",
}


class DraftHeads:
    """A model with heads of random weights; ``logits`` are those of the model for TOKENS. With ``agree``, what layers
    add to a row is multiplied by it, and the heads read the token's embedding alone, so that the heads often guess what
    the model says.
    """

    def __init__(self, folder: Path, agree: float | None = None, **sizes: Any) -> None:
        import torch
        from safetensors.torch import load_file, save_file
        from transformers.modeling_layers import MtpLayer
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

        self._model = new_family(FAMILY, **sizes)
        randomize(self._model)
        attends = self._model.config.layer_types.index("full_attention")
        torch.manual_seed(11)
        self._layer = MtpLayer(self._model.config, Qwen3_5DecoderLayer, Qwen3_5RMSNorm, attends).float().eval()
        randomize(self._layer)
        if agree is not None:
            self._make_alike(agree)
        self.logits = save(self._model, folder)
        file = folder / "model.safetensors"
        own = {
            f"{MODULES[name.partition('.')[0]]}.{name.partition('.')[2]}": tensor
            for name, tensor in self._layer.state_dict().items()
        }
        save_file({**load_file(file), **own}, file, {"format": "pt"})

    def _make_alike(self, scale: float) -> None:
        import torch

        outputs = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
        with torch.no_grad():
            for name, parameter in (*self._model.named_parameters(), *self._layer.named_parameters()):
                if name.endswith(outputs):
                    parameter *= scale
            columns = self._layer.eh_proj.weight.shape[0]
            self._layer.eh_proj.weight.copy_(torch.eye(columns, 2 * columns))
            self._layer.post_norm.weight.copy_(self._model.model.norm.weight)

    def guessed(self, tokens: Sequence[int], guesses: Sequence[int] = ()) -> npt.NDArray[np.float32]:
        """The logits (len(guesses) + 1, V) of the guesses after known tokens: each row reads the guess before it, and
        the heads' own row.
        """
        import torch

        model = self._model.eval()
        with torch.no_grad():
            known = torch.tensor([list(tokens)])
            kept = model.model(input_ids=known, use_cache=False).last_hidden_state[:, :-1]
            found: list[Any] = []
            row = kept
            for guess in (None, *guesses):
                if guess is not None:
                    known = torch.cat([known, torch.tensor([[guess]])], dim=1)
                    kept = torch.cat([kept, row[:, -1:]], dim=1)
                places = torch.arange(kept.shape[1])[None]
                mask = torch.full((kept.shape[1],) * 2, float("-inf")).triu(1)[None, None]
                row = self._layer(
                    model.get_input_embeddings()(known[:, 1:]),
                    kept,
                    model.model.rotary_emb(kept, places[None].expand(3, -1, -1)),
                    mask,
                    places,
                    None,
                )
                found.append(model.lm_head(row[0, -1]).numpy())
        return np.stack(found)
