"""Writes tiny GGUF files with the package gguf, as llama.cpp's convert_hf_to_gguf.py does.

The converter itself and llama.cpp's own reader gave the same results for these families on 2026-11-24 (llama-cpp-python
0.3.36); for gemma, minicpm, nemotron, phi2, seed_oss and starcoder2 the reader did on 2026-11-28, and that of xllamacpp
2026.10.11549 for qwen3moe, lfm2 and qwen35.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from decoder_families import CONFIGS, FAMILIES, HYBRIDS, PLAIN_FAMILIES, write
from gguf import GGMLQuantizationType as Type
from gguf_metadata import WHOLE_HEADS, add_apertus, add_byte_tokenizer, add_sizes
from safetensors.numpy import load_file
from tiny_models import SIZES

Arrays = npt.NDArray[Any]
# Sizes divisible into blocks of 32 weights.
WIDE = {
    "hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
# The same for blocks of 256.
WIDER = {**WIDE, "hidden_size": 256, "num_attention_heads": 8}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_state": 32, "mamba_expand": 2}
FOUR_LAYERS: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA_4: dict[str, Any] = {"global_head_dim": 64, "sliding_window": 11, "final_logit_softcapping": 30.0}
# Architecture -> (transformers' family, its configuration besides the sizes).
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2", {"sliding_window": 11}),
    # Every sixth layer has no window.
    "gemma3": ("Gemma3", {**FAMILIES["gemma3_text"][1], "num_hidden_layers": 7, "layer_types": None}),
    "phi3": ("Phi3", {}),
    "granite": FAMILIES["granite"],
    "olmo2": ("Olmo2", {}),
    "gemma": PLAIN_FAMILIES["gemma"],
    "minicpm": ("Granite", {**PLAIN_FAMILIES["minicpm"][1], "attention_multiplier": 32**-0.5}),
    "nemotron": FAMILIES["nemotron"],
    "phi2": ("Phi", {}),
    "seed_oss": ("SeedOss", {"attention_bias": True}),
    "starcoder2": ("Starcoder2", {}),
    "olmo": ("Olmo", {"clip_qkv": 0.7}),
    # 8 of 32 elements are rotated.
    "gptneox": ("GPTNeoX", {}),
    "apertus": ("Apertus", {}),
    "qwen3moe": ("Qwen3Moe", {**EXPERTS, "moe_intermediate_size": 96, "norm_topk_prob": True}),
    "olmoe": ("Olmoe", EXPERTS),
    "granitemoe": FAMILIES["granitemoe"],
    "gpt-oss": ("GptOss", {**FAMILIES["gpt_oss"][1], "initial_context_length": 64}),
    "granitehybrid": ("GraniteMoeHybrid", {**HYBRIDS["granitemoehybrid"][1], **MAMBA, "shared_intermediate_size": 96}),
    "granitehybrid_experts": (
        "GraniteMoeHybrid",
        {**HYBRIDS["granitemoehybrid_experts"][1], **MAMBA, "shared_intermediate_size": 96},
    ),
    # Its sizes in llama.cpp are not those of Falcon-H1's hidden rows.
    "falcon-h1": ("FalconH1", {**HYBRIDS["falcon_h1"][1], **MAMBA, "mamba_n_groups": 2, "mamba_d_ssm": 192}),
    "mamba2": (
        "Mamba2",
        {**HYBRIDS["mamba2"][1], "num_heads": 8, "head_dim": 32, "expand": 2, "state_size": 32},
    ),
    # Upper layers share the keys and values of lower ones and have wider feed-forwards.
    "gemma4": ("Gemma4", {**FAMILIES["gemma4_text"][1], "hidden_size_per_layer_input": 32, **GEMMA_4, **FOUR_LAYERS}),
    "gemma4_experts": (
        "Gemma4",
        {**FAMILIES["gemma4_experts"][1], "num_global_key_value_heads": 1, "moe_intermediate_size": 96, **GEMMA_4},
    ),
    "lfm2": ("Lfm2", {**HYBRIDS["lfm2"][1], "conv_bias": False, "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("Lfm2Moe", {**HYBRIDS["lfm2_moe"][1], "moe_intermediate_size": 96, "routed_scaling_factor": 1.0}),
    # Values of 2 heads for each head of keys.
    "qwen35": (
        "Qwen3_5",
        {
            **HYBRIDS["qwen3_5_text"][1],
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
    ),
    # Every fourth layer does not rotate.
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
}
# Architectures whose rows of q and k are in the order in which llama.cpp rotates them.
INTERLEAVED = ("granite", "granitehybrid", "granitemoe", "llama", "minicpm", "olmo", "smollm3")
# Architectures whose norms are stored plus one.
SHIFTED = ("gemma", "gemma2", "gemma3", "nemotron", "qwen35")


def make_gguf(
    architecture: str,
    folder: Path,
    stored: Callable[[str], Type] = lambda _: Type.F32,
    sizes: Mapping[str, Any] = WIDE,
    **metadata: Any,
) -> tuple[Path, npt.NDArray[np.float32]]:
    """Write a model of MODELS as ``folder``/model.gguf. ``stored``: the type of each matrix, by its name in the file.

    Returns the file, and transformers' logits of `decoder_families.TOKENS` for the float weights.
    """
    import torch
    import transformers

    family, config = MODELS[architecture]
    architecture = architecture.removesuffix("_experts")
    settings = {**SIZES, **config, **sizes}
    if architecture == "mamba2":
        del settings["num_attention_heads"], settings["num_key_value_heads"]
    if architecture in WHOLE_HEADS:
        del settings["head_dim"]
    if architecture == "gptneox":
        del settings["num_key_value_heads"]
    if architecture == "olmoe":
        # llama.cpp expects a norm of keys that is as wide as that of queries.
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    if architecture in ("gemma2", "gemma3"):
        settings["query_pre_attn_scalar"] = settings["head_dim"]
    torch.manual_seed(len(architecture))
    config_class = getattr(transformers, CONFIGS.get(family, f"{family}Config"))
    logits = write(getattr(transformers, f"{family}ForCausalLM")(config_class(**settings)).float(), folder)
    return write_gguf(architecture, folder, stored, **metadata), logits


def write_gguf(
    architecture: str, folder: Path, stored: Callable[[str], Type] = lambda _: Type.F32, **metadata: Any
) -> Path:
    """Write the checkpoint in a folder as ``folder``/model.gguf. ``metadata`` are keys to add, with "__" for "."."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    config["draft_layers"] = int("mtp.fc.weight" in tensors)
    path = folder / "model.gguf"
    architecture = architecture.removesuffix("_experts")
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, architecture, config)
    add_byte_tokenizer(writer, config["vocab_size"])
    for key, value in metadata.items():
        name = key.replace("__", ".")
        writer.add_key_value(name, value, value_type(value))
    enum = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(enum, config["num_hidden_layers"] + config["draft_layers"])
    if architecture == "apertus":
        tensors = add_apertus(writer, tensors, config)
    for name, tensor in converted(tensors, config):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        theirs = NAMES.get(name.rpartition("layers.")[2].partition(".")[2]) or name
        if not theirs.startswith("blk."):
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        theirs = theirs.format(bid=name.rpartition("layers.")[2].partition(".")[0])
        if architecture in INTERLEAVED and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            tensor = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:]).swapaxes(1, 2)
            tensor = tensor.reshape(-1, *tensor.shape[3:])
        if architecture in SHIFTED and name.endswith("norm.weight") and "linear_attn" not in name:
            tensor = tensor + 1
        is_matrix = tensor.ndim > 1 and not re.search(r"conv|bias|ffn_gate_inp|ssm_(a|d|norm)\b", theirs)
        kind = stored(theirs) if is_matrix else Type.F32
        data = np.ascontiguousarray(tensor, np.float32)
        writer.add_tensor(theirs, blocks(data, kind), raw_dtype=None if kind == Type.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Names that the converter changes before it looks them up.
NAMES = {
    "eh_proj.weight": "blk.{bid}.nextn.eh_proj.weight",
    "enorm.weight": "blk.{bid}.nextn.enorm.weight",
    "hnorm.weight": "blk.{bid}.nextn.hnorm.weight",
    "shared_head.norm.weight": "blk.{bid}.nextn.shared_head_norm.weight",
    "linear_attn.dt_bias": "blk.{bid}.ssm_dt.bias",
    "self_attn.sinks": "blk.{bid}.attn_sinks.weight",
    "feed_forward.expert_bias": "blk.{bid}.exp_probs_b.bias",
    "linear_attn.A_log": "blk.{bid}.ssm_a",
    "layer_scalar": "blk.{bid}.layer_output_scale.weight",
    "router.scale": "blk.{bid}.ffn_gate_inp.scale",
    "router.per_expert_scale": "blk.{bid}.ffn_down_exps.scale",
    "experts.gate_up_proj": "blk.{bid}.ffn_gate_up_exps.weight",
    "experts.down_proj": "blk.{bid}.ffn_down_exps.weight",
}


def converted(tensors: Mapping[str, Arrays], config: Mapping[str, Any]) -> Iterator[tuple[str, Arrays]]:
    """The tensors as the converter's classes of each family change them."""
    stacks: dict[str, list[Arrays]] = {}
    for given, tensor in tensors.items():
        name = behind_layers(given, config["num_hidden_layers"])
        module = name.rpartition(".layers.")[2].partition(".")[2]
        if separate := re.fullmatch(r"(.*\.experts)\.\d+\.(\w+\.weight)", name):
            stack = stacks.setdefault(f"{separate[1]}.{separate[2]}", [])
            stack.append(tensor)
            if len(stack) == (config.get("num_experts") or config["num_local_experts"]):
                # The name map has those of LFM2's experts without a prefix.
                stem = separate[1].removeprefix("model.") if "feed_forward" in name else separate[1]
                yield f"{stem}.{separate[2]}", np.stack(stack)
        elif module == "shared_mlp.input_linear.weight":
            layer, suffix = name.split(".layers.")[1].partition(".")[0], "_shexp" if config["num_local_experts"] else ""
            for part, half in zip(("gate", "up"), np.split(tensor, 2), strict=True):
                yield f"blk.{layer}.ffn_{part}{suffix}.weight", half
        elif module == "shared_mlp.output_linear.weight" and not config["num_local_experts"]:
            yield f"blk.{name.split('.layers.')[1].partition('.')[0]}.ffn_down.weight", tensor
        elif re.match(r"(mamba|mixer)\.", module):
            name = name.replace(".dt_bias", ".dt_proj.bias")
            yield name, of_mamba(module.partition(".")[2], tensor * falcon_factor(name, config), config)
        elif config["model_type"] == "falcon_h1":
            yield name, tensor * falcon_factor(name, config)
        elif module == "block_sparse_moe.input_linear.weight":
            stem = name.removesuffix("input_linear.weight")
            # The name map has those of Mixtral's experts.
            for part, half in zip(("w1", "w3"), np.split(tensor, 2, axis=1), strict=True):
                yield f"{stem}experts.{part}.weight", half
        elif module.startswith("mlp.experts.gate_up_proj"):
            matrix = tensor if module.endswith("bias") else tensor.swapaxes(1, 2)
            kind = "bias" if module.endswith("bias") else "weight"
            stem = name.partition("gate_up_proj")[0]
            yield f"{stem}gate_proj.{kind}", matrix[:, ::2]
            yield f"{stem}up_proj.{kind}", matrix[:, 1::2]
        elif module == "mlp.experts.down_proj":
            yield f"{name}.weight", tensor.swapaxes(1, 2)
        elif module == "mlp.experts.down_proj_bias":
            yield name.replace("_bias", ".bias"), tensor
        elif module.startswith("attention.query_key_value."):
            heads = config["num_attention_heads"]
            yield name, tensor.reshape(heads, 3, len(tensor) // 3 // heads, -1).swapaxes(0, 1).reshape(tensor.shape)
        elif "conv.conv" in name:
            yield name, tensor.squeeze(1)
        elif "linear_attn" in name:
            yield name, with_tiled_heads(module.removeprefix("linear_attn."), tensor, config)
        else:
            yield name, tensor


def behind_layers(name: str, layers: int) -> str:
    """The name of a tensor of heads that draft tokens, which are a layer behind the others."""
    own = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
    if not name.startswith("mtp."):
        return name
    module = name.removeprefix("mtp.").removeprefix("layers.0.")
    stem, _, kind = module.rpartition(".")
    return f"model.layers.{layers}.{own.get(stem, stem)}.{kind}"


def of_mamba(module: str, tensor: Arrays, config: Mapping[str, Any]) -> Arrays:
    """A tensor of Mamba-2, whose vectors have two axes in a file."""
    if module == "A_log":
        tensor = -np.exp(tensor)
    if module in ("A_log", "D"):
        return tensor.reshape(-1, 1)
    if module == "norm.weight":
        return tensor.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    return tensor.squeeze(1) if module == "conv1d.weight" else tensor


def falcon_factor(name: str, config: Mapping[str, Any]) -> Any:
    """What a tensor of Falcon-H1 is multiplied by, because llama.cpp has no keys for its factors."""
    if config["model_type"] != "falcon_h1":
        return 1
    if "mamba.in_proj" in name:
        width, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        rows = (width, width, states, states, config["mamba_n_heads"])
        return np.repeat(config["ssm_multipliers"], rows)[:, None] * config["ssm_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    inside = config["attention_in_multiplier"]
    factors = {
        "down_proj": down, "gate_proj": gate, "k_proj": config["key_multiplier"] * inside, "q_proj": inside,
        "v_proj": inside, "o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"], "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    return next((factor for part, factor in factors.items() if f".{part}." in f".{name}"), 1)


def with_tiled_heads(module: str, tensor: Arrays, config: Mapping[str, Any]) -> Arrays:
    """A tensor of a gated delta rule: heads of values that share a key are not neighbours in a file."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size, first = config["linear_value_head_dim"], 2 * keys * config["linear_key_head_dim"]

    def tiled(rows: Arrays, size: int) -> Arrays:
        return rows.reshape(keys, values // keys, size, -1).swapaxes(0, 1).reshape(rows.shape)

    match module:
        case "A_log":
            return -np.exp(tiled(tensor, 1))
        case "dt_bias" | "in_proj_a.weight" | "in_proj_b.weight":
            return tiled(tensor, 1)
        case "in_proj_z.weight":
            return tiled(tensor, size)
        case "in_proj_qkv.weight" | "conv1d.weight":
            rows = tensor.reshape(len(tensor), -1)
            return np.concatenate([rows[:first], tiled(rows[first:], size)])
        case "out_proj.weight":
            return np.ascontiguousarray(tiled(np.ascontiguousarray(tensor.T), size).T)
    return tensor


def value_type(value: Any) -> gguf.GGUFValueType:
    kinds = gguf.GGUFValueType
    return {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING, list: kinds.ARRAY}[
        type(value)
    ]


def blocks(matrix: Arrays, kind: Type) -> Arrays:
    """A matrix in blocks: rounded to nearest if the package does that, else random codes of about its size."""
    if kind == Type.F32:
        return matrix
    try:
        return np.asarray(gguf.quants.quantize(matrix, kind))
    except NotImplementedError:
        return random_blocks(kind, matrix.shape, float(np.std(matrix)))


def random_blocks(kind: Type, shape: tuple[int, ...], deviation: float) -> Arrays:
    """Blocks of random bytes, whose weights have about this deviation."""
    rng = np.random.default_rng(kind.value + shape[0])
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), np.uint8)
    for first in SCALES[kind]:
        data[..., first : first + 2] = np.full((*data.shape[:-1], 1), 0.01, np.float16).view(np.uint8)
    flat = data.reshape(-1, size)
    found = float(np.std(gguf.quants.dequantize(flat[:64], kind)))
    scale = rng.uniform(0.5, 1.5, (*data.shape[:-1], 1)) * 0.01 * deviation / found
    for first in SCALES[kind]:
        data[..., first : first + 2] = scale.astype(np.float16).view(np.uint8)
    return data.reshape(*shape[:-1], -1)


# Where the float16 factors of a block are.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
    Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0], Type.IQ4_XS: [0],
    Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0], Type.IQ3_S: [0], Type.IQ1_S: [0],
    Type.TQ1_0: [52], Type.TQ2_0: [64],
}  # fmt: skip
