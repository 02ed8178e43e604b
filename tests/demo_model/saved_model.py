"""Writes a demo model as a Hugging Face folder after training, and reads it for evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from nearfar.compiler.runtime.errors import CheckpointError

from .model import Llama, LlamaConfig
from .tokenizer import BOS, CHAT_TEMPLATE, END, PAD


def write_checkpoint(folder: Path, model: Llama, tokenizer: Tokenizer, dtype: str = "float32") -> None:
    """Write config, weights (``dtype``: float32 or float16), tokenizer and chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.model.config
    write_json(folder / "config.json", _config(config, dtype))
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": BOS, "eos_token_id": END, "pad_token_id": PAD, "do_sample": False},
    )
    write_tokenizer(folder, tokenizer, CHAT_TEMPLATE, config.max_position_embeddings)
    weights = {
        name: tensor.detach().to(getattr(torch, dtype)).contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(folder: Path, tokenizer: Tokenizer, chat_template: str, positions: int) -> None:
    """The files of a tokenizer with the tokens <bos>, <end> and <pad>, whose chat template writes <bos>."""
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<end>",
            "pad_token": "<pad>",
            # The chat template writes <bos>, so the tokenizer must not add it again.
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": positions,
            "chat_template": chat_template,
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def read_checkpoint(folder: Path) -> tuple[Llama, Tokenizer]:
    """Read a folder that ``write_checkpoint`` wrote. Raises CheckpointError if a file is missing."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing; train the demo model first: make demo-model")
    stored = json.loads((folder / "config.json").read_text())
    config = LlamaConfig(**{name: stored[name] for name in LlamaConfig.__dataclass_fields__})
    model = Llama(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def _config(config: LlamaConfig, dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": END,
        "pad_token_id": PAD,
        **{name: getattr(config, name) for name in LlamaConfig.__dataclass_fields__},
    }
