"""Writes the demo encoder as a folder of sentence-transformers, and reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from .bert import Bert, BertConfig
from .wordpiece import PAD

LAYER = "encoder.layer.0"
MODULES = {
    "words": "embeddings.word_embeddings",
    "word_norm": "embeddings.LayerNorm",
    "query": f"{LAYER}.attention.self.query",
    "key": f"{LAYER}.attention.self.key",
    "value": f"{LAYER}.attention.self.value",
    "mix": f"{LAYER}.attention.output.dense",
    "mix_norm": f"{LAYER}.attention.output.LayerNorm",
    "up": f"{LAYER}.intermediate.dense",
    "down": f"{LAYER}.output.dense",
    "down_norm": f"{LAYER}.output.LayerNorm",
}
# transformers' names of the parameters of BertModel, by those of Bert.
NAMES = {
    f"{module}.{kind}": f"{stored}.{kind}"
    for module, stored in MODULES.items()
    for kind in (("weight",) if module == "words" else ("weight", "bias"))
}
POSITIONS, TYPES = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"


def write_checkpoint(folder: Path, model: Bert, tokenizer: Tokenizer) -> None:
    """Weights are float16."""
    config = model.config
    files: dict[str, object] = {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "torch_dtype": "float16",
            "hidden_act": "gelu",
            "pad_token_id": PAD,
            "attention_probs_dropout_prob": 0.0,
            "hidden_dropout_prob": 0.0,
            **asdict(config),
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "sentence_bert_config.json": {"max_seq_length": config.max_position_embeddings, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": config.hidden_size,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "2_Dense/config.json": {
            "in_features": config.hidden_size,
            "out_features": config.hidden_size,
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "mask_token": "[MASK]",
            "clean_up_tokenization_spaces": False,
            "model_max_length": config.max_position_embeddings,
        },
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = {stored: model.get_parameter(name).detach() for name, stored in NAMES.items()}
    weights[POSITIONS] = torch.zeros(config.max_position_embeddings, config.hidden_size)
    weights[TYPES] = torch.zeros(config.type_vocab_size, config.hidden_size)
    dense = {f"linear.{name}": model.get_parameter(f"dense.{name}").detach() for name in ("weight", "bias")}
    for file, tensors in (("model.safetensors", weights), ("2_Dense/model.safetensors", dense)):
        halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
        save_file(halves, folder / file, metadata={"format": "pt"})


def read_checkpoint(folder: Path) -> tuple[Bert, Tokenizer]:
    """The encoder in float32."""
    stored = json.loads((folder / "config.json").read_text())
    model = Bert(BertConfig(**{name: stored[name] for name in BertConfig.__dataclass_fields__}))
    weights = load_file(folder / "model.safetensors")
    if weights[POSITIONS].any() or weights[TYPES].any():
        raise ValueError(f"{folder}: positions and types have vectors; this is not an encoder of this recipe")
    state = {name: weights[stored_name].float() for name, stored_name in NAMES.items()}
    for name, tensor in load_file(folder / "2_Dense" / "model.safetensors").items():
        state[name.replace("linear", "dense")] = tensor.float()
    model.load_state_dict(state)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def embed_texts(model: Bert, tokenizer: Tokenizer, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """The vectors (texts, hidden) of texts, of which only as much counts as the context holds."""
    most = model.config.max_position_embeddings
    rows = [tokenizer.encode(text).ids for text in texts]
    rows = [ids if len(ids) <= most else [*ids[: most - 1], ids[-1]] for ids in rows]
    longest = max(map(len, rows))
    with torch.no_grad():
        vectors: npt.NDArray[np.float32] = model(
            torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in rows])
        ).numpy()
    return vectors
