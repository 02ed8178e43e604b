"""Tiny checkpoints of Gemma 4 with an assistant that drafts tokens, and what transformers' assistant computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import FAMILIES, new_family, randomize, save
from tiny_models import SIZES

FAMILY = "gemma4_text"


class DraftAssistant:
    """A model and its assistant, with random weights, in the folders "checkpoint" and "assistant"; ``logits`` are those
    of the model for TOKENS. With ``agree``, what layers add to a row is multiplied by it, and the assistant reads the
    token's embedding alone, so that it often guesses what the model says. ``text`` replaces keys of the assistant's
    layers, ``own`` those beside them.
    """

    def __init__(
        self, folder: Path, agree: float | None = None, text: dict[str, Any] | None = None, **own: Any
    ) -> None:
        import torch
        import transformers

        self._model = new_family(FAMILY)
        randomize(self._model)
        hidden = SIZES["hidden_size"]
        layers = {
            **SIZES,
            **{key: FAMILIES[FAMILY][1][key] for key in ("head_dim", "global_head_dim", "sliding_window")},
            "hidden_size": hidden if agree is not None else 44,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            **(text or {}),
        }
        config = transformers.Gemma4AssistantConfig(
            text_config=transformers.Gemma4TextConfig(**layers), backbone_hidden_size=hidden, **own
        )
        torch.manual_seed(12)
        self._assistant = transformers.Gemma4AssistantForCausalLM(config).float().eval()
        randomize(self._assistant)
        if self._assistant.masked_embedding is not None:
            self._assistant.masked_embedding.token_ordering.copy_(torch.randperm(SIZES["vocab_size"]))
        if agree is not None:
            self._make_alike(agree)
        self.logits = save(self._model, folder / "checkpoint")
        self._assistant.save_pretrained(folder / "assistant")

    def _make_alike(self, scale: float) -> None:
        import torch

        # The norms behind attention, feed-forward and the layer's own input.
        outputs = (
            "post_attention_layernorm.weight",
            "post_feedforward_layernorm.weight",
            "post_per_layer_input_norm.weight",
        )
        with torch.no_grad():
            for name, parameter in (*self._model.named_parameters(), *self._assistant.named_parameters()):
                if name.endswith(outputs):
                    parameter *= scale
            columns = SIZES["hidden_size"]
            self._assistant.pre_projection.weight.copy_(torch.eye(columns, 2 * columns))
            self._assistant.model.norm.weight.copy_(self._model.model.norm.weight)
            self._assistant.model.embed_tokens.weight.copy_(self._model.model.embed_tokens.weight)

    def guessed(self, tokens: Sequence[int], guesses: Sequence[int] = ()) -> npt.NDArray[np.float32]:
        """The logits (len(guesses) + 1, V) of the guesses after known tokens: each reads the token before it, and the
        row that the assistant projected for that. Keys and values behind the window are those that transformers' cache
        has after a decoded token.
        """
        import torch

        model, window = self._model.model, self._assistant.config.get_text_config().sliding_window
        with torch.no_grad():
            passed = model(input_ids=torch.tensor([list(tokens[:-1])]), use_cache=False, return_shared_kv_states=True)
            row = passed.last_hidden_state[:, -1:]
            kept = {"full_attention": slice(None), "sliding_attention": slice(-window, None)}
            shared = {kind: tuple(each[:, :, kept[kind]] for each in passed.shared_kv_states[kind]) for kind in kept}
            found = []
            for token in (tokens[-1], *guesses):
                embedded = self._model.get_input_embeddings()(torch.tensor([[token]]))
                output = self._assistant(
                    inputs_embeds=torch.cat([embedded, row], dim=-1),
                    position_ids=torch.tensor([[len(tokens) - 1]]),
                    shared_kv_states=shared,
                )
                row = output.last_hidden_state
                found.append(output.logits[0, -1].numpy())
        return np.stack(found)
