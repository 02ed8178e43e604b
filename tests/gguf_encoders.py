"""Writes tiny encoders as GGUF files with the package gguf, as llama.cpp's convert_hf_to_gguf.py does."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from encoder_tokenizers import VECTORS
from gguf import GGMLQuantizationType as Type
from gguf import PoolingType, TokenType
from gguf_files import blocks
from safetensors.numpy import load_file, save_file
from tiny_encoders import FAMILIES, make_encoder, write_json
from tiny_models import write_modules

Arrays = npt.NDArray[Any]
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}


@dataclass(frozen=True)
class Case:
    """A model of transformers' ``family`` as a file of ``architecture``, with a tokenizer of the vectors."""

    architecture: str
    family: str
    tokenizer: str
    config: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "bert": Case("bert", "bert", "bert-uncased"),
    "xlm-roberta": Case("bert", "xlm-roberta", "xlm-roberta"),
    "roberta": Case("bert", "roberta", "roberta"),
    "nomic-bert": Case("nomic-bert", "nomic_bert", "bert-uncased"),
    "modern-bert": Case("modern-bert", "modernbert", "roberta", {"classifier_pooling": "mean", **WIDE}),
    # The sixth layer has no window. llama.cpp expects a common size of heads and of scores' factors.
    "gemma-embedding": Case(
        "gemma-embedding",
        "gemma3_text",
        "gemma",
        {
            **{"num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 7},
            **{"layer_types": None, **WIDE},
        },
    ),
}
POOLINGS = {"mean_tokens": PoolingType.MEAN, "cls_token": PoolingType.CLS, "lasttoken": PoolingType.LAST}
HEADS = ("query", "key", "value")
DENSE = {"2_Dense": (128, 192), "3_Dense": (192, 128)}
# Models whose positions are counted from the row after that of padding.
FROM_PADDING = ("roberta", "xlm-roberta")
PRE = {"modern-bert": "modern-bert", "bert": "roberta-bpe"}


def make_gguf_encoder(
    name: str, head: str, folder: Path, kind: Type = Type.F32, *, has_dense: bool = True, **config: Any
) -> tuple[Path, Any]:
    """Write a model of CASES into a folder, and as model.gguf there with layers' matrices of ``kind``, and unless
    ``has_dense`` is false with EmbeddingGemma's matrices behind the pooling. Returns the file and transformers' model.
    ``head`` is that of `make_encoder`.
    """
    case = CASES[name]
    sizes = {key: value for key, value in WIDE.items() if key in FAMILIES[case.family].sizes}
    model = make_encoder(case.family, head, folder, **{**sizes, **case.config, **config})
    if name == "gemma-embedding" and has_dense:
        add_dense(folder, head)
    return write_gguf_encoder(name, head, folder, kind), model


def add_dense(folder: Path, pooling: str) -> None:
    """Put the matrices of EmbeddingGemma behind the pooling of a checkpoint."""
    write_modules(folder, pooling, behind=("Dense", "Dense", "Normalize"), width=WIDE["hidden_size"])
    random = np.random.default_rng(8)
    for name, (inputs, outputs) in DENSE.items():
        (folder / name).mkdir(exist_ok=True)
        sizes = {"in_features": inputs, "out_features": outputs, "bias": False}
        write_json(folder / name / "config.json", **sizes, activation_function="torch.nn.modules.linear.Identity")
        matrix = random.normal(size=(outputs, inputs)).astype(np.float32) / inputs**0.5
        save_file({"linear.weight": matrix}, folder / name / "model.safetensors")


