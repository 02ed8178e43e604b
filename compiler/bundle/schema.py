"""Writes the manifest's types for TypeScript from the Python ones, so that both runtimes read the same format: the
interfaces, and the data by which the page checks a manifest.

``python -m nearfar.compiler.bundle.schema`` writes both files into the web package. A test compares them.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.json_schema import models_json_schema
from typing_extensions import TypeAliasType

from ..ir.expr import MAX_INTEGER, Condition, Expr
from ..ir.images import (
    AreaBounds,
    EvenTiles,
    FixedSize,
    ImagePrompt,
    ImageSpec,
    LargestArea,
    LongestEdge,
    PositionSpec,
    TileGrid,
)
from ..ir.rotary_pairs import RotaryPairs
from ..ir.sounds import MelSpec, SoundSpec
from ..ir.spec import (
    AudioSpec,
    ConformerSpec,
    ExpertSpec,
    HearingSpec,
    ModelSpec,
    ReceptiveField,
    VisionSpec,
)
from ..ir.speech import CtcSpec, LanguageToken, SpeechSpec
from ..ir.tasks import ClassifierSpec, DecisionKindSpec, DecisionSpec, EmbeddingSpec, PromptSpec, TransitionSpec
from ..ir.videos import ByCount, ByRate, BySeconds, FrameArea, FrameEdge, FrameVolume, VideoPrompt, VideoSpec
from . import device_report, entries, manifest, probe
from .check import DIMS

FOLDER = Path(__file__).parents[2] / "web/src/runtime"
NULL = {"type": "null"}
# The page checks these types by code.
WITHOUT_DATA = {"Expr", "Condition", "TemplateTree"}
# The page does not read the fields of these types, because the plan has what follows from them.
UNTYPED = {"ConvolutionSpec", "DenseSpec", "DistanceSpec", "RopeSpec", "StateSpec"}
# It does not check the fields of these types.
UNREAD = UNTYPED | {
    "AudioSpec", "ConformerSpec", "CtcSpec", "ExpertSpec", "HearingSpec", "LanguageToken", "OriginEntry",
    "ReceptiveField", "SpeechSpec", "VisionSpec",
}  # fmt: skip
HEADER = """\
// The bundle's manifest. Written by compiler/bundle/schema.py from manifest.py and entries.py there: edit those files.

/** A size: an int, the name of a dim, or [operator, left, right]. */
export type Expr = number | string | readonly [string, Expr, Expr];

