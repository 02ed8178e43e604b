"""Reads a checkpoint's chat template from the same files as transformers, in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runtime.errors import CheckpointError, reason_of
from .json_file import read_json_object

NAMED_TEMPLATES = "additional_chat_templates"
# These join two templates into one. The empty texts prevent Jinja from trimming the space around a template's own text.
_KEEP = '{{ "" }}'
_IF_TOOLS, _ELSE, _END = (
    "{% if tools is defined and tools is not none %}" + _KEEP,
    _KEEP + "{% else %}" + _KEEP,
    _KEEP + "{% endif %}",
)


def read_chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The template of the folder ``path``; None if it has none. ``config`` is its tokenizer_config.json.

    The first of these sources is used: chat_template.jinja with additional_chat_templates/, tokenizer_config.json, and
    chat_template.json, which only transformers' processors read. If a source has several templates, "default" is used,
    or "tool_use" if a request has tools. Raises CheckpointError.
    """
    templates = {file.stem: read_text(file) for file in sorted((path / NAMED_TEMPLATES).glob("*.jinja"))}
    main = path / "chat_template.jinja"
    if main.exists():
        templates["default"] = read_text(main)
    if templates:
        return _choose(main, templates)
    if config.get("chat_template") is not None:
        where = path / "tokenizer_config.json"
        return _choose(where, _templates(where, config["chat_template"]))
    legacy = path / "chat_template.json"
    if legacy.exists():
        return _choose(legacy, _templates(legacy, read_json_object(legacy).get("chat_template")))
    return None


def _templates(where: Path, value: object) -> dict[str, str]:
    """The templates of a 'chat_template' value, by name."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("template"), str)
        for each in value
    ):
        raise _bad(
            where, "'chat_template' must be a string, or a list of objects with name and template; download it again"
        )
    return {each["name"]: each["template"] for each in value}


def _choose(where: Path, templates: Mapping[str, str]) -> str:
    if "default" not in templates:
        raise _bad(
            where,
            f"'chat_template' has {', '.join(templates) or 'no templates'}, but no 'default'; "
            "rename the template to use to 'default'",
        )
    if "tool_use" not in templates or templates["tool_use"] == templates["default"]:
        return templates["default"]
    # Jinja drops the last newline of a template.
    default, tool_use = (templates[name].removesuffix("\n") for name in ("default", "tool_use"))
    return _IF_TOOLS + tool_use + _ELSE + default + _END


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, f"cannot be read: {reason_of(error)}; download it again") from error


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))
