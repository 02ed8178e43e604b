"""A checkpoint with SmolVLM-256M's shapes and random weights; its text model may have fewer layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from image_families import HALF, MARKERS, Family, marker_id, write_family
from vision_families import TEMPLATE

SIDE, PATCH, HIDDEN, LAYERS, HEADS, FFN, BLOCK = 512, 16, 768, 12, 12, 3072, 4
PATCHES = (SIDE // PATCH) ** 2
# Pictures of one tile.
PROCESSOR = {
    **HALF,
    "image_processor_type": "SmolVLMImageProcessor",
    "max_image_size": {"longest_edge": SIDE},
    "size": {"longest_edge": SIDE},
}


def write_checkpoint(folder: Path, text_layers: int = 1, layers: int = LAYERS) -> Any:
    """Write transformers' folder. Returns transformers' model."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.SmolVLMConfig(
        text_config={
            "model_type": "llama", "vocab_size": 256 + len(MARKERS) + 3, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": text_layers, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
            "max_position_embeddings": 8192, "rope_theta": 100_000.0, "rms_norm_eps": 1e-5,
        },
        vision_config={
            "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": layers,
            "num_attention_heads": HEADS, "image_size": SIDE, "patch_size": PATCH,
        },
        scale_factor=BLOCK, pad_token_id=0, image_token_id=marker_id("<image>"),
    )  # fmt: skip
    model = transformers.SmolVLMForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    folder.mkdir(parents=True, exist_ok=True)
    write_family(Family({}, PROCESSOR), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model.save_pretrained(folder)
    return model
