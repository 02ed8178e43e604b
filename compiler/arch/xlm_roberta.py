"""XLM-RoBERTa: RoBERTa for many languages. Conneau et al. 2019. With a rotation, it is Jina Embeddings 3."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from . import jina_embeddings_v3, roberta
from .roberta import OTHER_HEADS, PREFIX

__all__ = ["OTHER_HEADS", "PREFIX", "encode", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "xlm-roberta"."""
    rotates = config.has("position_embedding_type") and config.optional_text("position_embedding_type") == "rotary"
    return jina_embeddings_v3.read_config(config) if rotates else roberta.read_config(config)


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    family = roberta.encode if spec.unrotated else jina_embeddings_v3.encode
    return family(spec, context, task)
