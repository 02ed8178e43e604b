"""Writes tests/conformance/template_trees.json: the syntax trees of chat templates that the TypeScript tests render.

    .venv/bin/python tests/template_trees.py [TEMPLATE ...]

adds templates, and writes every tree again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nearfar.compiler.bundle.folder import chat_tree_entry
from nearfar.compiler.runtime.text.chat_template import ChatTemplate

FILE = Path(__file__).parent / "conformance" / "template_trees.json"


def read() -> dict[str, Any]:
    trees: dict[str, Any] = json.loads(FILE.read_text())
    return trees


def text_of(sources: list[str]) -> str:
    """The file's content: one line for each template."""
    entries = {source: chat_tree_entry(ChatTemplate(source, {})) for source in sorted(sources)}
    trees = {source: None if entry is None else entry.model_dump() for source, entry in entries.items()}
    lines = (
        f"{json.dumps(source, ensure_ascii=False)}:{json.dumps(tree, ensure_ascii=False, separators=(',', ':'))}"
        for source, tree in trees.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    known = read() if FILE.exists() else {}
    FILE.write_text(text_of(list(known | dict.fromkeys(sys.argv[1:]))))
