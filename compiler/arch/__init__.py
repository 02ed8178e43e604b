"""Architectures by model_type: the module with the name of a model_type declares how to read and compute that model."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from ..runtime.errors import UnsupportedModel
from .families import unsupported_message

if TYPE_CHECKING:
    from ..formats.config import ConfigReader
    from ..ir.graph import Graph
    from ..ir.spec import ModelSpec
    from ..ir.tasks import ClassifierSpec, EmbeddingSpec

DECODERS = (
    "apertus", "cohere2", "embedding_gemma2_text", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text",
    "gemma4_text", "gemma4_unified_text", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "granite_swa",
    "granitemoe", "helium", "hunyuan_v1_dense", "llama", "mimo", "minicpm", "ministral", "ministral3", "mistral",
    "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "openai_privacy_filter", "phi", "phi3",
    "qwen2", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
# Decoders with a state for each sequence.
HYBRIDS = ("falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "lfm3", "mamba2", "qwen3_5_text")
# Decoders whose checkpoints may have heads that draft tokens.
DRAFTING = ("qwen3_5_text",)
# Decoders that may have an assistant, which drafts tokens from their rows, keys and values.
ASSISTED = ("gemma4_text", "gemma4_unified_text")
# Decoders that attend to the rows of an encoder of sound, which is what they read.
LISTENING = ("moonshine", "moonshine_streaming", "whisper")
# Encoders of sound, whose rows name tokens.
CTC = ("parakeet_ctc",)
SUPPORTED = tuple(sorted((*DECODERS, *HYBRIDS)))
ENCODERS = (
    "albert", "bert", "deberta-v2", "distilbert", "electra", "eurobert", "gte", "jina_embeddings_v3",
    "modernbert", "mpnet", "new", "nomic_bert", "roberta", "xlm-roberta",
)  # fmt: skip


class Architecture(Protocol):
    """The interface of a decoder's module."""

    def read_config(self, config: ConfigReader) -> ModelSpec:
        """The spec of a checkpoint's config.json. Raises CheckpointError, and UnsupportedModel if a key needs other
        mathematics.
        """

    def forward(self, spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
        """The graph of one forward pass on a ragged batch, with KV pages of ``page_size`` tokens, for sequences of up
        to ``context`` tokens.

        It computes the next tokens of the sampled rows, or with ``embeds`` their embeddings.
        """


class DraftingArchitecture(Architecture, Protocol):
    """That of a module of DRAFTING."""

    def draft_tokens(self, spec: ModelSpec, page_size: int, context: int) -> Graph:
        """The graph of the heads that draft tokens, for a spec with ``draft_layers``; see `draft_heads`."""


class ListeningArchitecture(Architecture, Protocol):
    """That of a module of LISTENING."""

    def listen(self, spec: ModelSpec, page_size: int) -> Graph:
        """The graph that reads windows of sound: the rows of its encoder, whose keys and values it appends to the pages
        of sources for every layer of the decoder.
        """


class CtcArchitecture(Protocol):
    """The interface of a module of CTC."""

    def read_config(self, config: ConfigReader) -> ModelSpec:
        """See `Architecture`."""

    def encode_sound(self, spec: ModelSpec, context: int) -> Graph:
        """The graph of one forward pass on a batch of windows of sound of up to ``context`` rows: the scores of each
        row's tokens.
        """


class Encoder(Protocol):
    """The interface of an encoder's module. ``PREFIX``: what may precede the names of its tensors, as in a checkpoint
    that has a head. ``OTHER_HEADS``: the tensors of heads, of which at most one is compiled.
    """

    PREFIX: str | tuple[str, ...]
    OTHER_HEADS: re.Pattern[str]

    def read_config(self, config: ConfigReader) -> ModelSpec:
        """See `Architecture`."""

    def encode(self, spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
        """The graph of one forward pass on a batch of complete texts of up to ``context`` tokens, without KV pages: the
        vectors of an embedding model, or the scores of a classifier.
        """


def by_model_type(name: str) -> Architecture:
    """The module of a decoder's model_type. Raises UnsupportedModel for an unknown one."""
    if name not in (*SUPPORTED, *LISTENING):
        raise UnsupportedModel(unsupported_message(name, (*SUPPORTED, *ENCODERS, *LISTENING, *CTC)), model_type=name)
    return cast(Architecture, import_module(f".{name}", __name__))


def drafting(name: str) -> DraftingArchitecture:
    """The module of a decoder's model_type, which must be in DRAFTING."""
    assert name in DRAFTING, name
    return cast(DraftingArchitecture, import_module(f".{name}", __name__))


def listening(name: str) -> ListeningArchitecture:
    """The module of a decoder's model_type, which must be in LISTENING."""
    assert name in LISTENING, name
    return cast(ListeningArchitecture, import_module(f".{name}", __name__))


def ctc_of(name: str) -> CtcArchitecture | None:
    """The module of a model_type in CTC; None for others."""
    return cast(CtcArchitecture, import_module(f".{name}", __name__)) if name in CTC else None


def encoder_of(name: str) -> Encoder | None:
    """The module of an encoder's model_type; None for others."""
    return cast(Encoder, import_module(f".{name.replace('-', '_')}", __name__)) if name in ENCODERS else None
