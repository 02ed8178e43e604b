"""genai_config.json: what ONNX Runtime GenAI must know of a decoder graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.pipeline.target import ExportOptions

GENAI_CONFIG_FILE = "genai_config.json"


def write_genai_config(folder: Path, model_file: str, checkpoint: Checkpoint, options: ExportOptions) -> None:
    (folder / GENAI_CONFIG_FILE).write_text(json.dumps(genai_config(model_file, checkpoint, options), indent=1))


def genai_config(model_file: str, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
    spec = checkpoint.spec
    eos = list(spec.eos_token_ids)
    # GenAI asks for these even where a model has none.
    first = eos[0] if eos else 0
    providers: list[dict[str, Any]] = [{options.device: {}}] if options.device in PROVIDERS else []
    decoder = {
        "session_options": {"log_id": "nearfar", "provider_options": providers},
        "filename": model_file,
        "head_size": spec.head_dim,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    }
    model = {
        "type": spec.model_type,
        "vocab_size": spec.vocab_size,
        "context_length": options.context,
        "bos_token_id": first if spec.bos_token_id is None else spec.bos_token_id,
        "eos_token_id": eos,
        "pad_token_id": first,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": options.context, "past_present_share_buffer": True}
    return {"model": model, "search": search}


# The execution providers that GenAI knows by the name of our devices; the CPU is none.
PROVIDERS = ("webgpu", "cuda")