/** [comparison, left, right], ["and", condition, condition], or null for always. */
export type Condition = readonly [string, unknown, unknown] | null;
"""

PROBE_HEADER = """\
// A probe and its report. Written by compiler/bundle/schema.py from probe.py and device_report.py there: edit these.
"""


def outputs() -> dict[Path, str]:
    """The content of each file."""
    return {
        FOLDER / "manifest.ts": typescript(),
        FOLDER / "manifest_types.json": checks(manifest.Manifest, manifest.ExportManifest),
        FOLDER.parent / "probe/schema.ts": probe_types(),
        FOLDER.parent / "probe/report_types.json": checks(device_report.DeviceReport),
    }


def probe_types() -> str:
    """The interfaces of a probe and of its report. What a probe has of a manifest is checked as a part of one."""
    own = [probe.ProbeFile]
    own += [each for each in vars(device_report).values() if is_entry_of(device_report.__name__, each)]
    text = "".join(interface(entry) for entry in own)
    imported = sorted(name for name in vars(entries) if name[0].isupper() and re.search(rf"\b{name}\b(?!:)", text))
    names = "".join(f"  {name},\n" for name in imported if f"interface {name} " in typescript())
    return f'{PROBE_HEADER}\nimport type {{\n{names}}} from "../runtime/manifest.js";\n{text}'


def is_entry_of(module: str, value: object) -> bool:
    """Whether ``value`` is an entry that ``module`` defines, other than a base of its entries."""
    if not isinstance(value, type) or not issubclass(value, entries.Entry):
        return False
    return value.__module__ == module and not value.__subclasses__()


def typescript() -> str:
    """The interfaces."""
    # Entries that the manifest imports are in both tables.
    table = vars(entries) | vars(manifest)
    own = (entry for entry in table.values() if isinstance(entry, type) and issubclass(entry, entries.Entry))
    classes = [
        ExpertSpec,
        VisionSpec,
        HearingSpec,
        ReceptiveField,
        AudioSpec,
        ConformerSpec,
        ModelSpec,
        PromptSpec,
        EmbeddingSpec,
        TransitionSpec,
        DecisionKindSpec,
        DecisionSpec,
        ClassifierSpec,
        LanguageToken,
        SpeechSpec,
        CtcSpec,
        FixedSize,
        LongestEdge,
        AreaBounds,
        LargestArea,
        EvenTiles,
        TileGrid,
        PositionSpec,
        ImagePrompt,
        BySeconds,
        ByRate,
        ByCount,
        FrameEdge,
        FrameArea,
        FrameVolume,
        VideoPrompt,
        VideoSpec,
        ImageSpec,
        MelSpec,
        SoundSpec,
        RotaryPairs,
        *own,
    ]
    classes = [each for each in classes if each is not entries.Entry and each.__name__ not in UNTYPED]
    version = f"\nexport const FORMAT_VERSION = {manifest.FORMAT_VERSION};\n"
    names = json.dumps(sorted(DIMS))
    dims = f"\n/** The names of all dims; expr.ts describes them. */\nexport const DIMS: readonly string[] = {names};\n"
    return HEADER + version + dims + "".join(interface(entry) for entry in classes)


def interface(entry: type) -> str:
    comment = " ".join((entry.__doc__ or "").split())
    base = next((each for each in entry.__bases__ if each in (entries.BufferEntry, manifest.Description)), object)
    inherited, extends = get_type_hints(base), "" if base is object else f" extends {base.__name__}"
    fields = (
        f"  readonly {name}: {type_of(annotation)};"
        for name, annotation in get_type_hints(entry).items()
        if name != "model_config" and inherited.get(name) != annotation
    )
    return "\n".join([f"\n/** {comment} */", f"export interface {entry.__name__}{extends} {{", *fields, "}\n"])


def type_of(annotation: Any) -> str:
    """The TypeScript type of a Python type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, TypeAliasType):
        return annotation.__name__ if annotation in (Expr, Condition) else type_of(annotation.__value__)
    if origin is Annotated:
        return type_of(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(type_of(argument) for argument in arguments)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if origin in (list, tuple):
        item = type_of(arguments[0])
        return f"readonly {item}[]" if " " not in item else f"readonly ({item})[]"
    if origin in (dict, Mapping):
        return f"Readonly<Record<string, {type_of(arguments[1])}>>"
    if getattr(annotation, "__name__", "") in UNTYPED:
        return "object"
    names = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null", Any: "unknown"}
    return names[annotation] if annotation in names else str(annotation.__name__)


def checks(*models: type[entries.Entry]) -> str:
    """The types of models and of all their entries as data, for `web/src/shared/declared.ts`."""
    _, schema = models_json_schema([(model, "serialization") for model in models], ref_template="{model}")
    definitions = {name: each for name, each in schema["$defs"].items() if name not in WITHOUT_DATA}
    return declared_json({**definitions, **{name: {"type": "object"} for name in UNREAD & definitions.keys()}})


def declared_json(definitions: Mapping[str, Any]) -> str:
    """One line of JSON for each definition of a JSON Schema."""
    lines = (f"{json.dumps(name)}: {json.dumps(short_form(each))}" for name, each in definitions.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def short_form(schema: Mapping[str, Any]) -> Any:
    """A JSON Schema as `web/src/shared/declared.ts` reads it, which states the form: a text, or an object of texts for
    a type with fields.
    """
    if "$ref" in schema:
        return schema["$ref"]
    if "properties" in schema:
        return {name: short_form(each) for name, each in schema["properties"].items()}
    if "pattern" in schema:
        return {"pattern": schema["pattern"]}
    if "anyOf" in schema:
        kind = " or ".join(short_form(choice) for choice in schema["anyOf"] if choice != NULL)
        return f"{kind}?" if NULL in schema["anyOf"] else kind
    if "const" in schema or "enum" in schema:
        return "=" + "|".join(schema.get("enum") or [schema["const"]])
    if isinstance(schema.get("additionalProperties"), dict):
        return short_form(schema["additionalProperties"]) + "{}"
    if schema.get("type") == "array":
        most = f"..{schema['maxItems']}" if "maxItems" in schema else ""
        return f"{short_form(schema['items'])}[{most}]"
    return str(schema.get("type", "any")) + number_range(schema)


def number_range(schema: Mapping[str, Any]) -> str:
    """Numbers beyond JavaScript's integers are no bounds."""
    least, above, most = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    least, most = (None if each is None or abs(each) >= MAX_INTEGER else each for each in (least, most))
    if least is None and above is None and most is None:
        return ""
    start = f"{above}<" if above is not None else "" if least is None else str(least)
    return f" {start}..{'' if most is None else most}"


if __name__ == "__main__":
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")
