"""Tiny checkpoints of Gemma 4 with an assistant that drafts tokens, and what transformers' assistant computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import FAMILIES, PLAIN_FAMILIES, TOKENS, new_family, randomize, save
from ragged import chunk_of
from tiny_models import SIZES
from tolerances import F32, relative_error

from nearfar.compiler.bundle.manifest import DRAFT
from nearfar.compiler.runtime.batch import make_batch
from nearfar.compiler.runtime.plan_runner import PlanRunner

# The families that have assistants, and the names of their assistants' classes.
ASSISTED = {"gemma4_text": "Gemma4", "gemma4_experts": "Gemma4", "gemma4_unified_text": "Gemma4Unified"}
# The keys with the shapes of keys and values, in which the assistant's layers are like the model's.
SHAPES = ("head_dim", "global_head_dim", "sliding_window", "attention_k_eq_v", "num_global_key_value_heads")


class DraftAssistant:
    """A model and its assistant, with random weights, in the folders "checkpoint" and "assistant"; ``logits`` are those
    of the model for TOKENS. With ``agree``, what layers add to a row is multiplied by it, and the assistant reads the
    token's embedding alone, so that it often guesses what the model says. With ``layers``, both have
    layers of these types alone. ``own`` replaces keys of the assistant beside its layers.
    """

    def __init__(
        self,
        folder: Path,
        agree: float | None = None,
        family: str = "gemma4_text",
        layers: Sequence[str] | None = None,
        **own: Any,
    ) -> None:
        import torch
        import transformers

        sizes: dict[str, Any] = {}
        if layers is not None:
            sizes = {"num_hidden_layers": len(layers), "layer_types": list(layers), "num_kv_shared_layers": 0}
        self._model = new_family(family, **sizes)
        name, config = ASSISTED[family], {**FAMILIES, **PLAIN_FAMILIES}[family][1]
        randomize(self._model)
        hidden = SIZES["hidden_size"]
        text = {
            **SIZES,
            **{key: config[key] for key in SHAPES if key in config},
            "hidden_size": hidden if agree is not None else 44,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            **sizes,
        }
        settings = getattr(transformers, f"{name}AssistantConfig")(
            text_config=getattr(transformers, f"{name}TextConfig")(**text), backbone_hidden_size=hidden, **own
        )
        torch.manual_seed(12)
        self._assistant = getattr(transformers, f"{name}AssistantForCausalLM")(settings).float().eval()
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


def require_assistant_guesses(runner: PlanRunner, assistant: DraftAssistant) -> None:
    """The assistant guesses what transformers' assistant does: from the model's keys, values and row before the last
    token, then from its own rows, with tokens that are still on the device, and all at one position.
    """
    pages, slot, tokens = [7, 2, 9], 2, TOKENS
    for start, stop in ((0, 30), (30, len(tokens) - 1)):
        used = pages[: -(-stop // 16)]
        runner.forward(make_batch([chunk_of(runner, tokens[start:stop], start, used, [stop - start - 1])], 16))
    position = len(tokens) - 2
    chunk = replace(chunk_of(runner, tokens[-1:], position, pages, [0]), slot=slot, state=None)
    kept, found, guesses = pages[position // 16] * 16 + position % 16, [], []
    for _ in range(3):
        output = runner.submit(make_batch([replace(chunk, kept_rows=[kept])], 16), DRAFT).result()
        found.append(output.logits[0])
        guesses.append(int(output.next_token_ids[0]))
        chunk, kept = replace(chunk, token_ids=[-1 - slot]), -1 - slot
    assert relative_error(np.stack(found), assistant.guessed(tokens, guesses[:2])) < F32
