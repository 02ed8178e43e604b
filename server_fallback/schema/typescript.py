"""Writes the parameters and the answers of the API for the page, so that both sides have the same names, types, bounds
and defaults.

``python -m nearfar.server_fallback.schema.typescript`` writes the files of `outputs`. A test compares them.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from typing_extensions import Doc

from nearfar.compiler.bundle.schema import NULL, number_range, short_form
from nearfar.compiler.ir.sampling import DEFAULTS, TYPES, Settings, kind_and_bounds

from .chat import (
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    SoundTranscript,
    ToolCallDelta,
)
from .common import (
    EXTENSION,
    EXTENSION_IF_SET,
    NOT_NOW_STATUSES,
    OF_ACCOUNTS,
    STATUS_OF_TYPE,
    ErrorDetail,
    MaskedText,
    TokenLogprob,
    TopLogprob,
    Usage,
    marked,
)
from .completions import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from .decide import (
    ChoiceQuestion,
    DecidedAnswer,
    DecisionCalibration,
    LabelsQuestion,
    Scaling,
    ScoreQuestion,
    YesNoQuestion,
)
from .encoding import EncodingUsage
from .receipt import AnswerPart, Receipt, ReceiptChoice, ReceiptSampling, ReceiptSignature, SignedReceipt
from .rerank import RerankResponse, RerankResult
from .route import Description, Route
from .score import Classification, ClassifyResponse, ScoreResponse, SpanClass, TokenClass
from .verify import VerifyAccepted, VerifyError, VerifyOpened

WEB = Path(__file__).parents[2] / "web/src"
HEADER = "// Written by server_fallback/schema/typescript.py from {sources}: edit those files.\n"
# The page's engine has none of these; a module of its own issues receipts. How a completion is streamed is part of its
# type there.
SERVER_ONLY = {
    "cache_prompt", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "id_slot", "ignore_eos",
    "input_extra", "middle",
    "min_tokens", "receipt", "stop_token_ids", "structured_outputs", "verbosity", "watermark",
}  # fmt: skip
# Their types are written in api/types.ts, under the names of OpenAI's package, whose types are wider.
TYPES_OF_OPENAI = {
    "function_call": '"none" | "auto" | { readonly name: string }',
    "functions": "readonly ChatCompletionFunction[]",
    "messages": "readonly ChatCompletionMessageParam[]",
    "modalities": "readonly string[]",
    "prediction": "object",
    "prompt": "string | readonly string[] | readonly number[] | readonly (readonly number[])[] | null",
    "response_format": "ResponseFormat",
    "stream_options": "StreamOptions",
    "tool_choice": "ChatCompletionToolChoiceOption",
    "tools": "readonly ChatCompletionTool[]",
}
REQUIRED = ("messages", "prompt")
# Answers and their parts, and their names in TypeScript: OpenAI's package has most of them. A part that is not named
# here is written in place.
REPLIES: dict[type[BaseModel], str] = {
    Usage: "CompletionUsage",
    TopLogprob: "TopLogprob",
    TokenLogprob: "ChatCompletionTokenLogprob",
    ChatLogprobs: "ChatCompletionLogprobs",
    Description: "Description",
    MaskedText: "MaskedText",
    Route: "Route",
    ReceiptSampling: "ReceiptSampling",
    ReceiptChoice: "ReceiptChoice",
    Receipt: "Receipt",
    ReceiptSignature: "ReceiptSignature",
    SignedReceipt: "SignedReceipt",
    AnswerPart: "AnswerPart",
    AnswerToolCall: "ChatCompletionMessageToolCall",
    AnswerMessage: "ChatCompletionMessage",
    ChatChoice: "ChatCompletionChoice",
    SoundTranscript: "SoundTranscript",
    ChatCompletion: "ChatCompletion",
    ToolCallDelta: "ChatCompletionToolCallDelta",
    Delta: "ChatCompletionDelta",
    ChunkChoice: "ChatCompletionChunkChoice",
    ChatCompletionChunk: "ChatCompletionChunk",
    CompletionLogprobs: "CompletionLogprobs",
    CompletionChoice: "CompletionChoice",
    Completion: "Completion",
    CompletionChunkChoice: "CompletionChunkChoice",
    CompletionChunk: "CompletionChunk",
    EncodingUsage: "EncodingUsage",
    RerankResult: "RerankResult",
    RerankResponse: "RerankResponse",
    ScoreResponse: "ScoreResponse",
    TokenClass: "TokenClass",
    SpanClass: "SpanClass",
    Classification: "Classification",
    ClassifyResponse: "ClassifyResponse",
    ErrorDetail: "ErrorObject",
    VerifyOpened: "VerifyOpened",
    VerifyAccepted: "VerifyAccepted",
    VerifyError: "VerifyError",
}
# The questions of /v1/decide, and the answers to them, which `web/src/shared/questions` reads.
QUESTIONS: dict[type[BaseModel], str] = {
    ChoiceQuestion: "ChoiceQuestion",
    YesNoQuestion: "YesNoQuestion",
    ScoreQuestion: "ScoreQuestion",
    LabelsQuestion: "LabelsQuestion",
    Scaling: "Scaling",
    DecisionCalibration: "DecisionCalibration",
    DecidedAnswer: "DecidedAnswer",
}
# What differs in the page's answers: more fields, None for those that they never have, and narrower types.
PAGE: dict[type[BaseModel], dict[str, str | None]] = {
    TokenLogprob: {"token_id?": "number"},
    AnswerMessage: {"annotations": "ChatCompletionAnnotation[]"},
    Delta: {"annotations": "ChatCompletionAnnotation[]"},
    ChunkChoice: {"stop_reason": None},
    ChatChoice: {"stop_reason": None},
    CompletionChunkChoice: {"stop_reason": None},
    CompletionChoice: {"stop_reason": None},
    ChatCompletion: {"nearfar": None, "timings": "CompletionTimings"},
    ChatCompletionChunk: {"nearfar": None, "num_prompt_tokens": None, "timings?": "CompletionTimings"},
    Completion: {"route": None, "timings": "CompletionTimings"},
    CompletionChunk: {"route": None, "timings?": "CompletionTimings"},
    CompletionLogprobs: {"top_logprobs": "(Record<string, number> | null)[]"},
    RerankResult: {"document": "TextDocument"},
    RerankResponse: {"meta": None},
}


def outputs() -> dict[Path, str]:
    """The content of each file."""
    return {
        WEB / "shared/sampling.ts": sampling(),
        WEB / "api/parameters.ts": parameters(),
        WEB / "api/parameters.json": checks(),
        WEB / "api/replies.ts": replies(),
        WEB / "shared/questions/schema.ts": questions(),
    }


def sampling() -> str:
    """The engine's options, and the numbers among them as data."""
    docs = {"logitBias": ("ReadonlyMap<number, number>", "Added to the logits of these tokens.")}
    numbers = {}
    for name, declared in TYPES.items():
        default = {"default": DEFAULTS[name]} if name in DEFAULTS else {}
        text = next(each.documentation for each in get_args(declared) if isinstance(each, Doc))
        docs[camel(name)] = ("number", " ".join([text, *(f"Default: {each:g}." for each in default.values())]))
        kind, bounds = kind_and_bounds(declared)
        limits = {"minimum": bounds.ge, "exclusiveMinimum": bounds.gt, "maximum": bounds.le}
        type_name = ("integer" if kind is int else "number") + number_range(limits)
        numbers[camel(name)] = {"parameter": name, "type": type_name, **default}
    fields = [f"  /** {doc} */\n  readonly {name}?: {kind} | undefined;" for name, (kind, doc) in docs.items()]
    rows = [f"  {name}: {json.dumps(row)}," for name, row in numbers.items()]
    columns = json.dumps([camel(name) for name in Settings._fields])
    return "\n".join([
        HEADER.format(sources="compiler/ir/sampling.py"),
        "/** How the next token is chosen. */",
        "export interface SamplingOptions {", *fields, "}",
        "",
        "/** The numbers among the options: their names as parameters of the API, types and defaults. */",
        "export const SAMPLING = {", *rows, "} as const;",
        "",
        "/** The order of a row of settings, as devices read it; the draw is the random number. */",
        f"export const COLUMNS = {columns} as const;",
        "",
    ])  # fmt: skip


