"""Odd input on the command line: for any path and any content of a checkpoint's files, errors are typed ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearfar.compiler.cli import main
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.errors import NearfarError

JSON_FILES = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
)
FILES = (
    *JSON_FILES,
    "model.safetensors",
    "model.safetensors.index.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
)
KEYS = (
    "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "bos_token", "pad_token",
    "image_token", "chat_template",
    "add_bos_token", "eos_token_id", "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "weight_map",
    "model",
    "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "version",
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["<s>", "\ud800", "\0", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)
# Chosen by name, because Hypothesis complains about examples as long as some of these.
CONTENTS = {
    "nul": b"\0",
    "not UTF-8": b"\xff\xfe",
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "deep but complete": b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
    "numbers that JSON does not have": b'{"a": 1e999, "b": NaN}',
    "half of a surrogate pair": b'{"\\ud800": "\\udfff"}',
    "huge": b'{"a": "' + b"x" * (1 << 20) + b'"}',
}


@pytest.fixture(scope="session")
def odd(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(tiny_checkpoints["llama_plain"], tmp_path_factory.mktemp("odd") / "model"))


def refused(model: str, output: Path) -> NearfarError | None:
    """The typed error of a compile, which then writes nothing. Any other error fails the test."""
    try:
        compile_any(model, output, CompileOptions(target="mlx", quantization="f32", context=64))
    except NearfarError as error:
        json.dumps(error.to_json(), default=str).encode()
        assert not output.exists()
        return error
    shutil.rmtree(output)
    return None


def with_file(folder: Path, name: str, content: bytes) -> NearfarError | None:
    path = folder / name
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    try:
        return refused(str(folder), folder.parent / "bundle")
    finally:
        path.unlink()
        if before is not None:
            path.write_bytes(before)


def mutated(folder: Path, name: str, key: str, value: Any) -> bytes:
    path = folder / name
    if name.endswith(".safetensors"):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        tensor = sorted(header)[len(repr(value)) % len(header)]
        header[tensor] = {**header[tensor], key: value} if key in ("dtype", "shape", "data_offsets") else value
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]
    values = json.loads(path.read_text()) if path.exists() else {}
    return json.dumps({**values, key: value}).encode()


def fuzz(odd: Path, examples: int) -> None:
    keys = {
        name: (*json.loads((odd / name).read_text()), *KEYS) if (odd / name).exists() else KEYS for name in JSON_FILES
    }
    keys_of_files = st.sampled_from([*((name, key) for name in JSON_FILES for key in keys[name])])
    header = st.tuples(
        st.just("model.safetensors"), st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "other"])
    )

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(target=keys_of_files | header, value=VALUES)
    def values(target: tuple[str, str], value: Any) -> None:
        with_file(odd, target[0], mutated(odd, *target, value))

    @settings(max_examples=examples // 2, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(name=st.sampled_from(FILES), content=st.sampled_from(sorted(CONTENTS)) | st.binary(max_size=40))
    def contents(name: str, content: str | bytes) -> None:
        with_file(odd, name, CONTENTS[content] if isinstance(content, str) else content)

    values()
    contents()


def test_files_with_odd_values_result_in_a_bundle_or_a_typed_error(odd: Path) -> None:
    fuzz(odd, 24)


@pytest.mark.exhaustive
def test_files_with_many_odd_values_result_in_a_bundle_or_a_typed_error(odd: Path) -> None:
    fuzz(odd, int(os.environ.get("NEARFAR_FUZZ_EXAMPLES", "3000")))


VALUES_OF_KINDS: tuple[Any, ...] = ("x", -1.5, [[]], {"x": {}}, None, 10**400)
KINDS = [pytest.param(kind, marks=() if kind == {"x": {}} else pytest.mark.exhaustive) for kind in VALUES_OF_KINDS]


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("value", KINDS, ids=["string", "number", "list", "object", "null", "long"])
def test_every_key_of_a_file_may_hold_any_type(name: str, value: Any, odd: Path) -> None:
    keys = [*(json.loads((odd / name).read_text()) if (odd / name).exists() else ()), *KEYS]
    for key in keys:
        with_file(odd, name, mutated(odd, name, key, value))


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


def in_turn(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Pairs of which `make test` runs every third in turn: each element of both, but not all combinations."""
    return [
        pytest.param(one, other, marks=[pytest.mark.exhaustive] * ((index + number) % 3 > 0))
        for index, one in enumerate(first)
        for number, other in enumerate(second)
    ]


@pytest.mark.parametrize(("make", "name"), in_turn((a_folder, a_link_to_itself, unreadable), FILES))
def test_a_path_that_is_not_a_file_is_a_typed_error_or_treated_as_missing(
    make: Callable[[Path], None], name: str, odd: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(odd, tmp_path / "model"))
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    refused(str(folder), tmp_path / "bundle")


ODD_PATHS = (
    "x" * 256,
    "x/" * 3000,
    "nul\0byte",
    "\udc80bad",
    "",
    "-",
    "~no-such-user",
    "/proc/self/mem",
    "/dev/null",
    "/dev/null/x",
    ".",
    "\n",
)


@pytest.mark.parametrize(
    ("command", "path"),
    in_turn(("compile", "output", "inspect", "run", "score", "sign", "trust", "tuning"), ODD_PATHS),
)
def test_odd_paths_are_typed_errors(
    command: str,
    path: str,
    odd: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    mlx = ("--target", "mlx", "--quantization", "f32", "--json")
    commands = {
        "compile": ("compile", f"./{path}", "-o", "bundle", *mlx),
        "output": ("compile", str(odd), f"--output={path}", *mlx),
        "inspect": ("inspect", f"./{path}"),
        "run": ("run", f"./{path}", "hello"),
        "score": ("score", f"./{path}", "--tokens", "1", "-o", "file"),
        "sign": ("sign", f"./{path}", "--key", "file"),
        "trust": ("inspect", "bundle", f"--trust={path}"),
        "tuning": ("compile", str(odd), "-o", "bundle", f"--tuning={path}"),
    }
    exit_code = main(commands[command])
    printed = capsys.readouterr()
    # These are valid names of folders.
    if command == "output" and path in ("\udc80bad", "-", "\n", "~no-such-user"):
        assert exit_code == 0
        return
    assert (exit_code, printed.out) == (2, ""), printed.err
    assert not (tmp_path / "bundle").exists()
