"""What a GGUF file says of its model beside the tensors: sizes, and a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Arrays = npt.NDArray[Any]
# Architectures whose heads have the hidden size divided by their number.
WHOLE_HEADS = (
    "gptneox", "granitehybrid", "granitemoe", "lfm2", "lfm2moe", "minicpm", "olmo", "olmoe", "phi2", "phi3", "qwen2",
)  # fmt: skip
# The keys of the epsilon of LayerNorms.
CENTERED = {
    "gptneox": "layer_norm_eps", "nemotron": "norm_eps", "olmo": "", "phi2": "layer_norm_eps",
    "starcoder2": "norm_epsilon",
}  # fmt: skip


def add_sizes(writer: Any, architecture: str, config: Mapping[str, Any]) -> None:
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + config["draft_layers"])
    if config["draft_layers"]:
        writer.add_nextn_predict_layers(config["draft_layers"])
    add_states(writer, architecture, config)
    if architecture == "mamba2":
        writer.add_context_length(2**20)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
        return
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    add_experts(writer, architecture, config)
    if architecture == "gemma4":
        add_gemma4(writer, config)
        return
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    kinds = config.get("layer_types") or []
    kv_heads = config.get("num_key_value_heads", heads)
    recurrent = [kind == {"granitehybrid": "linear_attention"}.get(architecture, "conv") for kind in kinds]
    writer.add_head_count_kv([0 if each else kv_heads for each in recurrent] if any(recurrent) else kv_heads)
    if architecture in CENTERED:
        writer.add_layer_norm_eps(config.get(CENTERED[architecture], 1e-5))
    else:
        writer.add_layer_norm_rms_eps(config.get("norm_eps") or config["rms_norm_eps"])
    if architecture not in WHOLE_HEADS:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rotation = config["rope_parameters"] or {"rope_theta": 10000.0}
    writer.add_rope_freq_base(rotation.get("full_attention", rotation)["rope_theta"])
    if architecture == "gemma3":
        writer.add_rope_freq_base_swa(rotation["sliding_attention"]["rope_theta"])
        if (factor := rotation["full_attention"].get("factor")) is not None:
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(factor)
    else:
        writer.add_rope_dimension_count(int(head_dim * rotation.get("partial_rotary_factor", 1)))
    if architecture in ("gemma2", "gemma3", "gpt-oss"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture == "olmo":
        writer.add_clamp_kqv(config["clip_qkv"])
    if architecture == "gptneox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if architecture == "granitehybrid":
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        writer.add_rope_scaling_finetuned(False)
    if architecture in ("granite", "granitehybrid", "granitemoe"):
        writer.add_attention_scale(config["attention_multiplier"])
    if architecture in ("granite", "granitehybrid", "granitemoe", "minicpm"):
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def add_apertus(writer: Any, tensors: dict[str, Arrays], config: Mapping[str, Any]) -> dict[str, Arrays]:
    """Write the numbers of the activations and the scaling of the rotation. Returns the other tensors."""
    for part in ("alpha_p", "alpha_n", "beta", "eps"):
        names = [f"model.layers.{layer}.mlp.act_fn.{part}" for layer in range(config["num_hidden_layers"])]
        getattr(writer, f"add_xielu_{part}")([float(tensors.pop(name).reshape(-1)[0]) for name in names])
    rope, size = config["rope_parameters"], config["head_dim"]
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    turns = rope["original_max_position_embeddings"] / lengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    writer.add_tensor("rope_freqs.weight", (1 / (smooth + (1 - smooth) / rope["factor"])).astype(np.float32))
    return tensors


def add_gemma4(writer: Any, config: Mapping[str, Any]) -> None:
    layers = config["num_hidden_layers"]
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    sections = config.get("per_layer_config") or {}
    full: Mapping[str, Any] = next(iter(sections.values()), {})
    kv_heads, full_kv_heads = config["num_key_value_heads"], full.get("num_key_value_heads")
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([kv_heads if each else full_kv_heads or kv_heads for each in windows])
    shared = config["num_kv_shared_layers"]
    wide = [config["use_double_wide_mlp"] and layer >= layers - shared for layer in range(layers)]
    writer.add_feed_forward_length([config["intermediate_size"] * (2 if each else 1) for each in wide])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windows)
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    head_dim = full["head_dim"]
    for size, suffix in ((head_dim, ""), (config["head_dim"], "_swa")):
        for name in ("key_length", "value_length", "rope_dimension_count"):
            getattr(writer, f"add_{name}{suffix}")(size)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    rotated = int(head_dim * rope["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.where(np.arange(head_dim // 2) < rotated, 1, 1e30).astype(np.float32))


def add_experts(writer: Any, architecture: str, config: Mapping[str, Any]) -> None:
    experts = config.get("num_experts") or config.get("num_local_experts")
    if not experts:
        return
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
    if size := config.get("moe_intermediate_size") or (architecture == "gpt-oss" and config["intermediate_size"]):
        writer.add_expert_feed_forward_length(size)
    if architecture == "lfm2moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture == "gpt-oss":
        rope = config["rope_parameters"]
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def add_states(writer: Any, architecture: str, config: Mapping[str, Any]) -> None:
    sizes = mamba_sizes(config)
    if sizes:
        heads, head_dim, groups, states, taps = sizes
        writer.add_ssm_conv_kernel(taps)
        writer.add_ssm_state_size(states)
        writer.add_ssm_group_count(groups)
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * head_dim)
    if architecture in ("lfm2", "lfm2moe"):
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if architecture == "qwen35":
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
        writer.add_full_attention_interval(3)
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def mamba_sizes(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The heads of Mamba-2, their size, the groups, the size of a state, and the taps."""
    if config["model_type"] == "mamba2":
        keys = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    elif "mamba_n_heads" in config:
        keys = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    else:
        return None
    return tuple(config[key] for key in keys)


def add_byte_tokenizer(writer: Any, vocab_size: int) -> None:
    """The bytes, one merge, two control tokens and unused ones."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "th", "<s>", "</s>"]
    kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * 2
    while len(tokens) < vocab_size:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}")