def write_gguf_encoder(name: str, head: str, folder: Path, kind: Type) -> Path:
    case = CASES[name]
    config = json.loads((folder / "config.json").read_text())
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, case.architecture)
    classifies = head.startswith("For")
    add_sizes(writer, case.architecture, config)
    writer.add_pooling_type(PoolingType.RANK if classifies else POOLINGS[head])
    if classifies:
        writer.add_classifier_output_labels(
            [label for _, label in sorted(config.get("id2label", {"0": "a", "1": "b"}).items())]
        )
    model = json.loads(VECTORS.read_text())["tokenizers"][case.tokenizer]
    add_tokenizer(writer, case.architecture, model, config["vocab_size"])
    enum = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == case.architecture)
    names = gguf.get_tensor_name_map(enum, config["num_hidden_layers"])
    for module, sizes in DENSE.items():
        if (folder / module).is_dir():
            writer.add_dense_features_dims(f"dense_{module[0]}", *sizes)
            matrix = load_file(folder / module / "model.safetensors")["linear.weight"]
            writer.add_tensor(f"dense_{module[0]}.weight", matrix)
    for own, tensor in converted(load_file(folder / "model.safetensors"), config):
        theirs = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, own
        data, own_kind = np.ascontiguousarray(tensor, np.float32), kind if is_stored(theirs, tensor) else Type.F32
        writer.add_tensor(theirs, blocks(data, own_kind), raw_dtype=own_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_stored(name: str, tensor: Arrays) -> bool:
    """Whether the converter quantizes a tensor."""
    return tensor.ndim > 1 and not name.startswith(("position_embd", "token_types"))


def converted(tensors: Mapping[str, Arrays], config: Mapping[str, Any]) -> Iterator[tuple[str, Arrays]]:
    """The tensors as the converter's classes name them. A classifier of BERT keeps its pooler, and heads of XLM-RoBERTa
    are joined, as in files of its relatives.
    """
    is_xlm_roberta = config["model_type"] == "xlm-roberta"
    if config["model_type"] == "gemma3_text":
        for name, each in tensors.items():
            yield f"model.{name}", each + 1 if name.endswith("norm.weight") else each
        return
    joined: dict[str, dict[str, Arrays]] = {}
    classifies = any("classifier" in name for name in tensors)
    for name, tensor in tensors.items():
        name = re.sub(r"^(bert|roberta|nomic_bert|model)\.", "", name)
        if name == "embeddings.position_embeddings.weight" and config["model_type"] in FROM_PADDING:
            tensor = tensor[config["pad_token_id"] + 1 :]
        if (part := re.fullmatch(r"(.*attention\.self)\.(query|key|value)\.(.*)", name)) and is_xlm_roberta:
            joined.setdefault(f"{part[1]}.{part[3]}", {})[part[2]] = tensor
            continue
        if name.startswith("pooler."):
            if not classifies:
                continue
            name = name.replace("pooler.dense", "classifier.dense")
        yield re.sub(r"^classifier\.(weight|bias)$", r"classifier.out_proj.\1", name), tensor
    for name, parts in joined.items():
        # The name map has the joint projection of others.
        name = name.replace("layer.", "layers.").replace("attention.self", "mixer.Wqkv")
        yield name, np.concatenate([parts[part] for part in HEADS])


def add_sizes(writer: Any, architecture: str, config: Mapping[str, Any]) -> None:
    offset = config["pad_token_id"] + 1 if config["model_type"] in FROM_PADDING else 0
    writer.add_context_length(config["max_position_embeddings"] - offset)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    rope = config.get("rope_parameters") or {}
    if architecture == "gemma-embedding":
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        return
    writer.add_layer_norm_eps(config["norm_eps" if architecture == "modern-bert" else "layer_norm_eps"])
    writer.add_causal_attention(False)
    if architecture == "modern-bert":
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(3)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    else:
        writer.add_token_type_count(config["type_vocab_size"])
    if architecture == "nomic-bert":
        writer.add_rope_freq_base(rope["rope_theta"])


def add_tokenizer(writer: Any, architecture: str, content: Mapping[str, Any], vocab_size: int) -> None:
    """The vocabulary of a tokenizer.json."""
    model, specials = content["model"], {each["id"]: each for each in content["added_tokens"]}
    scored, pieces = model["type"] == "Unigram", model.get("byte_fallback") is True
    ids = {token: number for number, (token, _) in enumerate(model["vocab"])} if scored else dict(model["vocab"])
    ids |= {each["content"]: number for number, each in specials.items()}
    tokens = {number: token for token, number in ids.items()}
    kinds = []
    for number in range(vocab_size):
        token, added = tokens.setdefault(number, f"[PAD{number}]"), specials.get(number)
        kind = TokenType.NORMAL if token in ids else TokenType.UNUSED
        if added is not None:
            kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        if model["type"] == "WordPiece" and kind != TokenType.CONTROL:
            tokens[number] = token[2:] if token.startswith("##") else f"\u2581{token}"
        if pieces and re.fullmatch("<0x..>", token):
            kind = TokenType.BYTE
        kinds.append(kind)
    kind_of = {"WordPiece": "bert", "Unigram": "t5", "BPE": "llama" if pieces else "gpt2"}[model["type"]]
    writer.add_tokenizer_model(kind_of)
    writer.add_tokenizer_pre(PRE[architecture] if kind_of == "gpt2" else "default")
    writer.add_token_list([tokens[number] for number in range(vocab_size)])
    writer.add_token_types(kinds)
    first, last = ("[CLS]", "[SEP]") if model["type"] == "WordPiece" else ("<s>", "</s>")
    named = {
        "bos": first,
        "cls": first,
        "eos": last,
        "seperator": last,
        "unknown": "[UNK]" if first == "[CLS]" else "<unk>",
    }
    for key, token in named.items():
        if not (model["type"] == "WordPiece" and key == "eos"):
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", ids[token])
    if scored:
        scores = [score for _, score in model["vocab"]]
        writer.add_token_scores([*scores, *[-1000.0] * (vocab_size - len(scores))])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        charsmap = content["normalizer"]["precompiled_charsmap"]
        writer.add_precompiled_charsmap(base64.b64decode(charsmap))
    if pieces:
        writer.add_token_scores([-float(number) for number in range(vocab_size)])
        writer.add_add_space_prefix(False)
    elif model["type"] == "BPE":
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    if model["type"] != "WordPiece":
        for key in ("bos", "eos", "sep")[: 2 if pieces else 3]:
            getattr(writer, f"add_add_{key}_token")(True)
