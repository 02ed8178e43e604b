"""The architectures of GGUF files: converts their metadata to config.json, and relates their tensors to those of a
Hugging Face folder (conversion/ and src/models/ of github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...arch.draft_heads import HEADS
from ...ir.spec import ModelSpec
from ...ir.tasks import EmbeddingSpec
from ...runtime.errors import CheckpointError, UnsupportedModel
from ..checkpoint import Tensor
from ..decoder_tensors import XIELU, decoder_tensors
from .attention import ROTATION, attention_config
from .container import Container
from .decoders import (
    APERTUS,
    BEHIND,
    FUSED,
    NEOX,
    apertus,
    gemma2,
    gemma3,
    gptneox,
    granite,
    llama,
    minicpm,
    neox_tensors,
    olmo,
    partly_rotated,
    phi2,
    phi3,
    qwen3,
    seed_oss,
    smollm3,
    starcoder2,
    xielu_parts,
)
from .embedding_gemma import DENSE, embedding_gemma, read_dense
from .encoders import ENCODERS, GgufEncoder
from .gemma4 import GEMMA4, GEMMA4_TOP, gemma4, gemma4_sizes, gemma4_tensors
from .hybrids import DRAFT_HEADS, LFM2, gated_delta, lfm2, lfm2_experts, lfm2moe, qwen35, short_convolution
from .mamba import (
    MAMBA2,
    falcon_h1,
    falcon_h1_tensors,
    granite_hybrid_tensors,
    granitehybrid,
    mamba2,
    mamba2_tensors,
)
from .metadata import Metadata
from .mixtures import (
    gpt_oss,
    gpt_oss_experts,
    granite_experts,
    granitemoe,
    olmoe,
    qwen3moe,
    separate_experts,
)
from .relations import Relation, interleaved, same_names
from .tensors import related_tensors

Config = dict[str, Any]

TOP = {"token_embd": "model.embed_tokens", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
AFTER_ATTENTION = {"post_attention_norm": "post_attention_layernorm"}
# The last norm has this name in files of LFM2.
LFM2_NORM = ("token_embd_norm", "model.embedding_norm")
# Models whose files are those of another architecture with a model_type of its own.
SHARED = {"mistral": "llama", "gemma4_unified_text": "gemma4", "roberta": "bert", "xlm-roberta": "bert"}


def decoder_sizes(metadata: Metadata, container: Container) -> Config:
    """The feed-forward's size, and the heads and their rotation, which all layers share."""
    return {"intermediate_size": metadata.size("feed_forward_length"), **attention_config(metadata, container)}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """``sizes`` are those of the layers' modules, and ``config`` adds to the configuration that all decoders have.
    ``names`` are those of a layer's modules besides LAYER, ``top`` those outside of layers besides TOP, and ``tensors``
    relates those of a layer that the file does not have one by one. ``interleaved``: llama.cpp rotates neighbouring
    elements of q and k, so their rows are stored in that order. ``norm_shift``: norms are stored plus one. ``eps``: the
    key in config.json of the norms' epsilon. ``centered_norms``: these are LayerNorms, with biases; otherwise they are
    by the root mean square. ``final_norm``: the last norm in the file and in a checkpoint. ``scaled_ends``: the
    embedding and the head contain the factors by which others multiply their results. ``keyed``: the tensors of a
    checkpoint whose values are keys of the file; ``absent``: how the names of those end that `decoder_tensors` makes.
    ``read_task``: what the model makes of a text whose tokens see those after them; None for one that generates text.
    """

    model_type: str
    config: Callable[[Metadata, Container], Config] = lambda *_: {}
    names: Mapping[str, str] = field(default_factory=dict)
    tensors: Callable[[ModelSpec], Iterable[Relation]] = lambda _: ()
    interleaved: bool = False
    norm_shift: bool = False
    eps: str = "rms_norm_eps"
    centered_norms: bool = False
    final_norm: tuple[str, str] = ("output_norm", "model.norm")
    sizes: Callable[[Metadata, Container], Config] = decoder_sizes
    top: Mapping[str, str] = field(default_factory=dict)
    scaled_ends: bool = False
    keyed: Callable[[Metadata], dict[str, Tensor]] = lambda _: {}
    absent: str | None = None
    read_task: Callable[[Metadata, Container, ModelSpec, Callable[[str], None]], EmbeddingSpec] | None = None

    @property
    def eps_key(self) -> str:
        return f"attention.layer_norm_{'' if self.centered_norms else 'rms_'}epsilon"