def parameters() -> str:
    """The types of the parameters: those of both kinds of completions, and of each alone."""
    chat, text = fields_of(ChatCompletionRequest), fields_of(CompletionRequest)
    both = {name: field for name, field in chat.items() if text.get(name) == field}
    imported = sorted({word for each in TYPES_OF_OPENAI.values() for word in re.findall(r"[A-Z]\w+", each)})
    return "".join([
        HEADER.format(sources="the classes of that folder"),
        f'\nimport type {{ {", ".join(imported)} }} from "./types.js";\n',
        interface("CommonParams", "The parameters of both. Null is the same as leaving a parameter out.", both),
        interface("ChatParams", "The other parameters of chats.", without(chat, both)),
        interface("CompletionParams", "The other parameters of texts.", without(text, both)),
    ])  # fmt: skip


def interface(name: str, doc: str, fields: dict[str, str]) -> str:
    return "\n".join([f"\n/** {doc} */" if doc else "", f"export interface {name} {{", *fields.values(), "}\n"])


def fields_of(request: type[BaseModel]) -> dict[str, str]:
    """Each parameter as a line of an interface, with its documentation."""
    schema = request.model_json_schema()["properties"]
    docs = docs_of(request)
    lines = {}
    for name in schema.keys() - SERVER_ONLY - {"stream"}:
        kind = TYPES_OF_OPENAI.get(name) or typescript_of(schema[name])
        field = f"readonly {name}: {kind};" if name in REQUIRED else f"readonly {name}?: {kind} | null | undefined;"
        lines[name] = (f"  /** {docs[name]} */\n" if name in docs else "") + f"  {field}"
    return {name: lines[name] for name in schema if name in lines}


