"""Reads the head of a decision model, transformers' JevForDecision: linear scores of the options of a typed question at
the end of its prompt. It is saved as such (model_type "jev"), or lies beside the weights of the model that it reads, in
the forms of JEV (judge_config.json) and of the decision models of vLLM (decision_config.json).
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..arch import encoder_of
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, DecisionKindSpec, DecisionSpec, QuestionKind
from ..runtime.errors import CheckpointError, NearfarError, UnsupportedModel
from ..runtime.text.chat_template import ChatTemplate
from ..runtime.text.tokenizer_files import TokenizerFiles
from .chat_template_files import read_text
from .checkpoint import Tensor
from .config import ConfigReader
from .decision_prompts import DECIDERS, JEV_PROMPT, decider_prompt
from .distance_tensors import MadeTensor
from .json_file import read_json_object
from .safetensors_file import read_safetensors

MODEL_TYPE = "jev"
# Beside the weights of another model.
HEAD_FILES = ("head.safetensors", "readout.safetensors")
JUDGE, CALIBRATION, DECIDER = "judge_config.json", "calibration.json", "decision_config.json"
# Beside a saved decision model.
SETTINGS, TEMPLATE = "decision.json", "decision_template.jinja"
KINDS: Mapping[str, QuestionKind] = {"noul": "yes_no", "score": "score", "choice": "choice"}
# transformers' JevConfig.
NUM_SCORES, OFFSETS = 24, {"noul": 0, "score": 2, "choice": 8}
# Where the head reads, and where a text is split.
MARK, SPLIT = "<|mark|>", "<|split|>"
PROJECTION, SCORE = "proj", "score"
TEXT_HEAD = "lm_head."
NOT_CAUSAL = "noncausal_full_attention"


@dataclass(frozen=True, slots=True)
class DecisionHead:
    """``template`` writes the prompt of a question, which ends with a mark or nowhere. ``causal`` is None if the
    model's own config says it. ``tensors`` are those of files beside the weights, as transformers names them.
    """

    spec: DecisionSpec
    num_scores: int
    template: str
    causal: bool | None
    tensors: Mapping[str, Tensor]

    def classifier(self) -> ClassifierSpec:
        """The scores, each by the first of its labels."""
        names = {
            each.first + index: f"{each.kind} {label}"
            for each in reversed(self.spec.kinds)
            for index, label in enumerate(each.labels)
        }
        labels = tuple(names.get(row, f"unused {row}") for row in range(self.num_scores))
        return ClassifierSpec(labels, "none", pooling="last_token", decision=self.spec)


def read_decision_head(path: Path, config: Mapping[str, Any]) -> DecisionHead | None:
    """The head of the checkpoint in a folder with the config.json ``config``; None if it has none. Raises
    CheckpointError and UnsupportedModel.
    """
    if config.get("model_type") == MODEL_TYPE:
        return _saved(path, config)
    # In the order of transformers.
    beside = next((name for name in (DECIDER, JUDGE, *HEAD_FILES) if (path / name).is_file()), None)
    if beside is None:
        return None
    if beside == DECIDER:
        return _decider(path)
    if beside == JUDGE:
        return _judge(path, config)
    raise CheckpointError(
        f"{path}: has a decision head ({beside}), but neither {JUDGE} nor {DECIDER}, which say how it is read; "
        "download one of those too",
        file=str(path / JUDGE),
    )


def with_decisions(path: Path, spec: ModelSpec, head: DecisionHead) -> ModelSpec:
    """The model that the head reads. Raises UnsupportedModel for one that is no text model."""
    if encoder_of(spec.model_type) is not None or spec.audio is not None or spec.conformer is not None:
        raise UnsupportedModel(
            f"{path}: has a decision head on a {spec.model_type} model, which is not supported; it must read a model "
            "that generates text",
            model_type=MODEL_TYPE,
        )
    if head.causal is False and any(spec.window(layer) is not None for layer in range(spec.num_layers)):
        raise UnsupportedModel(
            f"{path / DECIDER}: 'attention_mode' is {NOT_CAUSAL!r}, which is not supported beside sliding windows",
            model_type=MODEL_TYPE,
        )
    return spec if head.causal is None else replace(spec, causal=head.causal)


def head_tensors(path: Path, tensors: Mapping[str, Tensor], head: DecisionHead, row_size: int) -> dict[str, Tensor]:
    """The tensors, with those of the head as the graph reads them, in place of the head that generates text. Raises
    CheckpointError.
    """
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(TEXT_HEAD)}
    found = {**kept, **head.tensors}
    weight, bias = found.pop(f"{PROJECTION}.weight", None), found.pop(f"{PROJECTION}.bias", None)
    size = head.num_scores
    if weight is None or tuple(weight.shape) != (size, row_size) or (bias is not None and tuple(bias.shape) != (size,)):
        shapes = " and ".join("missing" if each is None else str(list(each.shape)) for each in (weight, bias))
        raise CheckpointError(
            f"{path}: the weight and the bias of the decision head have the shapes {shapes}, expected "
            f"{[size, row_size]} and {[size]}; download the files again"
        )
    zeros = np.zeros(size, np.float32)
    made = MadeTensor(f"{SCORE}.bias", size, lambda: zeros)
    return {**found, f"{SCORE}.weight": weight, f"{SCORE}.bias": made if bias is None else bias}


def with_prompts(path: Path, head: DecisionHead, files: TokenizerFiles) -> TokenizerFiles:
    """The tokenizer whose chat template writes the prompts of questions. Raises UnsupportedModel for a template that
    reads scores anywhere else than at the end of a prompt with one question.
    """
    where = path / TEMPLATE
    plain = head.template.replace(MARK, "")
    given, kept = (ChatTemplate(each, files.special_tokens) for each in (head.template, plain))
    if SPLIT in head.template or "questions" in given.variables():
        reads = f"splits prompts ({SPLIT})" if SPLIT in head.template else "asks all questions in one prompt"
        raise UnsupportedModel(f"{where}: {reads}, which is not supported; a prompt must have one question")
    for kind in head.spec.kinds:
        sample = _sample(kind, yes_first=head.spec.yes_first)
        try:
            marked, prompt = (
                each.render([{"role": "user", "content": ""}], variables=sample) for each in (given, kept)
            )
        except NearfarError as error:
            raise UnsupportedModel(f"{where}: does not write a question of {kind.kind}: {error.message}") from error
        if MARK in prompt or marked not in (prompt, prompt + MARK):
            raise UnsupportedModel(
                f"{where}: marks another place than the end of the prompt of a question of {kind.kind}, which is not "
                "supported"
            )
    return TokenizerFiles(files.where, files.content, plain, **files.special_tokens, add_bos_token=files.add_bos_token)


def _sample(kind: DecisionKindSpec, *, yes_first: bool) -> dict[str, Any]:
    """The variables of a prompt with a question of a kind, as `headPrompts` of `web/src/shared` makes them."""
    options = ["0", "1"] if kind.kind != "yes_no" else ["true", "false"] if yes_first else ["false", "true"]
    levels = ["low", "high"] if kind.kind == "score" else [None, None]
    theirs = next(name for name, own in KINDS.items() if own == kind.kind)
    question = {
        "name": "a", "type": theirs, "instructions": "Which?", "options": options, "labels": list(kind.labels[:2]),
        "descriptions": levels,
    }  # fmt: skip
    return {"state": "text", "question": question}


def _saved(path: Path, config: Mapping[str, Any]) -> DecisionHead:
    """A decision model that transformers' save_pretrained wrote."""
    reader = ConfigReader(config, str(path / "config.json"))
    if not (path / TEMPLATE).is_file():
        raise CheckpointError(
            f"{path}: has no {TEMPLATE}, which writes the prompts of the head's questions; download it too",
            file=str(path / TEMPLATE),
        )
    settings = read_json_object(path / SETTINGS) if (path / SETTINGS).is_file() else {}
    where = str(path / SETTINGS)
    if settings.get("sanitize_control_tokens", True) is not True:
        raise UnsupportedModel(
            f"{where}: 'sanitize_control_tokens' is false, so that a text could write control tokens, which is not "
            "supported"
        )
    _require_merged(path, settings.get("adapter"), where)
    order = settings.get("noul_options", ["true", "false"])
    if not isinstance(order, list) or sorted(map(str, order)) != ["false", "true"]:
        raise CheckpointError(f"{where}: 'noul_options' must order 'true' and 'false'; correct it", file=where)
    count = reader.integer("num_verbalizers", default=NUM_SCORES)
    kinds = _kinds(
        _object(settings.get("labels") or {}, "labels", where),
        _object(config.get("offsets") or OFFSETS, "offsets", str(path / "config.json")),
        _object(settings.get("temperature") or {}, "temperature", where),
        count,
        where,
    )
    spec = DecisionSpec(kinds, order[0] == "true", reader.optional_number("softcap"))
    return DecisionHead(spec, count, read_text(path / TEMPLATE), None, {})


