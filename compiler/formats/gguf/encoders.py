"""The architectures of GGUF files of encoders: their metadata as config.json, their tensors, and how they make vectors
or scores of a text's rows (conversion/ and src/llama-graph.cpp of github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.spec import ModelSpec
from ...ir.tasks import ClassifierSpec, EmbeddingSpec, Pooling
from ..classifier import OF_TEXTS, read_classifier
from .container import Container
from .metadata import Metadata
from .relations import Relation, same_names

Config = dict[str, Any]

LABELS = "classifier.output_labels"
# The numbers of "pooling_type". Files without one have the default of sentence-transformers.
POOLINGS: Mapping[int, Pooling] = {0: "mean", 1: "mean", 2: "cls", 3: "last_token"}
RANK = 4


@dataclass(frozen=True, slots=True)
class GgufEncoder:
    """``config`` adds to the configuration that all encoders have, whose key of the norms' epsilon is ``eps``.
    ``layers`` precedes the number of a layer in the names of a checkpoint. ``names`` are those of a layer's modules,
    ``joined`` those of which the file may have one instead, ``top`` those outside of layers, and ``head`` those of a
    classifier, to which llama.cpp gives the row of ``pooling``; it has none if that is empty.
    """

    model_type: str
    config: Callable[[Metadata, Container], Config]
    layers: str
    top: Mapping[str, str]
    names: Mapping[str, str]
    head: Mapping[str, str]
    joined: Mapping[str, tuple[str, ...]]
    eps: str = "layer_norm_eps"
    pooling: Pooling = "cls"
    eps_key: str = "attention.layer_norm_epsilon"
    scaled_ends: bool = False

    def relations(self, spec: ModelSpec) -> Iterator[Relation]:
        for file, module in {**self.top, **self.head}.items():
            yield from same_names(file, module)
        own = [
            Relation((f"{file}.{kind}",), tuple(f"{module}.{kind}" for module in modules))
            for file, modules in self.joined.items()
            for kind in ("weight", "bias")
        ]
        own += [relation for pair in self.names.items() for relation in same_names(*pair)]
        for layer in range(spec.num_layers):
            yield from (relation.of_layer(layer, self.layers) for relation in own)

    def read_config(self, metadata: Metadata, container: Container) -> Config:
        """The values of a config.json, without the task. Raises the errors of `architectures.read_config`."""
        heads = metadata.size("attention.head_count")
        config: Config = {
            "model_type": self.model_type,
            "vocab_size": rows_of("token_embd.weight", metadata, container),
            "hidden_size": metadata.size("embedding_length"),
            "num_hidden_layers": metadata.layers,
            "num_attention_heads": heads,
            "intermediate_size": metadata.size("feed_forward_length"),
            "max_position_embeddings": metadata.size("context_length"),
            self.eps: metadata.positive(self.eps_key),
            **self.config(metadata, container),
        }
        # In llama.cpp, a token of a file without this key sees only those before it.
        if metadata.flag("attention.causal", True):
            raise metadata.unsupported(
                f"'{metadata.architecture}.attention.causal' is not false, so its tokens see only those before them, "
                f"which is not supported for {metadata.architecture}"
            )
        metadata.expect("attention.head_count_kv", heads)
        metadata.expect("rope.scaling.type", "none")
        metadata.ignore("vocab_size", "pooling_type", LABELS)
        metadata.finish()
        return config

    def read_task(
        self,
        metadata: Metadata,
        container: Container,
        spec: ModelSpec,
        note: Callable[[str], None],  # noqa: ARG002
    ) -> EmbeddingSpec | ClassifierSpec:
        """What the model makes of a text: vectors or scores."""
        scores = [RANK] if self.head else []
        if metadata.integer("pooling_type", 0) not in scores:
            return read_embedding(metadata, spec, scores)
        missing = next((file for file in self.head if f"{file}.weight" not in container.tensors), None)
        if missing is not None:
            raise metadata.unsupported(
                f"it scores texts, but has no tensor '{missing}.weight', without which its scores are not those of the "
                "model that the file was made from; pass that model's Hugging Face folder"
            )
        count = rows_of("cls.output.weight", metadata, container)
        labels = metadata.texts(LABELS) if metadata.has(LABELS) else [f"LABEL_{index}" for index in range(count)]
        if len(labels) != count:
            raise metadata.corrupt(f"'{LABELS}' has {len(labels)} labels, but 'cls.output.weight' has {count} rows")
        config = {"architectures": [OF_TEXTS], "id2label": {str(index): label for index, label in enumerate(labels)}}
        task = read_classifier(config, str(metadata.path), self.pooling)
        assert task is not None
        return task


def read_embedding(metadata: Metadata, spec: ModelSpec, others: Sequence[int] = ()) -> EmbeddingSpec:
    """The vectors of a text, which llama.cpp scales to length 1. ``others``: kinds that make something else."""
    kind = metadata.integer("pooling_type", 0)
    if kind not in POOLINGS:
        known = ", ".join(map(str, (*POOLINGS, *others)))
        raise metadata.unsupported(
            f"'pooling_type' is {kind}, which is not supported for {metadata.architecture}; supported: {known}"
        )
    return EmbeddingSpec(POOLINGS[kind], normalize=True, size=spec.hidden_size)


def rows_of(name: str, metadata: Metadata, container: Container) -> int:
    """The number of rows of a matrix. Raises UnsupportedModel if there is none of this name."""
    stored = container.tensors.get(name)
    if stored is None or len(stored.shape) != 2:
        raise metadata.unsupported(f"it has no matrix {name!r}")
    return stored.shape[0]


def bert(metadata: Metadata, container: Container) -> Config:
    positions = rows_of("position_embd.weight", metadata, container)
    if positions != metadata.size("context_length"):
        raise metadata.corrupt(
            f"'context_length' is {metadata.size('context_length')}, but 'position_embd.weight' has {positions} rows"
        )
    return token_types(metadata, container)


def token_types(metadata: Metadata, container: Container) -> Config:
    """llama.cpp gives all tokens the first type; the files have the others, too."""
    return {"type_vocab_size": rows_of("token_types.weight", metadata, container)}


def nomic_bert(metadata: Metadata, container: Container) -> Config:
    return {
        **token_types(metadata, container),
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": metadata.positive("rope.freq_base", 10_000.0)},
    }


def modern_bert(metadata: Metadata, _: Container) -> Config:
    """Layers have windows except the first of every few, and rotate at a speed of their own."""
    theta = metadata.positive("rope.freq_base", 10_000.0)
    window = metadata.integer("attention.sliding_window", 0)
    every = metadata.size("attention.sliding_window_pattern", 3)
    kinds = ["full_attention" if window == 0 or layer % every == 0 else "sliding_attention"
             for layer in range(metadata.layers)]  # fmt: skip
    return {
        "layer_types": kinds,
        "local_attention": window,
        "global_rope_theta": theta,
        "local_rope_theta": metadata.positive("rope.freq_base_swa", theta),
        "hidden_activation": "gelu",
    }


BERT_TOP = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
SELF = "attention.self"
ENCODERS = {
    # Also RoBERTa and XLM-RoBERTa, whose files have no rows for positions before the first.
    "bert": GgufEncoder(
        "bert",
        bert,
        "encoder.layer",
        BERT_TOP,
        {
            "attn_q": f"{SELF}.query",
            "attn_k": f"{SELF}.key",
            "attn_v": f"{SELF}.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        {"cls": "pooler.dense", "cls.output": "classifier"},
        {"attn_qkv": (f"{SELF}.query", f"{SELF}.key", f"{SELF}.value")},
    ),
    "nomic-bert": GgufEncoder(
        "nomic_bert",
        nomic_bert,
        "encoder.layers",
        {
            "token_embd": BERT_TOP["token_embd"],
            "token_types": BERT_TOP["token_types"],
            "token_embd_norm": "emb_ln",
        },
        {
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "attn_output_norm": "norm1",
            "ffn_gate": "mlp.fc12",
            "ffn_up": "mlp.fc11",
            "ffn_down": "mlp.fc2",
            "layer_output_norm": "norm2",
        },
        {},
        {},
    ),
    "modern-bert": GgufEncoder(
        "modernbert",
        modern_bert,
        "layers",
        {
            "token_embd": "embeddings.tok_embeddings",
            "token_embd_norm": "embeddings.norm",
            "output_norm": "final_norm",
        },
        {
            "attn_norm": "attn_norm",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.Wo",
            "ffn_norm": "mlp_norm",
            "ffn_up": "mlp.Wi",
            "ffn_down": "mlp.Wo",
        },
        {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"},
        {},
        eps="norm_eps",
        pooling="mean",
    ),
}
