"""Writes down what a version of vLLM or SGLang accepts: its arguments, parsers, fields of requests, routes and metrics.

    pip download vllm --no-deps -d build/wheel
    python tests/server_fallback/executors/other_engines/read_engine.py build/wheel/vllm-*.whl

reads the wheel without importing it and writes `vllm.json` beside this file; `git diff` then shows what a new version
has changed, and `test_other_engines.py` fails for what nearfar sends and the new version does not accept.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

Read = Callable[[str], str]

# Name of a request -> the module and class with its fields.
VLLM_REQUESTS = {
    "chat": ("entrypoints/openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    "completion": ("entrypoints/openai/completion/protocol.py", "CompletionRequest"),
    "structured_outputs": ("sampling_params.py", "StructuredOutputsParams"),
    "stream_options": ("entrypoints/generate/base/protocol.py", "StreamOptions"),
    "tokenize": ("entrypoints/serve/tokenize/protocol.py", "TokenizeCompletionRequest"),
    "tokenize_chat": ("entrypoints/serve/tokenize/protocol.py", "TokenizeChatRequest"),
    "detokenize": ("entrypoints/serve/tokenize/protocol.py", "DetokenizeRequest"),
}
SGLANG_REQUESTS = {
    "chat": ("srt/entrypoints/openai/protocol.py", "ChatCompletionRequest"),
    "completion": ("srt/entrypoints/openai/protocol.py", "CompletionRequest"),
    "message": ("srt/entrypoints/openai/protocol.py", "ChatCompletionMessageGenericParam"),
    "stream_options": ("srt/entrypoints/openai/protocol.py", "StreamOptions"),
    "score": ("srt/entrypoints/openai/protocol.py", "ScoringRequest"),
    "tokenize": ("srt/entrypoints/openai/protocol.py", "TokenizeRequest"),
    "detokenize": ("srt/entrypoints/openai/protocol.py", "DetokenizeRequest"),
}


def main(wheel: Path) -> None:
    package, version = wheel.name.split("-")[:2]
    with ZipFile(wheel) as archive:
        names = archive.namelist()

        def read(path: str) -> str:
            return archive.read(f"{package}/{path}").decode()

        sources = [name.removeprefix(f"{package}/") for name in names if name.endswith(".py")]
        facts = {"vllm": vllm_facts, "sglang": sglang_facts}[package](read, sources)
    file = Path(__file__).with_name(f"{package}.json")
    file.write_text(json.dumps({"package": package, "version": version, **facts}, indent=1) + "\n")


def vllm_facts(read: Read, sources: list[str]) -> dict[str, object]:
    front_end = ast.parse(read("entrypoints/common/cli_args.py"))
    flags = {flag for text in (read("engine/arg_utils.py"), read("entrypoints/common/cli_args.py"),
                               read("entrypoints/cli/serve.py")) for flag in added_flags(ast.parse(text))}  # fmt: skip
    flags |= {option(name) for each in ("BaseFrontendArgs", "FrontendArgs") for name in fields(front_end, each)}
    return {
        "arguments": sorted(flags),
        "tool_parsers": keys_of(read("tool_parsers/__init__.py"), "_TOOL_PARSERS_TO_REGISTER"),
        "reasoning_parsers": keys_of(read("reasoning/__init__.py"), "_REASONING_PARSERS_TO_REGISTER"),
        "requests": requests(read, VLLM_REQUESTS),
        "routes": routes(read, [each for each in sources if each.startswith("entrypoints/")]),
        "metrics": metrics(read, [each for each in sources if each.startswith("v1/")], "vllm"),
        "dead_engine": constants(ast.parse(read("v1/engine/exceptions.py")), "EngineDeadError"),
    }


def sglang_facts(read: Read, sources: list[str]) -> dict[str, object]:
    namespaces = [each for each in sources if each.startswith("srt/arg_groups/fields/")]
    options = {name for path in namespaces for each in classes(ast.parse(read(path))) for name in own_fields(each)}
    return {
        # As /server_info names them.
        "priority_options": sorted(name for name in options if "priority" in name),
        "requests": requests(read, SGLANG_REQUESTS),
        "routes": routes(read, ["srt/entrypoints/http_server.py"]),
        "headers": sorted(set(re.findall(r'"(x-[a-z-]+)"', read("srt/entrypoints/openai/serving_base.py")))),
    }


def requests(read: Read, named: Mapping[str, tuple[str, str]]) -> dict[str, list[str]]:
    return {name: sorted(fields(ast.parse(read(path)), kind)) for name, (path, kind) in named.items()}


def fields(module: ast.Module, name: str) -> Iterator[str]:
    """The annotated fields of a class, and of those of its bases that the module defines."""
    found = {each.name: each for each in classes(module)}
    if name not in found:
        raise SystemExit(f"the class {name} is not there any more; correct the table of requests")
    yield from own_fields(found[name])
    for base in found[name].bases:
        if isinstance(base, ast.Name) and base.id in found:
            yield from fields(module, base.id)


def own_fields(kind: ast.ClassDef) -> Iterator[str]:
    for each in kind.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_"):
            yield each.target.id


def constants(module: ast.Module, name: str) -> list[str]:
    """The texts that a class defines."""
    kind = next(each for each in classes(module) if each.name == name)
    values = [each.value for each in kind.body if isinstance(each, ast.Assign)]
    return [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def classes(module: ast.Module) -> list[ast.ClassDef]:
    return [each for each in module.body if isinstance(each, ast.ClassDef)]


def added_flags(module: ast.Module) -> Iterator[str]:
    """The flags in calls of ``add_argument``. A boolean has a second one with ``--no-``, which is not listed."""
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            for each in call.args:
                if isinstance(each, ast.Constant) and str(each.value).startswith("--"):
                    yield str(each.value)


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def keys_of(text: str, table: str) -> list[str]:
    value = assigned(text, table)
    assert isinstance(value, ast.Dict)
    return sorted(str(key.value) for key in value.keys if isinstance(key, ast.Constant))


def assigned(text: str, name: str) -> ast.expr | None:
    for each in ast.parse(text).body:
        targets = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(each, ast.Assign | ast.AnnAssign)
            return each.value
    raise SystemExit(f"the table {name} is not there any more; correct this script")


def routes(read: Read, paths: list[str]) -> list[str]:
    """The paths in decorators such as ``@router.post("/health")``."""
    found = set[str]()
    for path in paths:
        for node in ast.walk(ast.parse(read(path))):
            for each in node.decorator_list if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) else ():
                first = each.args[0] if isinstance(each, ast.Call) and each.args else None
                if isinstance(first, ast.Constant) and str(first.value).startswith("/"):
                    found.add(str(first.value))
    return sorted(found)


def metrics(read: Read, paths: list[str], prefix: str) -> list[str]:
    return sorted({name for path in paths for name in re.findall(rf'"({prefix}:[a-z0-9_]+)"', read(path))})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
