"""Tiny checkpoints of Qwen3.5 with heads that draft tokens, with a tower and without one, and what transformers' own
layer of such heads computes.

Transformers' model ignores the heads' tensors, but its `MtpLayer` has their mathematics. Its modules have other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import new_family, randomize, save
from vision_arguments import arguments_of, masks_of
from vision_families import Expected, make_vision

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
        self._model = new_family(FAMILY, **sizes)
        randomize(self._model)
        self._layer = random_layer(self._model.config)
        if agree is not None:
            self._make_alike(agree)
        self.logits = save(self._model, folder)
        save_layer(self._layer, folder)

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


class SeeingHeads:
    """A model that sees pictures, with heads. ``expected`` has a prompt with two pictures. With ``same``, the only
    layer of the model that adds to a row attends, and the heads have the same layer and read the token's embedding
    alone, so that what they guess is nearly what the model says, if they see what it sees.
    """

    def __init__(self, folder: Path, *, same: bool = False) -> None:
        import torch
        import transformers

        layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]} if same else {}
        self.expected: Expected = make_vision("qwen3_5", folder, **layers)
        self._model = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._layer = random_layer(self._model.config.text_config)
        if same:
            self._make_same()
            self._model.save_pretrained(folder)
        save_layer(self._layer, folder)

    def _make_same(self) -> None:
        import torch

        text, layer = self._model.model.language_model, self._layer
        first, attends = text.layers
        with torch.no_grad():
            for nothing in (first.linear_attn.out_proj, first.mlp.down_proj):
                nothing.weight.zero_()
            # Attention decides what follows.
            attends.self_attn.o_proj.weight *= 8
            table = text.embed_tokens.weight
            table /= table.square().mean(dim=1, keepdim=True).sqrt()
            layer.mtp_block.load_state_dict(attends.state_dict())
            layer.enorm.weight.zero_()
            columns = layer.eh_proj.weight.shape[0]
            layer.eh_proj.weight.copy_(torch.eye(columns, 2 * columns))
            layer.post_norm.weight.copy_(text.norm.weight)

    def guessed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits (len(tokens) - 1, V) of the heads at each row, with the pictures of ``expected``."""
        import torch

        from nearfar.compiler.formats import load

        model, ids = self._model, torch.tensor([list(tokens)])
        spec = load(str(model.config._name_or_path)).images
        assert spec is not None
        pictures = arguments_of(model, spec, self.expected.images)
        masks = masks_of(model, tokens)
        with torch.no_grad():
            kept = model.model(input_ids=ids, **pictures, **masks, use_cache=False).last_hidden_state[:, :-1]
            turns, _ = model.model.get_rope_index(ids, image_grid_thw=pictures["image_grid_thw"], **masks)
            embedded = model.get_input_embeddings()(ids)
            features = torch.tensor(np.concatenate(self.expected.features))
            embedded[ids == model.config.image_token_id] = features
            mask = torch.full((kept.shape[1],) * 2, float("-inf")).triu(1)[None, None]
            rotated = model.model.language_model.rotary_emb(kept, turns[..., :-1])
            row = self._layer(embedded[:, 1:], kept, rotated, mask, torch.arange(kept.shape[1])[None], None)
            found: npt.NDArray[np.float32] = model.lm_head(row[0]).numpy()
        return found


def random_layer(config: Any) -> Any:
    """Heads of a model of a configuration, with random weights."""
    import torch
    from transformers.modeling_layers import MtpLayer
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

    attends = config.layer_types.index("full_attention")
    torch.manual_seed(11)
    layer = MtpLayer(config, Qwen3_5DecoderLayer, Qwen3_5RMSNorm, attends).float().eval()
    randomize(layer)
    return layer


def save_layer(layer: Any, folder: Path) -> None:
    """Add heads to the checkpoint in a folder."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    own = {
        f"{MODULES[name.partition('.')[0]]}.{name.partition('.')[2]}": tensor
        for name, tensor in layer.state_dict().items()
    }
    save_file({**load_file(file), **own}, file, {"format": "pt"})
