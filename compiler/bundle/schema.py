"""Writes the TypeScript types of the manifest from the Python ones, so that both runtimes read the same format.

``python -m nearfar.compiler.bundle.schema`` prints them. They are committed in the web package, and a test compares
them.
"""

from __future__ import annotations

import json
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from typing_extensions import TypeAliasType

from ..ir.rotary_pairs import RotaryPairs
from ..ir.spec import ClassifierSpec, DenseSpec, EmbeddingSpec, ModelSpec, PromptSpec, RopeSpec
from . import entries, manifest
from .check import DIMS

HEADER = """\
// The bundle's manifest. Written by compiler/bundle/schema.py from manifest.py and entries.py there: edit those files.

/** A size: an int, the name of a dim, or [operator, left, right]. */
export type Expr = number | string | readonly [string, Expr, Expr];

/** [comparison, left, right], ["and", condition, condition], or null for always. */
export type Condition = readonly [string, unknown, unknown] | null;
"""


def typescript() -> str:
    """The content of the TypeScript file."""
    # Entries that the manifest imports are in both tables.
    table = vars(entries) | vars(manifest)
    own = (entry for entry in table.values() if isinstance(entry, type) and issubclass(entry, entries.Entry))
    classes = [RopeSpec, ModelSpec, DenseSpec, PromptSpec, EmbeddingSpec, ClassifierSpec, RotaryPairs, *own]
    classes.remove(entries.Entry)
    version = f"\nexport const FORMAT_VERSION = {manifest.FORMAT_VERSION};\n"
    names = json.dumps(sorted(DIMS))
    dims = f"\n/** The names of all dims; expr.ts describes them. */\nexport const DIMS: readonly string[] = {names};\n"
    return HEADER + version + dims + "".join(interface(entry) for entry in classes)


def interface(entry: type) -> str:
    comment = " ".join((entry.__doc__ or "").split())
    fields = (
        f"  readonly {name}: {type_of(annotation)};"
        for name, annotation in get_type_hints(entry).items()
        if name != "model_config"
    )
    return "\n".join([f"\n/** {comment} */", f"export interface {entry.__name__} {{", *fields, "}\n"])


def type_of(annotation: Any) -> str:
    """The TypeScript type of a Python type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, TypeAliasType):
        return annotation.__name__
    if origin in (Union, types.UnionType):
        return " | ".join(type_of(argument) for argument in arguments)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if origin in (list, tuple):
        item = type_of(arguments[0])
        return f"readonly {item}[]" if " " not in item else f"readonly ({item})[]"
    if origin is dict:
        return f"Readonly<Record<string, {type_of(arguments[1])}>>"
    names = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null", Any: "unknown"}
    return names[annotation] if annotation in names else str(annotation.__name__)


if __name__ == "__main__":
    print(typescript(), end="")