def _judge(path: Path, config: Mapping[str, Any]) -> DecisionHead:
    """A head in JEV's own form."""
    where = str(path / JUDGE)
    judge = read_json_object(path / JUDGE)
    _require_merged(path, judge.get("adapter_subfolder", "adapter"), where)
    slots = _object(judge.get("slots"), "slots", where)
    names, ranges = slots.get("verbalizers"), _object(slots.get("ranges"), "ranges", where)
    count = ConfigReader(slots, f"{where}: slots").integer("num_slots")
    valid = all(
        isinstance(each, list) and len(each) == 2 and all(type(at) is int for at in each) for each in ranges.values()
    )
    if not isinstance(names, list) or not valid:
        raise CheckpointError(f"{where}: 'slots' has no verbalizers with ranges; download it again", file=where)
    labels = {kind: names[start:end] for kind, (start, end) in ranges.items()}
    temperature = read_json_object(path / CALIBRATION).get("per_kind")
    kinds = _kinds(
        labels,
        {kind: start for kind, (start, _) in ranges.items()},
        _object(temperature, "per_kind", str(path / CALIBRATION)),
        count,
        where,
    )
    spec = DecisionSpec(kinds, yes_first=False, softcap=ConfigReader(judge, where).optional_number("softcap"))
    start = "<bos>" if "gemma" in str(config.get("model_type")) else ""
    return DecisionHead(spec, count, start + JEV_PROMPT, None, _beside(path))


