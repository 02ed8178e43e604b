"""Combines JSON Schemas: resolves references, and merges allOf and sibling keywords.

It also tests whether branches of oneOf exclude each other. A keyword that cannot be merged is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from nearfar.compiler.errors import RequestError

Schema = bool | Mapping[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# Keywords that do not restrict values.
_ANNOTATIONS = {
    *(
        "$schema",
        "$id",
        "id",
        "$comment",
        "$anchor",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "example",
    ),
    *("deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"),
    # OpenAPI's: it names the property by which the branches of oneOf differ, whose constants are in them.
    "discriminator",
}
# The keywords that apply to one type only. A schema without a type that has one of them means that type.
_KEYWORDS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties"),
    ),
}
_KNOWN = {
    "type",
    "enum",
    "const",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    *(key for keys in _KEYWORDS.values() for key in keys),
}


def assertions(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The schema without annotations. Raises RequestError for a keyword that is not supported."""
    remaining = {key: value for key, value in schema.items() if key not in _ANNOTATIONS and not key.startswith("x-")}
    for key in remaining:
        if key not in _KNOWN:
            inner = " (in pydantic, declare the type itself, without Json)" if key == "contentSchema" else ""
            raise RequestError(
                f"{where}: the keyword '{key}' is not supported; remove it or rewrite the schema without it{inner}",
                keyword=key,
            )
    for key, names in (("type", list_of(remaining.get("type"))), ("required", remaining.get("required", []))):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequestError(f"{where}.{key} must be a list of names")
    if not isinstance(remaining.get("enum", []), list):
        raise RequestError(f"{where}.enum must be a list")
    return remaining


def resolve(root: Schema, ref: object, where: str) -> Schema:
    """The schema that ``ref`` points to in ``root``.

    Raises RequestError if it is outside of the document or missing.
    """
    if not isinstance(ref, str) or not re.match(r"#(/|$)", ref):
        raise RequestError(
            f"{where}: $ref {json.dumps(ref)} is not a path in the schema; put its target under $defs, and write "
            "'#/$defs/name'"
        )
    target: Any = root
    for part in ref.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        else:
            target = (
                target[int(key)]
                if isinstance(target, list) and key.isascii() and key.isdigit() and int(key) < len(target)
                else None
            )
    if not isinstance(target, bool | Mapping):
        raise RequestError(f"{where}: $ref '{ref}' points to nothing in the schema")
    return target


def merge(left: Schema, right: Schema, where: str) -> Schema:
    """The schema of the values that both allow. Raises RequestError for keywords that cannot be merged."""
    if left is True or right is False:
        return right
    if right is True or left is False:
        return left
    assert not isinstance(left, bool)
    assert not isinstance(right, bool)
    merged = dict(left)
    for key, value in right.items():
        merged[key] = _merge_keyword(key, left[key], value, where) if key in left else value
    _require_open(left, right, where)
    _require_open(right, left, where)
    return merged


def exclusive(left: Schema, right: Schema, expand: Callable[[Schema], Schema]) -> bool:
    """Whether no value is valid in both.

    Tests types, constants, and required properties with different constants only.
    """
    a, b = expand(left), expand(right)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is False or b is False
    constants_a, constants_b = constants_of(a), constants_of(b)
    if constants_a is not None and constants_b is not None:
        return not set(constants_a) & set(constants_b)
    shared = {_numeric(name) for name in types_of(a)} & {_numeric(name) for name in types_of(b)}
    if shared - {"object"}:
        return False
    if not shared:
        return True
    for name in set(list_of(a.get("required"))) & set(list_of(b.get("required"))):
        first, second = _property(a, name), _property(b, name)
        if first is not None and second is not None and exclusive(first, second, expand):
            return True
    return False


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema's own keywords allow; all types if they do not restrict them."""
    if "type" in schema:
        return list_of(schema["type"])
    constants = constants_of(schema)
    if constants is not None:
        return list(dict.fromkeys(type_of_value(json.loads(text)) for text in constants))
    meant = [name for name, keys in _KEYWORDS.items() if any(key in schema for key in keys)]
    return meant or list(TYPES)


def type_of_value(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "integer" if value == int(value) else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def constants_of(schema: Mapping[str, Any]) -> list[str] | None:
    """The values of const and enum as JSON; None if the schema has neither."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return [json_text(value) for value in values] if isinstance(values, list) else None


def allowed_constants(schema: Mapping[str, Any], where: str) -> list[Any]:
    """The values that const, enum and type allow. Raises RequestError for any other keyword."""
    other = next((key for key in schema if key not in ("type", "const", "enum")), None)
    if other is not None:
        raise RequestError(
            f"{where}: '{other}' is beside const or enum; list only the values that it allows", keyword=other
        )
    types = types_of(schema)
    allowed = [
        value
        for value in ([schema["const"]] if "const" in schema else schema["enum"])
        if type_of_value(value) in types or (type_of_value(value) == "integer" and "number" in types)
    ]
    if "const" in schema and "enum" in schema:
        listed = [json_text(value) for value in list_of(schema["enum"])]
        allowed = [value for value in allowed if json_text(value) in listed]
    return allowed


def json_text(value: Any) -> str:
    """The value as JSON without spaces, and with whole numbers without a point."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def list_of(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return int(value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return {key: _plain(part) for key, part in value.items()} if isinstance(value, dict) else value


def _numeric(name: str) -> str:
    return "number" if name == "integer" else name


def _property(schema: Mapping[str, Any], name: object) -> Schema | None:
    properties = schema.get("properties")
    value = properties.get(name) if isinstance(properties, Mapping) else None
    return value if isinstance(value, bool | Mapping) else None


def _merge_keyword(key: str, left: Any, right: Any, where: str) -> Any:
    if json_text(left) == json_text(right):
        return left
    try:
        if re.match("(min|exclusiveMin)", key):
            return max(left, right)
        if re.match("(max|exclusiveMax)", key):
            return min(left, right)
    except TypeError as error:
        raise RequestError(f"{where}: '{key}' must be a number") from error
    if key == "required":
        return list(dict.fromkeys([*list_of(left), *list_of(right)]))
    if key == "type":
        firsts, seconds = list_of(left), list_of(right)
        types = [name for name in firsts if name in seconds or (name == "integer" and "number" in seconds)]
        return list(dict.fromkeys([*types, *(name for name in seconds if name == "integer" and "number" in firsts)]))
    if key == "properties" and isinstance(left, Mapping) and isinstance(right, Mapping):
        both = {
            name: {"allOf": [left[name], right[name]]}
            for name in left
            if name in right and json_text(left[name]) != json_text(right[name])
        }
        return {**left, **right, **both}
    if key == "enum":
        texts = [json_text(value) for value in list_of(right)]
        return [value for value in list_of(left) if json_text(value) in texts]
    raise RequestError(
        f"{where}: '{key}' has two different values for one value of the answer; give it once", keyword=key
    )


def _require_open(closed: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """A schema without further properties forbids those of the other, which a merged schema would allow."""
    if closed.get("additionalProperties", True) is True:
        return
    named, others = closed.get("properties"), other.get("properties")
    more = [
        name
        for name in (others if isinstance(others, Mapping) else ())
        if not (isinstance(named, Mapping) and name in named)
    ]
    if more:
        listed = "', '".join(more)
        raise RequestError(
            f"{where}: additionalProperties forbids '{listed}', which is beside it; put all properties into one schema"
        )
