"""Writes the policy's format for other tools: JSON Schema for editors, and TypeScript for the browser's router.

``python -m nearfar.server_fallback.router.decision.schema json`` prints policy.schema.json, ``... typescript`` prints
web/src/router/decision/policy_schema.ts. Both are generated from `policy.py` and committed; a test compares them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from nearfar.compiler.bundle.schema import interface

from . import policy, predictor
from .entry import Entry
from .policy import Policy

HEADER = """\
// The policy's types and JSON Schema, written by server_fallback/router/decision/schema.py.
// To change them, edit policy.py and predictor.py there.
"""


def json_schema() -> str:
    return (
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **Policy.model_json_schema()}, indent=2)
        + "\n"
    )


def typescript() -> str:
    """The types, and the schema without the parts that are only for readers."""
    modules = {**vars(predictor), **vars(policy)}
    classes = [
        entry
        for entry in modules.values()
        if isinstance(entry, type) and issubclass(entry, Entry) and entry is not Entry
    ]
    schema = json.dumps(plain(Policy.model_json_schema()), separators=(",", ":"))
    return HEADER + "".join(interface(entry) for entry in classes) + f"\nexport const POLICY_SCHEMA = {schema};\n"


def plain(schema: Any) -> Any:
    """The schema without titles and descriptions. A property could have such a name, but none of ours does."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key not in ("title", "description")}
    return [plain(item) for item in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    print({"json": json_schema, "typescript": typescript}[sys.argv[1]](), end="")
