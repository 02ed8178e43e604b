"""genai_config.json: the configuration of a decoder graph for ONNX Runtime GenAI.

It omits sliding windows: GenAI's "sliding_window" is for caches as short as the window, but this graph's caches hold
the full context, of which its attention reads a window.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.target import ExportOptions
from nearfar.compiler.runtime.errors import UnsupportedModel

GENAI_CONFIG_FILE = "genai_config.json"


# GenAI's name for any decoder. Its names for model families add their own rules, such as phi3's second prefill at 4,097
# tokens.
ANY_DECODER = "decoder"


# Its families with states, by what a layer mixes with, and its names for such layers.
STATEFUL = {"short_conv": "lfm2", "gated_delta": "qwen3_5_text"}
LAYER_TYPES = {"attention": "full_attention", "short_conv": "conv", "gated_delta": "linear_attention"}


def genai_allocates(spec: ModelSpec) -> bool:
    """Whether every layer has keys and values of its own, all of one shape, or a state that GenAI knows. GenAI and
    Transformers.js allocate no others; without its configuration, GenAI refuses the folder.
    """
    return caches_alike(spec) and LAYER_TYPES.keys() >= set(spec.mixers)


def caches_alike(spec: ModelSpec) -> bool:
    """Whether every layer that attends has keys and values of its own, all of one shape."""
    alike = len({spec.heads_of(layer) for layer in range(spec.num_layers)}) == 1
    return not spec.num_kv_shared_layers and alike


def one_shape(graph: Graph) -> tuple[int, int]:
    """The kv heads and the head size of every layer. Raises UnsupportedModel if layers differ."""
    shapes = {(state.shape[2], state.shape[4]) for state in graph.states.values() if state.shape[0] == "P"}
    if len(shapes) != 1:
        found = ", ".join(f"{heads} kv heads of {size} elements" for heads, size in sorted(shapes, key=str))
        raise UnsupportedModel(
            f"layers differ in their keys and values ({found}), and ONNX Runtime GenAI and Transformers.js allocate "
            f"all layers alike; "
            "use --target webgpu, cpu or cuda"
        )
    ((kv_heads, head_dim),) = shapes
    assert isinstance(kv_heads, int)
    assert isinstance(head_dim, int)
    return kv_heads, head_dim


def write_genai_config(
    folder: Path, model_file: str, checkpoint: Checkpoint, options: ExportOptions, shape: tuple[int, int]
) -> None:
    """``shape``: `one_shape` of the graph."""
    (folder / GENAI_CONFIG_FILE).write_text(json.dumps(genai_config(model_file, checkpoint, options, shape), indent=1))


def genai_config(
    model_file: str, checkpoint: Checkpoint, options: ExportOptions, shape: tuple[int, int]
) -> dict[str, Any]:
    spec, (num_kv_heads, head_dim) = checkpoint.spec, shape
    eos = list(spec.eos_token_ids)
    # GenAI requires these even for a model without them.
    first = eos[0] if eos else 0
    providers: list[dict[str, Any]] = [{options.device: {}}] if options.device in PROVIDERS else []
    decoder: dict[str, Any] = {
        "session_options": {"log_id": "nearfar", "provider_options": providers},
        "filename": model_file,
        "head_size": head_dim,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": num_kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    family = next((STATEFUL[mixer] for mixer in spec.mixers if mixer in STATEFUL), ANY_DECODER)
    if family != ANY_DECODER:
        add_states(decoder, spec)
    model = {
        "type": family,
        "vocab_size": spec.vocab_size,
        "context_length": options.context,
        "bos_token_id": first if spec.bos_token_id is None else spec.bos_token_id,
        "eos_token_id": eos,
        "pad_token_id": first,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": options.context, "past_present_share_buffer": True}
    return {"model": model, "search": search}


def add_states(decoder: dict[str, Any], spec: ModelSpec) -> None:
    """Name the layers' states, and the number of inputs that a convolution keeps."""
    assert spec.states is not None
    kinds = ("conv", "recurrent") if spec.states.heads else ("conv",)
    decoder["layer_types"] = [LAYER_TYPES[mixer] for mixer in spec.mixers]
    decoder["conv_cache_size"] = spec.states.taps - 1
    decoder["inputs"] |= {f"past_{kind}_names": f"past_{kind}.%d" for kind in kinds}
    decoder["outputs"] |= {f"present_{kind}_names": f"present_{kind}.%d" for kind in kinds}


# GenAI's execution providers, by the names of our devices; the CPU is not one of them.
PROVIDERS = ("webgpu", "cuda")
