"""Keys of config.json that do not change what a trained model computes: those of libraries and trainers, which write
them into the configuration of any model, at its top and in its sections. An architecture adds its own.
"""

from __future__ import annotations

# How transformers 4 and 5 load, run and describe a model.
OF_TRANSFORMERS = frozenset(
    {
        "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
        "_experts_implementation", "_flash_attn_2_enabled", "_name_or_path", "_output_attentions", "_pad_token_id",
        "attn_implementation", "base_model_name_or_path", "base_model_pp_plan", "base_model_tp_plan",
        "chunk_size_feed_forward", "decoder_start_token_id", "dtype", "experts_implementation", "finetuning_task",
        "gradient_checkpointing", "id2label", "is_decoder", "is_llama_config", "label2id", "max_sequence_length",
        "name_or_path", "num_labels", "output_attentions", "output_hidden_states", "output_router_logits",
        "pad_token_id", "prefix", "problem_type", "return_dict", "sep_token_id", "task_specific_params",
        "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "torch_dtype", "torchscript",
        "transformers.js_config", "transformers_version", "trust_remote_code", "use_bfloat16", "use_cache",
        "use_flash_attention", "use_flash_attention_2", "xla_device",
    }
)  # fmt: skip
# Choices of a generation, which belong into generation_config.json.
OF_GENERATION = frozenset(
    {
        "bad_words_ids", "begin_suppress_tokens", "cache_config", "cache_implementation", "compile_config",
        "disable_compile", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty",
        "force_words_ids", "forced_bos_token_id", "forced_eos_token_id", "generation_config", "guidance_scale",
        "length_penalty", "max_length", "max_new_tokens", "max_time", "min_length", "min_new_tokens", "min_p",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
        "penalty_alpha", "remove_invalid_values", "renormalize_logits", "repetition_penalty",
        "return_dict_in_generate", "sequence_bias", "suppress_tokens", "temperature", "token_healing", "top_k", "top_p",
        "typical_p", "watermarking_config",
    }
)  # fmt: skip
# What only a training computes: dropout, noise, the first values of weights, losses.
OF_TRAINING = frozenset(
    {
        "attention_dropout", "attention_probs_dropout_prob", "attn_dropout", "attn_pdrop", "classifier_dropout",
        "dropout", "emb_pdrop", "embd_pdrop", "embed_dropout", "embedding_dropout", "ffn_dropout", "hidden_dropout",
        "hidden_dropout_prob", "init_std", "initializer_factor",
        "initializer_range", "initializer_std", "layerdrop", "loss_type", "mlp_dropout", "neftune_noise_alpha",
        "resid_dropout", "resid_pdrop", "residual_dropout", "router_aux_loss_coef", "router_jitter_noise",
        "router_z_loss_coef",
    }
)  # fmt: skip
# The notes of trainers: Unsloth, PEFT, TRL, Axolotl, LLaMA-Factory.
OF_TRAINERS = frozenset(
    {
        "axolotl_config", "base_model", "freeze_backbone", "gradient_checkpointing_kwargs", "llamafactory_version",
        "load_in_4bit", "load_in_8bit", "lora_alpha", "lora_dropout", "lora_r", "max_seq_length", "model_name",
        "peft_version", "trl_version", "unsloth_fixed", "unsloth_tiled_mlp", "unsloth_version",
    }
)  # fmt: skip
HARMLESS_KEYS = OF_TRANSFORMERS | OF_GENERATION | OF_TRAINING | OF_TRAINERS
