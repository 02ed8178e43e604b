"""Tiny decision models of transformers: random weights, in each of the forms that its `JevForDecision` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from decoder_families import CONFIGS, FAMILIES, HYBRIDS
from safetensors.numpy import save_file
from tiny_encoders import OF_DECODERS
from tiny_models import write_tokenizer

SLOTS = {
    "num_slots": 11,
    "verbalizers": ["no", "yes", *"012345", "A", "B", "C"],
    "ranges": {"noul": [0, 2], "score": [2, 8], "choice": [8, 11]},
}
TEMPERATURES = {"noul": 1.5, "score": 0.7, "choice": 2.0}
QUESTIONS: Mapping[str, Any] = {
    "room": {"type": "choice", "question": "which room?", "choices": ["kitchen", "bath"]},
    "lit": {"type": "yes_no", "question": "is it about lights?"},
    "level": {"type": "score", "question": "how loud?", "minimum": 1, "maximum": 4},
    "tone": {"type": "score", "question": "which tone?", "scale": ["rude", "plain", "kind"]},
    "about": {"type": "labels", "question": "is it about {}?", "labels": ["lights", "</s>"]},
}
# The same questions in transformers' words.
ASKED: Mapping[str, Any] = {
    "room": {"type": "choice", "instructions": "which room?", "criteria": {"kitchen": None, "bath": None}},
    "lit": {"type": "noul", "instructions": "is it about lights?"},
    "level": {"type": "score", "instructions": "how loud?", "criteria": ["1", "2", "3", "4"]},
    "tone": {"type": "score", "instructions": "which tone?", "criteria": ["rude", "plain", "kind"]},
    "about/lights": {"type": "noul", "instructions": "is it about lights?"},
    "about/</s>": {"type": "noul", "instructions": "is it about </s>?"},
}


# Plain decoders, in layers that read complete texts.
PLAIN: Mapping[str, tuple[str, dict[str, Any]]] = {"qwen2": ("Qwen2", {}), "qwen3": ("Qwen3", {})}


def write_base(folder: Path, family: str = "qwen3", **config: Any) -> Any:
    """A model that generates text, without a head of its own in use."""
    import torch
    import transformers

    torch.manual_seed(5)
    name, own = {**FAMILIES, **HYBRIDS, **PLAIN}[family]
    sizes = {**OF_DECODERS, "max_position_embeddings": 1024, "tie_word_embeddings": True, **own, **config}
    settings = getattr(transformers, CONFIGS.get(name, f"{name}Config"))(**sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(settings).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_head(folder: Path, rows: int, prefix: str = "proj.", file: str = "head.safetensors") -> None:
    rng = np.random.default_rng(rows)
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    weight = (rng.standard_normal((rows, size)) * 0.4).astype(np.float32)
    bias = {f"{prefix}bias": rng.standard_normal(rows).astype(np.float32)} if prefix else {}
    save_file({f"{prefix}weight": weight, **bias}, folder / file)


def write_judge(folder: Path, family: str = "qwen3", *, softcap: float | None = 3.0, **config: Any) -> None:
    """JEV's form."""
    write_base(folder, family, **config)
    write_head(folder, SLOTS["num_slots"])  # type: ignore[arg-type]
    (folder / "judge_config.json").write_text(json.dumps({"slots": SLOTS, "softcap": softcap}))
    (folder / "calibration.json").write_text(json.dumps({"per_kind": TEMPERATURES}))


def write_decider(folder: Path, prompt: str = "d3", **config: Any) -> None:
    """The form of vLLM's decision models."""
    write_base(folder, "qwen2", **config)
    write_head(folder, 5, prefix="", file="readout.safetensors")
    settings = {"codes": list("ABCDE"), "temperature": 1.7, "prompt": prompt}
    (folder / "decision_config.json").write_text(json.dumps(settings))


def theirs(folder: Path) -> Any:
    """transformers' model of any of the forms."""
    from transformers import JevForDecision

    return JevForDecision.from_pretrained(folder).float().eval()


def their_probabilities(model: Any, folder: Path, state: Any) -> dict[str, dict[str, float]]:
    """The probability of each option of each of `ASKED`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = {}
    for inputs, questions in model.decision_config.prepare_inputs(
        {"state": state, "questions": dict(ASKED)}, tokenizer
    ):
        scores = model.decide(**inputs, decision_questions=questions)
        for question, own in zip(questions, scores, strict=True):
            found[question.name] = dict(zip(question.options, own.softmax(-1).tolist(), strict=True))
    return found


def option_probabilities(decisions: Mapping[str, Any]) -> dict[str, list[float]]:
    """Those of our decisions about `QUESTIONS`, as `their_probabilities` has them: "false" precedes "true"."""
    found: dict[str, list[float]] = {}
    for name, decision in decisions.items():
        values = list(decision["probabilities"].values())
        if decision["type"] == "labels":
            found |= {f"{name}/{label}": [1 - held, held] for label, held in decision["probabilities"].items()}
        else:
            found[name] = values[::-1] if decision["type"] == "yes_no" else values
    return found
