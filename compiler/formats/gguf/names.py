"""Picks one of the GGUF files of a repository or a folder: by its name, or by the quantization at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...nearest import did_you_mean
from ...runtime.errors import CheckpointError

PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_LABEL = re.compile(r"(?:.*?[-._/])?((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|BF16|F16|F32))\.gguf", re.IGNORECASE)
# Names of files that contain image or audio encoders, or importance matrices.
_OTHERS = re.compile(r".*(mmproj|imatrix).*", re.IGNORECASE)


def choose_files(names: Iterable[str], choice: str | None, model: str) -> list[str]:
    """The files of one model, in order. ``choice``: a file, or a quantization such as "Q4_K_M"; None if there must be
    only one. Raises CheckpointError that lists the available files; ``model`` is the user's argument.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not _OTHERS.fullmatch(name):
            models.setdefault(whole_name(name), []).append(name)
    if not models:
        raise CheckpointError(f"{model}: has no GGUF file", model=model)
    found = [whole for whole in models if choice is None or _is_meant(whole, models[whole], choice)]
    if len(found) == 1:
        return models[found[0]]
    labels = sorted({label_of(whole) or whole for whole in models})
    if found and choice is not None:
        raise CheckpointError(
            f"{model}: {choice!r} are several files: {', '.join(found)}; give the name of one instead", model=model
        )
    if choice is None:
        advice = f"choose one: {', '.join(labels)}"
    else:
        advice = f"it has {', '.join(labels)}{did_you_mean(choice, labels)}"
    missing = "" if choice is None else f"has no {choice!r}; "
    raise CheckpointError(
        f"{model}: {missing}{'has several GGUF files; ' if choice is None else ''}{advice}", model=model
    )


def whole_name(name: str) -> str:
    """The name of a file without the number of its part."""
    match = PART.fullmatch(name)
    return name if match is None else match["name"] + match["suffix"]


def label_of(name: str) -> str | None:
    """The quantization at the end of a file's name."""
    match = _LABEL.fullmatch(name)
    return None if match is None else match[1]


def _is_meant(whole: str, files: list[str], choice: str) -> bool:
    if choice.lower().endswith(".gguf"):
        return choice in (whole, whole.rpartition("/")[2], *files, *(each.rpartition("/")[2] for each in files))
    return (label_of(whole) or "").lower() == choice.lower()