def architecture_of(metadata: Metadata) -> GgufArchitecture | GgufEncoder:
    found = KNOWN.get(metadata.architecture)
    if found is None:
        raise metadata.unsupported(
            f"architecture {metadata.architecture!r} is not supported{REASONS.get(metadata.architecture, '')}; "
            f"supported: {', '.join(sorted(KNOWN))}"
        )
    return found


def architecture_for(model_type: str) -> str | None:
    """The architecture of files for a model_type of config.json, or None for a model that KNOWN lacks."""
    own = next((name for name, each in KNOWN.items() if each.model_type == model_type), None)
    return own or SHARED.get(model_type)


def read_config(architecture: GgufArchitecture | GgufEncoder, metadata: Metadata, container: Container) -> Config:
    """The values of a config.json. Raises CheckpointError, and UnsupportedModel for a key that is not known."""
    if isinstance(architecture, GgufEncoder):
        return architecture.read_config(metadata, container)
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise metadata.unsupported("it has no matrix 'token_embd.weight'")
    config: Config = {
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": metadata.size("embedding_length"),
        "num_hidden_layers": metadata.layers,
        architecture.eps: metadata.positive(architecture.eps_key),
        "max_position_embeddings": metadata.size("context_length"),
        "tie_word_embeddings": "output.weight" not in container.tensors,
    }
    # The embedding's number of rows determines the vocabulary size.
    metadata.ignore("vocab_size")
    metadata.expect("attention.causal", architecture.read_task is None)
    config |= architecture.sizes(metadata, container) | architecture.config(metadata, container)
    # Mixtures have read these.
    metadata.expect_unread("expert_count", 0)
    metadata.expect_unread("expert_used_count", 0)
    metadata.finish()
    return config


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", llama, interleaved=True),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3", qwen3),
    "gemma": GgufArchitecture("gemma", norm_shift=True),
    "gemma2": GgufArchitecture("gemma2", gemma2, BEHIND, norm_shift=True),
    "gemma3": GgufArchitecture("gemma3_text", gemma3, BEHIND, norm_shift=True),
    "gemma-embedding": GgufArchitecture(
        "gemma3_text", embedding_gemma, BEHIND, norm_shift=True, top=DENSE, read_task=read_dense
    ),
    "phi3": GgufArchitecture("phi3", phi3, FUSED),
    "granite": GgufArchitecture("granite", granite, interleaved=True),
    "smollm3": GgufArchitecture("smollm3", smollm3, interleaved=True),
    "olmo2": GgufArchitecture("olmo2", names={key: BEHIND[key] for key in ("post_attention_norm", "post_ffw_norm")}),
    "qwen3moe": GgufArchitecture("qwen3_moe", qwen3moe, tensors=separate_experts),
    "olmoe": GgufArchitecture("olmoe", olmoe, tensors=separate_experts),
    "granitemoe": GgufArchitecture("granitemoe", granitemoe, tensors=granite_experts, interleaved=True),
    "gpt-oss": GgufArchitecture("gpt_oss", gpt_oss, AFTER_ATTENTION, gpt_oss_experts),
    "lfm2": GgufArchitecture("lfm2", lfm2, LFM2, short_convolution, eps="norm_eps", final_norm=LFM2_NORM),
    "lfm2moe": GgufArchitecture("lfm2_moe", lfm2moe, LFM2, lfm2_experts, eps="norm_eps", final_norm=LFM2_NORM),
    "qwen35": GgufArchitecture("qwen3_5_text", qwen35, AFTER_ATTENTION, gated_delta, norm_shift=True),
    "granitehybrid": GgufArchitecture(
        "granitemoehybrid", granitehybrid, tensors=granite_hybrid_tensors, interleaved=True
    ),
    "falcon-h1": GgufArchitecture(
        "falcon_h1",
        falcon_h1,
        tensors=falcon_h1_tensors,
        final_norm=("output_norm", "model.final_layernorm"),
        scaled_ends=True,
    ),
    "mamba2": GgufArchitecture(
        "mamba2",
        names=MAMBA2,
        tensors=mamba2_tensors,
        eps="layer_norm_epsilon",
        final_norm=("output_norm", "model.norm_f"),
        sizes=mamba2,
    ),
    "gemma4": GgufArchitecture("gemma4_text", gemma4, GEMMA4, gemma4_tensors, sizes=gemma4_sizes, top=GEMMA4_TOP),
    "minicpm": GgufArchitecture("minicpm", minicpm, interleaved=True),
    "olmo": GgufArchitecture("olmo", olmo, interleaved=True, centered_norms=True, absent="norm.weight"),
    "gptneox": GgufArchitecture("gpt_neox", gptneox, NEOX, neox_tensors, eps="layer_norm_eps", centered_norms=True),
    "apertus": GgufArchitecture("apertus", apertus, APERTUS, keyed=xielu_parts, absent=XIELU),
    "nemotron": GgufArchitecture("nemotron", partly_rotated, norm_shift=True, eps="norm_eps", centered_norms=True),
    "phi2": GgufArchitecture(
        "phi",
        phi2,
        {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
        eps="layer_norm_eps",
        centered_norms=True,
        final_norm=("output_norm", "model.final_layernorm"),
    ),
    "seed_oss": GgufArchitecture("seed_oss", seed_oss, AFTER_ATTENTION),
    "starcoder2": GgufArchitecture(
        "starcoder2",
        starcoder2,
        {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        eps="norm_epsilon",
        centered_norms=True,
    ),
}
KNOWN: Mapping[str, GgufArchitecture | GgufEncoder] = {**ARCHITECTURES, **ENCODERS}
# Why others are not supported.
REASONS = {"jina-bert-v2": ", whose scores fall with the distance of tokens (ALiBi)"}


# --- tensors ---


def relations_of(architecture: GgufArchitecture | GgufEncoder, spec: ModelSpec) -> Iterator[Relation]:
    """How all tensors of a file are related to those of a checkpoint. If several name one tensor, the last counts."""
    if isinstance(architecture, GgufEncoder):
        yield from architecture.relations(spec)
        return
    kinds = ("weight", "bias") if architecture.centered_norms else ("weight",)
    for file, module in {"token_embd": TOP["token_embd"], **architecture.top}.items():
        yield from same_names(file, module, ("weight",))
    yield from same_names("output", TOP["output"], kinds)
    for relation in same_names(*architecture.final_norm, kinds):
        yield shifted(relation) if architecture.norm_shift else relation
    heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}
    own: list[Relation] = []
    for file, module in {**LAYER, **architecture.names}.items():
        for relation in same_names(file, module):
            if architecture.interleaved and file in heads:
                relation = replace(relation, rows=interleaved(heads[file], spec.head_dim))
            own.append(shifted(relation) if architecture.norm_shift else relation)
    own += architecture.tensors(spec)
    for layer in range(spec.num_layers):
        yield from (relation.of_layer(layer) for relation in own)
    heads_own = [shifted(each) for pair in DRAFT_HEADS.items() for each in same_names(*pair, ("weight",))]
    for layer in range(spec.draft_layers):
        here, module = f"blk.{spec.num_layers + layer}.", f"{HEADS}layers.{layer}."
        yield from (relation.within(here, module) for relation in own)
        # The heads have them once.
        yield from (relation.within(f"{here}nextn.", module if layer else HEADS) for relation in heads_own)


