"""Tiny checkpoints in the form of Google's quantization-aware training, which transformers writes and reads: random
integers of 2, 4 and 8 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_models import SIZES, write_tokenizer

# Every width: q and k share one, v has another, gate and up share one that does not fill a row's last byte.
WIDTHS: Mapping[str, dict[str, Any]] = {
    r"layers\.0\..*(q|k)_proj": {"num_bits": 2},
    r"v_proj$": {"num_bits": 8},
    r"(gate|up)_proj": {"num_bits": 2},
    r"lm_head|embed_tokens": {"num_bits": 8},
}
QUANTIZATION: Mapping[str, Any] = {
    "quant_method": "gemma",
    "num_bits": 4,
    "quantize_embeddings": True,
    "module_quant_configs": dict(WIDTHS),
    "modules_to_not_convert": [],
}
# 70 columns fill 17.5 bytes of 2 bits; 105 fill 52.5 bytes of 4.
CONFIG: Mapping[str, Any] = {
    **SIZES,
    "hidden_size": 70,
    "intermediate_size": 105,
    "head_dim": 24,
    "tie_word_embeddings": False,
}
# For frameworks whose kernels do not pad.
WIDE: Mapping[str, int] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


def make_quantized_checkpoint(
    folder: Path, *, rounds: bool = False, quantization: Mapping[str, Any] = QUANTIZATION, **config: Any
) -> Path:
    """Write a qwen3. ``rounds``: its activations are rounded to 8 bits too."""
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.integrations.gemma_quant import (
        QuantizedEmbedding,
        QuantizedLinear,
        replace_with_quant_layers,
    )
    from transformers.utils.quantization_config import GemmaQuantizationConfig

    torch.manual_seed(11)
    settings = transformers.Qwen3Config(**{**CONFIG, **config})
    model = transformers.Qwen3ForCausalLM(settings).float()
    quantized = GemmaQuantizationConfig(**quantization)
    replace_with_quant_layers(model, quantized, quantized.modules_to_not_convert)
    tensors: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding):
            integers, scale = (
                ("weight", "weight_scale")
                if isinstance(module, QuantizedLinear)
                else ("embedding_quantized", "embedding_scale")
            )
            stored = getattr(module, integers)
            least, most = torch.iinfo(stored.dtype).min, torch.iinfo(stored.dtype).max
            tensors[f"{name}.{integers}"] = torch.randint(least, most + 1, stored.shape).to(stored.dtype)
            factor = 1 / (2 ** (module.num_bits - 1) * stored.shape[1] ** 0.5)
            tensors[f"{name}.{scale}"] = (0.5 + torch.rand(len(stored), 1)) * factor
            if isinstance(module, QuantizedLinear):
                # Zero means that nothing is rounded; transformers leaves missing scales uninitialized. v rounds its
                # input more finely than q and k. Nothing is rounded after q_proj and down_proj.
                before = 0.03 if "v_proj" in name else 0.05
                after = 0.0 if "down_proj" in name or "q_proj" in name else 0.04
                tensors[f"{name}.input_activation_scale"] = torch.tensor(before if rounds else 0.0)
                tensors[f"{name}.output_activation_scale"] = torch.tensor(after if rounds else 0.0)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and name not in tensors and not name.endswith("_scale"):
            noise = torch.randn_like(parameter)
            tensors[name] = (
                parameter.detach() + noise * 0.1 if parameter.ndim == 1 else noise / parameter.shape[1] ** 0.5
            )
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    described = {**settings.to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps({**described, "quantization_config": dict(quantization)}))
    write_tokenizer(folder)
    return folder


def transformers_logits_of(folder: Path, token_ids: list[int]) -> Any:
    """The logits (n, V) by transformers' own reader of the checkpoint."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].numpy()
