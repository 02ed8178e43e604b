"""Runs a decoder graph in ONNX Runtime as other software would, with the graph's own inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.ops import Array

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Logits = npt.NDArray[np.float32]


class Session:
    """A decoder graph on one of ONNX Runtime's providers, with a cache of (batch, kv_heads, tokens, head_dim) that
    grows.
    """

    def __init__(
        self, folder: Path, providers: Sequence[str] = ("CPUExecutionProvider",), *, decoder: str = "model"
    ) -> None:
        self.folder = folder
        self.session = open_graph(folder, decoder, providers)
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.cache: dict[str, Array] = {}
        self.past = 0

    def run(
        self,
        tokens: Sequence[Sequence[int]] | Array,
        mask: Sequence[Sequence[int]] | None = None,
        more: Mapping[str, Array] | None = None,
    ) -> Logits:
        """Logits (batch, V) of the last row of each sequence, after new tokens of each, or their embeddings; ``mask``
        None: no row is padded. ``more``: other inputs.
        """
        name = "input_ids" if "input_ids" in self.inputs else "inputs_embeds"
        ids = np.array(tokens, np.int64 if name == "input_ids" else np.float32)
        cache = self.cache or {name: self.empty(name, len(ids)) for name in self.inputs if name.startswith("past")}
        self.past = self.past if self.cache else 0
        ones = np.ones((len(ids), self.past + ids.shape[1]), np.int64)
        given = ones if mask is None else np.array(mask, np.int64)
        feeds = {name: ids, "attention_mask": given, **cache, **(more or {})}
        results: dict[str, Any] = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        self.cache = {name: results[present_of(name)] for name in cache}
        self.past += ids.shape[1]
        logits: Logits = results["logits"][:, 0]
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The greedy continuation of a prompt."""
        token_ids = [int(self.run([prompt])[0].argmax())]
        while len(token_ids) < count:
            token_ids.append(int(self.run([token_ids[-1:]])[0].argmax()))
        return token_ids

    def embeddings(self, token_ids: Sequence[Sequence[int]], features: Array, placeholder: int) -> Array:
        """The rows of tokens (batch, tokens, E), with features in place of the placeholders."""
        ids = np.array(token_ids, np.int64)
        (rows,) = open_graph(self.folder, "embed_tokens").run(["inputs_embeds"], {"input_ids": ids})
        rows[ids == placeholder] = features
        return np.asarray(rows)

    def empty(self, name: str, batch: int) -> Array:
        dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}[
            self.inputs[name].type
        ]
        sizes = {"batch_size": batch, "past_sequence_length": 0}
        return np.zeros([sizes.get(size, size) for size in self.inputs[name].shape], dtype)


class SpeechSession:
    """The graphs of a folder, with the cache of one sound or of several, (batch, ..) each."""

    def __init__(self, folder: Path, sounds: Logits) -> None:
        encoder = open_graph(folder, "encoder_model")
        (self.rows,) = encoder.run(["last_hidden_state"], {encoder.get_inputs()[0].name: sounds})
        self.session = open_graph(folder, "decoder_model_merged")
        self.outputs = [each.name for each in self.session.get_outputs()]
        sizes = {"batch_size": len(sounds)}
        self.cache = {
            each.name: np.zeros(
                [sizes.get(size, 0) if isinstance(size, str) else size for size in each.shape], np.float32
            )
            for each in self.session.get_inputs()
            if each.name.startswith("past_key_values.")
        }
        self.cached = False

    def run(self, token_ids: Sequence[Sequence[int]]) -> Logits:
        """The logits (batch, V) after new tokens."""
        feeds = {
            "input_ids": np.array(token_ids),
            # Once there is a cache, it is not read.
            "encoder_hidden_states": np.full_like(self.rows, np.nan) if self.cached else self.rows,
            "use_cache_branch": np.array([self.cached]),
            **self.cache,
        }
        found: dict[str, Any] = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        self.cache, self.cached = {name: found[present_of(name)] for name in self.cache}, True
        logits: Logits = found["logits"][:, 0]
        return logits

    def greedy(self, start: int, count: int, ends: Collection[int] = ()) -> list[int]:
        """The likeliest tokens after the first one, up to an end."""
        tokens = [start]
        while len(tokens) <= count and tokens[-1] not in ends:
            tokens.append(int(self.run([tokens[-1:]])[0].argmax()))
        return tokens


def image_features(folder: Path, inputs: Mapping[str, Array]) -> Array:
    """The features of pictures as a processor prepares them, (features, E)."""
    (found,) = open_graph(folder, "vision_encoder").run(["image_features"], dict(inputs))
    return np.asarray(found).reshape(-1, found.shape[-1])


def open_graph(folder: Path, name: str, providers: Sequence[str] = ("CPUExecutionProvider",)) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / f"onnx/{name}.onnx"), options, providers=list(providers))


def present_of(name: str) -> str:
    """The output that replaces an input of the cache, which holds keys, values or states."""
    return name.replace("past_key_values", "present").replace("past_", "present_")
