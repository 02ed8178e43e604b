"""Families that are known but not compiled, and the error message for a model_type that is not supported."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.resources import files

from ..nearest import nearest

# The kind of each model_type that transformers knows, and the nearest one that compiles; see `write_model_types.py`.
FILE = "model_types.json"
KINDS = {
    "decoder": "a decoder of text",
    "states": "a decoder with recurrent states, such as Mamba's, or with linear attention or convolutions",
    "experts": "a mixture of experts",
    "encoder": "an encoder of text, which generates none",
    "encoder-decoder": "an encoder with a decoder",
    "vision-language": "a model of images beside text",
    "speech": "a model of sound or speech",
    "image": "a model of images",
    "series": "a model of time series",
    "part": "a part of a larger model, which has a model_type of its own",
    "other": "a model of another kind",
}
# What families that were considered need that no graph of ours computes.
REASONS = {
    "deberta": "its attention scores distances by both texts and positions",
    "deepseek_v2": "its keys and values are stored compressed (latent attention), with heads of two sizes",
    "deepseek_v3": "its keys and values are stored compressed (latent attention), with heads of two sizes",
    "gemma3n_text": "it has several residual streams (AltUp), and its feed-forwards keep their largest elements only",
    "muse_glimmer_text": "its attention's results have a gate for each element, and its norms two epsilons",
}
# Supported families whose published models have residual streams beyond float16's range.
LARGE_ACTIVATIONS = ("embedding_gemma2_text", "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text")


def known_types() -> Mapping[str, tuple[str, str | None]]:
    types: dict[str, tuple[str, str | None]] = json.loads((files(__package__) / FILE).read_text())
    return types


def unsupported_message(name: str, supported: Collection[str]) -> str:
    """The reason why config.json's model_type is refused, the nearest family, and where to request support for it."""
    start = f"config.json: model_type {name!r} is not supported; supported: {', '.join(supported)}. "
    types = known_types()
    if name in types:
        kind, base = types[name]
        reason = f": {REASONS[name]}" if name in REASONS else ""
        part = "the text model of " if kind in ("vision-language", "speech") else ""
        near = f"; the nearest family that it compiles is {part}{base!r}" if base else ", nor one near it"
        return (
            f"{start}It is {KINDS[kind]}, and {_program()} knows this family but does not compile it{reason}{near}. "
            f"To request it, open an issue {_issue_tracker()}"
        )
    match = nearest(name, [*supported, *types])
    meant = "." if match is None else f"; did you mean {match!r}?"
    return (
        f"{start}No family of that name is known{meant} "
        f"Correct the file, or, if the family is newer than {_program()}, request it: open an issue {_issue_tracker()}"
    )


def _program() -> str:
    try:
        return f"nearfar {version('nearfar')}"
    except PackageNotFoundError:
        return "this version of nearfar"


def _issue_tracker() -> str:
    """Where to open an issue: the address in the package's metadata, if it has one."""
    try:
        urls = metadata("nearfar").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    issues = next((url.partition(",")[2].strip() for url in urls if url.lower().startswith("issues,")), None)
    return f"at {issues}" if issues else "in the project's issue tracker"