def shifted(relation: Relation) -> Relation:
    """Norms are stored plus one."""
    return replace(relation, values="plus_one") if relation.files[0].endswith("norm.weight") else relation


def read_tensors(
    architecture: GgufArchitecture | GgufEncoder, spec: ModelSpec, metadata: Metadata, container: Container
) -> dict[str, Tensor]:
    """The tensors by the names of a Hugging Face checkpoint, with those of the heads that draft tokens. Raises
    UnsupportedModel for one that is not known.
    """
    spec = replace(spec, draft_layers=metadata.integer("nextn_predict_layers", 0))
    relations = {name: each for each in relations_of(architecture, spec) for name in each.files}
    tensors: dict[str, Tensor] = {}
    for name in container.tensors:
        if name in ROTATION:
            continue
        relation = relations.get(name)
        if relation is None:
            raise UnsupportedModel(
                f"{container.path}: tensor {name!r} is not known for architecture {metadata.architecture!r}",
                file=str(container.path), tensor=name,
            )  # fmt: skip
        missing = next((each for each in relation.files if each not in container.tensors), None)
        if missing is not None:
            raise CheckpointError(
                f"{container.path}: tensor {missing!r} is missing, which belongs to {name!r}; download the file again",
                tensor=missing,
            )
        if name == relation.files[0]:
            tensors |= related_tensors(relation, container)
    if isinstance(architecture, GgufEncoder):
        return tensors
    return dict(decoder_tensors({**tensors, **architecture.keyed(metadata)}, spec))