def replies() -> str:
    """The types of the answers."""
    parts = [HEADER.format(sources="the classes of that folder"), "\n"]
    parts.append('import type { TextDocument } from "./encoder_types.js";\n')
    parts.append('import type { ChatCompletionAnnotation, CompletionTimings } from "./types.js";\n')
    return "".join([*parts, *interfaces(REPLIES, reply_schema()["$defs"])])


def questions() -> str:
    """The types of the questions of /v1/decide, which nothing changes."""
    schema = models_json_schema([(each, "serialization") for each in QUESTIONS], ref_template="{model}")[1]["$defs"]
    lines = "".join(interfaces(QUESTIONS, schema)).replace("Record<string, number>", "Readonly<Record<string, number>>")
    lines = re.sub(r"^  (\w+\??): ", r"  readonly \1: ", lines, flags=re.MULTILINE)
    lines = lines.replace("number[][]", "(readonly number[])[]")
    lines = re.sub(r"(?<!readonly )(\w+|\(readonly number\[\]\))\[\](?!\))", r"readonly \1[]", lines)
    return HEADER.format(sources="decide.py of that folder") + lines


def interfaces(classes: Mapping[type[BaseModel], str], schema: Mapping[str, Any]) -> list[str]:
    parts = []
    for reply, name in classes.items():
        docs = docs_of(reply)
        fields = {}
        for field, kind in reply_fields(schema[reply.__name__], schema, PAGE.get(reply, {})).items():
            doc = docs.get(field.rstrip("?"))
            fields[field] = (f"  /** {doc} */\n" if doc else "") + f"  {field}: {kind};"
        parts.append(interface(name, " ".join((reply.__doc__ or "").split()), fields))
    return parts


def reply_schema() -> dict[str, Any]:
    """The definitions of all answers, as they are sent."""
    return models_json_schema([(reply, "serialization") for reply in REPLIES], ref_template="{model}")[1]


