"""Keys of config.json that do not change what a trained model computes: those of libraries and trainers, which write
them into the configuration of any model, at its top and in its sections. An architecture adds its own.
"""

from __future__ import annotations

# How transformers 4 and 5 load, run and describe a model.
OF_TRANSFORMERS = frozenset(
    {
        "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
        "_experts_implementation", "_flash_attn_2_enabled", "_name_or_path", "_output_attentions", "_pad_token_id",
        "attention_softmax_in_fp32", "attn_implementation", "auto_map", "base_model_name_or_path", "base_model_pp_plan",
        "base_model_tp_plan", "chunk_size_feed_forward", "cls_token_id", "custom_pipelines", "decoder_start_token_id",
        "device_map", "dtype", "experts_implementation", "export_model_type", "finetuning_task",
        "gradient_checkpointing", "id2label", "is_decoder", "is_llama_config", "is_matryoshka", "label2id", "language",
        "low_cpu_mem_usage", "mask_token_id", "matryoshka_dimensions", "max_sequence_length", "model_max_length",
        "name", "name_or_path", "num_labels", "num_logits_to_keep", "output_attentions", "output_hidden_states",
        "output_past", "output_router_logits", "pad_token_id", "padding_side", "prefix", "pretraining_tp",
        "problem_type", "processor_class", "return_dict", "sbert_ce_default_activation_function",
        "sentence_transformers", "sep_token_id", "summary_activation", "summary_first_dropout", "summary_hidden_size",
        "summary_last_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
        "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "tokenizer_model_max_length",
        "tokenizer_padding_side", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
        "trust_remote_code", "unk_token_id", "use_bfloat16", "use_cache", "use_flash_attention",
        "use_flash_attention_2", "use_fused_rms_norm", "use_fused_rope", "use_return_dict", "use_sdpa", "xla_device",
    }
)  # fmt: skip
# Choices of a generation, which belong into generation_config.json.
OF_GENERATION = frozenset(
    {
        "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
        "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "cache_config", "cache_implementation",
        "compile_config", "constraints", "continuous_batching_config", "disable_compile", "diversity_penalty",
        "do_sample", "dola_layers", "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
        "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id",
        "forced_eos_token_id", "generation_config", "guidance_scale", "is_assistant", "length_penalty", "low_memory",
        "max_cache_len", "max_length", "max_matching_ngram_size", "max_new_tokens", "max_time", "min_length",
        "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "num_beam_groups", "num_beams", "num_return_sequences", "output_logits", "output_scores", "penalty_alpha",
        "prefill_chunk_size", "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits",
        "repetition_penalty", "return_dict_in_generate", "sequence_bias", "speculation_type", "stop_strings",
        "suppress_tokens", "target_lookbehind", "temperature", "token_healing", "top_h", "top_k", "top_p", "typical_p",
        "use_mtp", "watermarking_config",
    }
)  # fmt: skip
# What only a training computes: dropout, noise, the first values of weights, losses.
OF_TRAINING = frozenset(
    {
        "activation_dropout", "attention_dropout", "attention_dropout_prob", "attention_probs_dropout_prob",
        "attn_dropout", "attn_pdrop", "classifier_dropout", "dropout", "emb_pdrop", "embd_pdrop", "embed_dropout",
        "embedding_dropout", "ffn_dropout", "fuse_cross_entropy", "hidden_dropout", "hidden_dropout_prob", "init_std",
        "initializer_factor", "initializer_gain", "initializer_range", "initializer_std", "label_smoothing",
        "label_smoothing_factor", "layerdrop", "lm_head_dropout", "loss_type", "mlp_dropout", "neftune_noise_alpha",
        "recompute", "resid_dropout", "resid_pdrop", "residual_dropout", "router_aux_loss_coef", "router_jitter_noise",
        "router_z_loss_coef", "seed", "use_gradient_checkpointing", "weight_decay", "z_loss_coefficient",
    }
)  # fmt: skip
# The notes of trainers: Unsloth, PEFT, TRL, Axolotl, LLaMA-Factory.
OF_TRAINERS = frozenset(
    {
        "adapter_type", "author", "axolotl_config", "base_model", "base_model_name", "finetuned_from",
        "freeze_backbone", "gradient_checkpointing_kwargs", "license", "llamafactory_version", "load_in_4bit",
        "load_in_8bit", "lora_alpha", "lora_dropout", "lora_r", "max_seq_length", "model_id", "model_name", "peft_type",
        "peft_version", "source_model", "trl_version", "unsloth_fast", "unsloth_fixed", "unsloth_tiled_mlp",
        "unsloth_version", "use_liger_kernel",
    }
)  # fmt: skip
HARMLESS_KEYS = OF_TRANSFORMERS | OF_GENERATION | OF_TRAINING | OF_TRAINERS
