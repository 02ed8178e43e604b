"""Checkpoints with random weights: SmolVLM-256M's tower before one layer of text, and a smaller model for pages."""

from __future__ import annotations

from dataclasses import dataclass
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
    # As in published files: Transformers.js takes missing ones as false.
    "do_convert_rgb": True,
    "do_image_splitting": True,
    "do_normalize": True,
    "do_pad": True,
    "do_rescale": True,
    "do_resize": True,
    "resample": 1,
    "rescale_factor": 1 / 255,
}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Of the tower, then of the text model. Heads of text have 64 elements."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    text_hidden: int
    text_layers: int
    text_heads: int
    text_kv_heads: int
    text_ffn: int


TOWER = Shapes(HIDDEN, LAYERS, HEADS, FFN, 576, 1, 9, 3, 1536)
# A hundredth of the work, for adapters that are CPUs.
SMALL = Shapes(192, 2, 3, 768, 192, 4, 3, 1, 512)


def write_checkpoint(folder: Path, shapes: Shapes = TOWER) -> Any:
    """Write transformers' folder. Returns transformers' model."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.SmolVLMConfig(
        text_config={
            "model_type": "llama", "vocab_size": 256 + len(MARKERS) + 3, "hidden_size": shapes.text_hidden,
            "intermediate_size": shapes.text_ffn, "num_hidden_layers": shapes.text_layers,
            "num_attention_heads": shapes.text_heads, "num_key_value_heads": shapes.text_kv_heads, "head_dim": 64,
            "max_position_embeddings": 8192, "rope_theta": 100_000.0, "rms_norm_eps": 1e-5,
        },
        vision_config={
            "hidden_size": shapes.hidden, "intermediate_size": shapes.ffn, "num_hidden_layers": shapes.layers,
            "num_attention_heads": shapes.heads, "image_size": SIDE, "patch_size": PATCH,
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
