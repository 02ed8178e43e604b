"""Writes the policy's format for other tools: JSON Schema for editors, and TypeScript for the browser's router.

``python -m nearfar.server_fallback.router.decision.schema json`` prints policy.schema.json, ``... typescript`` prints
web/src/shared/decision/policy_schema.ts, both from `policy.py`. They are committed; a test compares them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from nearfar.compiler.bundle.schema import interface, short_form

from . import policy, predictor
from .policy import Policy
from .predictor import PolicyPart

# Keys of the JSON Schema that are for readers, or that follow from others.
LEFT_OUT = ("title", "description", "additionalProperties", "required", "$defs")
# Keys that are part of a type.
LIMITS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum")
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
    """The types, and the schema as `compact` writes it."""
    modules = {**vars(predictor), **vars(policy)}
    classes = [
        entry
        for entry in modules.values()
        if isinstance(entry, type) and issubclass(entry, PolicyPart) and entry is not PolicyPart
    ]
    schema = Policy.model_json_schema()
    compacted = json.dumps(compact(schema, schema["$defs"]), separators=(",", ":"))
    return HEADER + "".join(interface(entry) for entry in classes) + f"\nexport const POLICY_SCHEMA = {compacted};\n"


def compact(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with what the browser's router reads, which is part of its size: references are replaced by what they
    refer to, and "nullable" stands for the alternative null, which is then the default of a property without another.
    Any other property without a default is required, the default of an object is made of its properties' own, and no
    object has unknown keys. What has items is a list, and what has properties an object. Other types are those of
    `web/src/shared/declared.ts`.
    """
    if "anyOf" in schema:
        (inner,) = (choice for choice in schema["anyOf"] if choice.get("type") != "null")
        default = {} if schema["default"] is None else {"default": schema["default"]}
        return compact({**inner, **default, "nullable": True}, definitions)
    if "$ref" in schema:
        inner = definitions[schema["$ref"].removeprefix("#/$defs/")]
        return compact({**inner, **{key: schema[key] for key in ("default", "nullable") if key in schema}}, definitions)
    found = {key: value for key, value in schema.items() if key not in LEFT_OUT}
    if isinstance(found.get("default"), dict):
        found["default"] = {}
    if "properties" in found:
        # A property could have the name of a key of the schema.
        found["properties"] = {name: compact(inner, definitions) for name, inner in found["properties"].items()}
    if "items" in found:
        found["items"] = compact(found["items"], definitions)
    if found.get("type") in ("number", "integer") or "enum" in found:
        only = {"minimum": schema["const"], "maximum": schema["const"]} if "const" in schema else schema
        found["type"] = short_form({"type": found["type"], **{key: only[key] for key in LIMITS if key in only}})
    kept = dict(sorted((key, value) for key, value in found.items() if key not in LIMITS))
    if "items" in kept or "properties" in kept:
        del kept["type"]
    return kept


if __name__ == "__main__":
    print({"json": json_schema, "typescript": typescript}[sys.argv[1]](), end="")