def reply_fields(
    reply: Mapping[str, Any], schema: Mapping[str, Any], page: Mapping[str, str | None] = MappingProxyType({})
) -> dict[str, str]:
    """The type of each field by its name, which ends with "?" if the field may be left out."""
    fields = {}
    for name, each in reply["properties"].items():
        kind = page.get(name, typescript_of(each, schema))
        if kind is not None:
            fields[name + "?" * (name not in reply.get("required", ()))] = kind
    return fields | {name: kind for name, kind in page.items() if kind is not None and name not in reply["properties"]}


def docs_of(request: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a class and of those that it extends."""
    docs: dict[str, str] = {}
    for each in reversed(request.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
            assert isinstance(body, ast.ClassDef)
            for field, text in zip(body.body, body.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    docs[ast.unparse(field.target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return docs


def checks() -> str:
    """The types of the parameters for `web/src/shared/declared.ts`, which ones a dialect treats in its own way, and the
    meaning of statuses.
    """
    chat, text = types_of(ChatCompletionRequest), types_of(CompletionRequest)
    both = {name: kind for name, kind in chat.items() if text.get(name) == kind}
    tables: dict[str, Any] = {"common": both, "chat": without(chat, both), "completion": without(text, both)}
    for mark in (OF_ACCOUNTS, EXTENSION, EXTENSION_IF_SET):
        names = marked(ChatCompletionRequest, mark)
        tables[mark.name] = [name for name in names if name not in SERVER_ONLY]
    tables |= {"not_now_statuses": NOT_NOW_STATUSES, "status_of_type": STATUS_OF_TYPE}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(table)}" for name, table in tables.items()) + "\n}\n"


def types_of(request: type[BaseModel]) -> dict[str, Any]:
    schema = request.model_json_schema()
    return {name: short_form(shallow(each)) for name, each in schema["properties"].items() if name not in SERVER_ONLY}


def shallow(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema without null and without what other code reads: the fields of objects, and how many objects
    a list has, of which a server must have fewer than a page.
    """
    if "anyOf" in schema:
        choices = [shallow(each) for each in schema["anyOf"] if each != NULL]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if "$ref" in schema or "oneOf" in schema or schema.get("additionalProperties") is True:
        return {"type": "object"}
    if "items" not in schema:
        return schema
    items = shallow(schema["items"])
    return {"type": "array", "items": {}} if items == {"type": "object"} else {**schema, "items": items}


def typescript_of(schema: dict[str, Any], replies: Mapping[str, Any] | None = None) -> str:
    """A parameter's type, without null; or a type of ``replies``, whose lists and objects may be changed."""
    readonly = "readonly " if replies is None else ""
    if "$ref" in schema:
        assert replies is not None
        name = schema["$ref"]
        named = {reply.__name__: written for reply, written in (REPLIES | QUESTIONS).items()}
        fields = reply_fields(replies[name], replies).items() if name not in named else ()
        return named.get(name) or f"{{ {'; '.join(f'{field}: {kind}' for field, kind in fields)} }}"
    if "anyOf" in schema:
        choices = [each for each in schema["anyOf"] if replies is not None or each != NULL]
        # Any other text is another server's own value.
        known = [each for each in choices if each != {"type": "string"} or not any("enum" in one for one in choices)]
        return " | ".join(typescript_of(each, replies) for each in known)
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(each) for each in schema.get("enum") or [schema["const"]])
    if schema["type"] == "array":
        item = typescript_of(schema["items"], replies)
        is_plain = not schema["items"].keys() & {"anyOf", "enum"} and not item.startswith("readonly ")
        return f"{readonly}{item}[]" if is_plain else f"{readonly}({item})[]"
    if schema["type"] == "object":
        values = schema["additionalProperties"]
        record = f"Record<string, {'unknown' if values is True else typescript_of(values, replies)}>"
        return f"Readonly<{record}>" if readonly else record
    return "number" if schema["type"] == "integer" else str(schema["type"])


def without(fields: dict[str, Any], others: Iterable[str]) -> dict[str, Any]:
    return {name: field for name, field in fields.items() if name not in others}


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)


if __name__ == "__main__":
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")
