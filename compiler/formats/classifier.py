"""Reads what a classifier's config.json says about its labels: of a text, of its tokens, or how relevant a passage is
to a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from ..ir.tasks import ClassifierSpec, Pooling, TransitionSpec, forms_spans
from ..runtime.errors import CheckpointError, UnsupportedModel
from .config import MAX_FLOAT32
from .json_file import read_json_object

OF_TEXTS, OF_TOKENS = "ForSequenceClassification", "ForTokenClassification"
# What sentence-transformers' CrossEncoder applies to scores, by the last part of the class's name.
ACTIVATIONS: Mapping[str, Literal["none", "sigmoid"]] = {"Identity": "none", "Sigmoid": "sigmoid"}
# The row of a text, by its name in config.json. "late" is the mean of the scores of all tokens, whose last projection
# is linear.
CLASSIFIER_POOLINGS: Mapping[str, Pooling] = {
    "cls": "cls", "mean": "mean", "last_token": "last_token", "bos": "cls", "late": "mean",
}  # fmt: skip
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
_MAX_LABELS = 100_000
# The biases of the steps between labels, beside the weights of OpenAI's privacy filter.
CALIBRATION_FILE = "viterbi_calibration.json"


def read_classifier(config: Mapping[str, Any], where: str, pooling: Pooling | None = None) -> ClassifierSpec | None:
    """The classifier of a config.json; None if its 'architectures' name none. ``pooling`` makes the row of a text;
    None: the config names it.

    A model with one label scores pairs: by the rule of CrossEncoder, its score passes through a sigmoid unless the
    config names another activation. Others have probabilities by the rule of transformers' pipelines. Raises
    CheckpointError and UnsupportedModel.
    """
    architectures = config.get("architectures") or []
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if not name.endswith((OF_TEXTS, OF_TOKENS)):
        return None
    per_token = name.endswith(OF_TOKENS)
    labels = _read_labels(config, where)
    named = config.get("classifier_pooling", "late" if config.get("model_type") == "eurobert" else "cls")
    if pooling is None and named not in CLASSIFIER_POOLINGS:
        raise UnsupportedModel(
            f"{where}: 'classifier_pooling' is {str(named)[:80]!r}; supported: {', '.join(CLASSIFIER_POOLINGS)}"
        )
    pooling, pools_late = pooling or CLASSIFIER_POOLINGS[named], pooling is None and named == "late"
    activation: Literal["none", "sigmoid", "softmax"]
    if len(labels) == 1 and not per_token:
        activation = cross_encoder_activation(config, where)
        return ClassifierSpec(labels, activation, pooling=pooling, pools_late=pools_late, relevance=0)
    problem = config.get("problem_type")
    if problem is not None and problem not in PROBLEMS:
        raise UnsupportedModel(
            f"{where}: 'problem_type' is {str(problem)[:80]!r}, which is not supported; supported: "
            f"{', '.join(PROBLEMS)}"
        )
    activation = "softmax"
    if problem == "regression":
        activation = "none"
    elif problem == "multi_label_classification" or len(labels) == 1:
        activation = "sigmoid"
    return ClassifierSpec(labels, activation, per_token=per_token, pooling=pooling, pools_late=pools_late)


def with_transitions(classifier: ClassifierSpec | None, folder: Path) -> ClassifierSpec | None:
    """A classifier of tokens whose labels form spans with the biases of CALIBRATION_FILE, of which the operating point
    "default" is read; without that file they are zeros. Others as they are.

    Raises CheckpointError for a file that is damaged, UnsupportedModel for one that does not fit.
    """
    path = folder / CALIBRATION_FILE
    if classifier is None or not classifier.per_token:
        return classifier
    if not path.is_file():
        return replace(classifier, transitions=TransitionSpec()) if forms_spans(classifier.labels) else classifier
    if not forms_spans(classifier.labels):
        raise UnsupportedModel(
            f"{path}: calibrates spans, but the model's labels are {', '.join(classifier.labels)[:80]}; supported: O, "
            "and B-, I-, E- and S- of each kind, or B-, I-, L- and U-"
        )
    found: Any = read_json_object(path)
    for key in ("operating_points", "default", "biases"):
        found = found.get(key)
        if not isinstance(found, dict):
            raise CheckpointError(f"{path}: '{key}' is missing or no object; download the file again", file=str(path))
    names = {f"transition_bias_{each.name}": each.name for each in fields(TransitionSpec)}
    if found.keys() - names:
        raise UnsupportedModel(f"{path}: unknown biases {sorted(found.keys() - names)}; supported: {', '.join(names)}")
    valid = {key: value for key, value in found.items() if type(value) in (int, float) and abs(value) <= MAX_FLOAT32}
    if valid.keys() != names.keys():
        wrong = ", ".join(sorted(names.keys() - valid.keys()))
        raise CheckpointError(f"{path}: {wrong} must be finite numbers; download the file again", file=str(path))
    transitions = TransitionSpec(**{names[key]: float(value) for key, value in valid.items()})
    return replace(classifier, transitions=transitions)


def _read_labels(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The labels in the order of their ids. Without any, transformers has two."""
    labels = config.get("id2label")
    if labels is None:
        count = config.get("num_labels", 2)
        if not isinstance(count, int) or not 0 < count <= _MAX_LABELS:
            raise CheckpointError(f"{where}: 'num_labels' is {count!r}, expected a positive integer", file=where)
        return tuple(f"LABEL_{index}" for index in range(count))
    valid = (
        isinstance(labels, dict)
        and 0 < len(labels) <= _MAX_LABELS
        and {str(index) for index in range(len(labels))} == {str(key) for key in labels}
        and all(isinstance(label, str) for label in labels.values())
    )
    if not valid:
        raise CheckpointError(
            f"{where}: 'id2label' must map the numbers from 0 on to labels; correct the file or download it again",
            file=where,
        )
    by_id = {int(key): label for key, label in labels.items()}
    return tuple(by_id[index] for index in range(len(by_id)))


def cross_encoder_activation(config: Mapping[str, Any], where: str) -> Literal["none", "sigmoid"]:
    """The activation of a CrossEncoder's scores: the config names it, or it is a sigmoid. Raises UnsupportedModel."""
    section = config.get("sentence_transformers")
    stored = section.get("activation_fn") if isinstance(section, dict) else None
    stored = stored or config.get("sbert_ce_default_activation_function")
    if stored is None:
        return "sigmoid"
    activation = ACTIVATIONS.get(str(stored).rpartition(".")[2])
    if activation is None:
        raise UnsupportedModel(
            f"{where}: the activation of scores is {str(stored)[:80]!r}, which is not supported; supported: "
            f"{', '.join(ACTIVATIONS)}"
        )
    return activation