def _decider(path: Path) -> DecisionHead:
    """A head in the form of vLLM's decision models, which has a code for each option of any question."""
    where = str(path / DECIDER)
    config = ConfigReader(read_json_object(path / DECIDER), where)
    if not read_json_object(path / DECIDER).get("codes"):
        raise UnsupportedModel(f"{where}: has no 'codes' of options, and other decision heads are not supported")
    codes, prompt = config.texts("codes"), config.text("prompt", default="pplx")
    if prompt not in DECIDERS:
        raise UnsupportedModel(f"{where}: 'prompt' is {prompt[:80]!r}; supported: {', '.join(DECIDERS)}")
    labels, temperature = {kind: list(codes) for kind in KINDS}, dict.fromkeys(KINDS, config.number("temperature"))
    kinds = _kinds(labels, dict.fromkeys(KINDS, 0), temperature, len(codes), where)
    causal = config.optional_text("attention_mode") != NOT_CAUSAL
    return DecisionHead(DecisionSpec(kinds, yes_first=False), len(codes), decider_prompt(prompt), causal, _beside(path))


def _kinds(
    labels: Mapping[str, Any], offsets: Mapping[str, Any], temperature: Mapping[str, Any], count: int, where: str
) -> tuple[DecisionKindSpec, ...]:
    found = []
    for theirs, kind in KINDS.items():
        names = labels.get(theirs) or (["Yes", "No"] if theirs == "noul" else list(string.ascii_uppercase))
        first, factor = offsets.get(theirs), temperature.get(theirs, 1.0)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{where}: 'labels' of {theirs} must be texts; download it again", file=where)
        if type(first) is not int or not 0 <= first < count:
            raise CheckpointError(
                f"{where}: questions of {theirs} have no scores among the {count} of the head; download it again",
                file=where,
            )
        if type(factor) not in (int, float) or not 0 < factor < float("inf"):
            raise CheckpointError(
                f"{where}: the temperature of {theirs} must be above 0; download it again", file=where
            )
        # Scores of another kind are no options of this one.
        end = min([at for at in offsets.values() if type(at) is int and at > first], default=count)
        own = tuple(names[: end - first])
        if len(own) < 2:
            raise CheckpointError(f"{where}: questions of {theirs} have fewer than two scores; download it again")
        found.append(DecisionKindSpec(kind, first, own, float(factor)))
    return tuple(found)


def _beside(path: Path) -> dict[str, Tensor]:
    """The head's tensors in files of their own."""
    files = [path / name for name in HEAD_FILES if (path / name).is_file()]
    if len(files) != 1:
        raise CheckpointError(f"{path}: has {len(files)} of the files {' and '.join(HEAD_FILES)}, expected one")
    stored = read_safetensors(files[0])
    # vLLM's models have the weight alone.
    found: dict[str, Tensor] = {
        f"{PROJECTION}.weight" if name == "weight" else name: own for name, own in stored.items()
    }
    unknown = found.keys() - {f"{PROJECTION}.weight", f"{PROJECTION}.bias"}
    if unknown:
        raise UnsupportedModel(f"{files[0]}: has the unknown tensors {', '.join(sorted(unknown))[:200]}")
    return found


def _require_merged(path: Path, adapter: object, where: str) -> None:
    if isinstance(adapter, str) and (path / adapter).is_dir():
        raise UnsupportedModel(
            f"{where}: the head reads the model with the LoRA adapter in {adapter!r}; merge that into the weights, "
            "remove the folder, and compile the result"
        )


def _object(value: object, name: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {name!r} must be an object; download it again", file=where)
    return value
