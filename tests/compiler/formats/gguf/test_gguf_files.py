"""GGUF files that are damaged, hostile, split, or of another kind: a typed error by name, and never a crash."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter
from gguf_files import make_gguf

from nearfar.compiler.formats import load
from nearfar.compiler.formats.gguf.container import read_container
from nearfar.compiler.formats.stop_tokens import with_stops
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel

KEYS_PLACE, TENSORS_PLACE = 16, 8
# The memory that may be used to refuse a file with a replaced part.
MOST_BYTES = 64 << 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf("llama", tmp_path_factory.mktemp("gguf"), lambda _: Type.Q8_0)[0]


@pytest.fixture
def changed(whole: Path, tmp_path: Path) -> Callable[[Callable[[bytearray], object]], Path]:
    """Makes a copy of the file after a change of its bytes."""

    def make(change: Callable[[bytearray], object]) -> Path:
        data = bytearray(whole.read_bytes())
        change(data)
        (tmp_path / "changed.gguf").write_bytes(data)
        return tmp_path / "changed.gguf"

    return make


def put(data: bytearray, place: int, code: str, value: int) -> None:
    data[place : place + struct.calcsize(code)] = struct.pack(f"<{code}", value)


def info_of(data: bytearray, name: bytes) -> int:
    """The offset just after a tensor's name in the header, at which its rank, dimensions, type and data offset
    begin.
    """
    return data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)


def swap_magic(data: bytearray) -> None:
    data[:4] = b"GGML"


def write_types(path: Path, tensors: list[tuple[tuple[int, int], int, int]]) -> Path:
    """Write a file of zeros with tensors "0", "1" and so on of these shapes, numbers of types and sizes in bytes."""
    head, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 0), b""
    for number, ((rows, columns), kind, size) in enumerate(tensors):
        head += struct.pack("<Q1sIQQIQ", 1, b"%d" % number, 2, columns, rows, kind, len(data))
        data += bytes(size + -size % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


@pytest.mark.parametrize(("elements", "size"), [(64, 18), (128, 34)])
def test_the_size_of_a_tensor_selects_one_of_two_types_of_a_number(elements: int, size: int, tmp_path: Path) -> None:
    bytes_of_rows = 8 * 256 // elements * size
    path = write_types(tmp_path / "file.gguf", [((8, 256), 42, bytes_of_rows), ((8, 256), 42, bytes_of_rows)])
    tensors = read_container(path).tensors
    assert [(each.type.name, each.type.elements) for each in tensors.values()] == [("Q2_0", elements)] * 2


def test_a_size_that_fits_both_types_of_a_number_or_none_is_refused(tmp_path: Path) -> None:
    # 216 and 204 bytes end at the same multiple of 32.
    for size in (216, 96):
        path = write_types(tmp_path / "file.gguf", [((3, 256), 42, size), ((1, 32), 2, 18)])
        with pytest.raises(UnsupportedModel, match=r"Q2_0, which stands for different blocks"):
            read_container(path)


def test_types_with_tables_need_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_types(tmp_path / "file.gguf", [((1, 256), 16, 66)])
    assert read_container(path).tensors["0"].type.name == "IQ2_XXS"
    monkeypatch.setattr("nearfar.compiler.formats.gguf.container.has_tables", lambda: False)
    with pytest.raises(UnsupportedModel, match="type IQ2_XXS, whose tables need a package: pip install"):
        read_container(path)


def big_endian(data: bytearray) -> None:
    data[4:8] = data[4:8][::-1]


def version_1(data: bytearray) -> None:
    put(data, 4, "I", 1)


def many_keys(data: bytearray) -> None:
    put(data, KEYS_PLACE, "Q", 1 << 60)


def many_tensors(data: bytearray) -> None:
    put(data, TENSORS_PLACE, "Q", 1 << 60)


def long_key(data: bytearray) -> None:
    put(data, 24, "Q", 4 << 30)


def long_array(data: bytearray) -> None:
    key = b"tokenizer.ggml.tokens"
    put(data, data.index(key) + len(key) + 8, "Q", 1 << 60)


def no_such_value(data: bytearray) -> None:
    key = b"general.architecture"
    put(data, data.index(key) + len(key), "I", 99)


def not_utf8(data: bytearray) -> None:
    data[data.index(b"general.architecture")] = 0xFF


def twice(data: bytearray) -> None:
    place = data.index(b"blk.1.attn_q.weight")
    data[place : place + 5] = b"blk.0"


def outside(data: bytearray) -> None:
    put(data, info_of(data, b"blk.0.attn_q.weight") + 4 + 16 + 4, "Q", 1 << 50)


def many_axes(data: bytearray) -> None:
    put(data, info_of(data, b"blk.0.attn_q.weight"), "I", 1 << 31)


def huge_shape(data: bytearray) -> None:
    put(data, info_of(data, b"blk.0.attn_q.weight") + 4, "Q", 1 << 62)


def other_type(data: bytearray) -> None:
    put(data, info_of(data, b"blk.0.attn_q.weight") + 4 + 16, "I", 777)


def other_block_size(data: bytearray) -> None:
    # Like Q8_1 in files of another fork: this tensor's end is not the start of the next one.
    put(data, info_of(data, b"blk.0.attn_q.weight") + 4 + 16, "I", Type.Q5_0)


DAMAGE: dict[Callable[[bytearray], object], str] = {
    swap_magic: "is not a GGUF file: it does not begin with 'GGUF'",
    big_endian: "is a big-endian GGUF file",
    version_1: "has version 1 of GGUF; supported: 2, 3",
    many_keys: "claims to have 1152921504606846976 keys, more than fit",
    many_tensors: "claims to have 1152921504606846976 tensors, more than fit",
    long_key: "a key has 4294967296 bytes",
    long_array: "1152921504606846976 items of 'tokenizer.ggml.tokens', more than fit",
    no_such_value: "'general.architecture' has a value of type 99",
    not_utf8: "a key is not UTF-8",
    twice: "tensor 'blk.0.attn_q.weight' appears twice",
    outside: r"begins at byte \d+ of the data, but byte \d+ is expected",
    many_axes: "has 2147483648 axes",
    huge_shape: "expected rows of whole blocks of 32",
    other_type: "tensor 'blk.0.attn_q.weight' has type 777, which is not known; known: .*Q4_K",
    other_block_size: "a type may have another block size here",
}


@pytest.mark.parametrize("change", DAMAGE, ids=lambda change: change.__name__)
def test_damage_is_named_in_little_memory(
    change: Callable[[bytearray], object], changed: Callable[[Callable[[bytearray], object]], Path]
) -> None:
    path = changed(change)
    tracemalloc.start()
    try:
        with pytest.raises((CheckpointError, UnsupportedModel), match=DAMAGE[change]) as caught:
            load(str(path))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert str(path) in caught.value.message


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.3, 0.999])
def test_a_truncated_file_is_named(share: float, whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    (tmp_path / "part.gguf").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"the file is truncated|more than fit"):
        load(str(tmp_path / "part.gguf"))


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        load(str(tmp_path / "x.gguf"))


def test_a_file_that_shrinks_after_it_was_opened_is_named(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(whole, path)
    tensor = load(str(path)).tensors["lm_head.weight"]
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="became shorter after it was opened"):
        tensor.rows(0, tensor.shape[0])


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"llama__attention__sinks": 4}, UnsupportedModel, r"'llama\.attention\.sinks' is not known"),
        ({"llama__expert_count": 8}, UnsupportedModel, r"'llama\.expert_count' is 8"),
        ({"llama__attention__causal": False}, UnsupportedModel, r"'llama\.attention\.causal' is False"),
    ],
)
def test_a_key_that_may_change_the_model_is_refused(
    keys: dict[str, Any], error: type[NearfarError], words: str, tmp_path: Path
) -> None:
    path, _ = make_gguf("llama", tmp_path, **keys)
    with pytest.raises(error, match=words):
        load(str(path))


def test_towers_and_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    for architecture, words in (("clip", "the image or audio encoder"), ("mamba", "'mamba' is not supported")):
        writer = GGUFWriter(tmp_path / "x.gguf", architecture)
        writer.add_tensor("v.patch_embd.weight", np.zeros((2, 2), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(UnsupportedModel, match=words):
            load(str(tmp_path / "x.gguf"))


# --- files in parts ---


def split(whole: Path, folder: Path, count: int = 3) -> list[Path]:
    """The file in parts, as llama-gguf-split writes them: all keys are in the first."""
    reader = GGUFReader(whole)
    tensors = [*reader.tensors]
    size = -(-len(tensors) // count)
    folder.mkdir()
    header = whole.read_bytes()
    paths = []
    for number in range(count):
        path = folder / f"model-{number + 1:05d}-of-{count:05d}.gguf"
        part = tensors[number * size : (number + 1) * size]
        keys, num_keys = b"", 0
        if number == 0:
            start, num_keys = 24, struct.unpack_from("<Q", header, KEYS_PLACE)[0]
            keys = header[start : header.index(struct.pack("<Q", len(tensors[0].name)) + tensors[0].name.encode())]
        for key, code, kind, value in (
            (b"split.no", "H", 2, number),
            (b"split.count", "H", 2, count),
            (b"split.tensors.count", "i", 5, len(tensors)),
        ):
            keys += struct.pack("<Q", len(key)) + key + struct.pack(f"<I{code}", kind, value)
        infos, data = b"", b""
        for tensor in part:
            name = tensor.name.encode()
            axes = [int(axis) for axis in tensor.shape]
            infos += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(axes)}Q", len(axes), *axes)
            infos += struct.pack("<IQ", int(tensor.tensor_type), len(data))
            data += tensor.data.tobytes()
            data += bytes(-len(data) % 32)
        start_of = b"GGUF" + struct.pack("<IQQ", 3, len(part), num_keys + 3) + keys + infos
        path.write_bytes(start_of + bytes(-len(start_of) % 32) + data)
        paths.append(path)
    return paths


def test_a_files_ids_and_its_templates_end_of_turn_end_answers(whole: Path) -> None:
    """258 is </s>, the file's eos; its template writes nothing behind an answer."""
    checkpoint = load(str(whole))
    assert checkpoint.spec.eos_token_ids == (258,)
    turned = replace(checkpoint.tokenizer, chat_template="{% for m in messages %}{{ m.content }}<s>{% endfor %}")
    assert with_stops(replace(checkpoint, tokenizer=turned)).spec.eos_token_ids == (258, 257)


def test_a_model_in_parts_is_that_of_one_file(whole: Path, tmp_path: Path) -> None:
    parts = split(whole, tmp_path / "parts")
    expected = load(str(whole))
    for name in (parts[0], parts[2], tmp_path / "parts"):
        found = load(str(name))
        assert (found.spec, found.config) == (expected.spec, expected.config)
        assert found.tensors.keys() == expected.tensors.keys()
        for tensor in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"):
            size = expected.tensors[tensor].shape[0]
            np.testing.assert_array_equal(found.tensors[tensor].rows(0, size), expected.tensors[tensor].rows(0, size))


def test_parts_that_are_missing_or_of_another_model_are_named(whole: Path, tmp_path: Path) -> None:
    parts = split(whole, tmp_path / "parts")
    shutil.copy(parts[1], parts[2])
    with pytest.raises(CheckpointError, match=r"is part 2 of 3, but by its name it is part 3 of 3"):
        load(str(parts[0]))
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.gguf: is missing, .* download all 3 files"):
        load(str(parts[0]))


def test_a_part_under_another_name_is_named(whole: Path, tmp_path: Path) -> None:
    parts = split(whole, tmp_path / "parts")
    shutil.copy(parts[0], tmp_path / "alone.gguf")
    with pytest.raises(CheckpointError, match=r"is part 1 of 3, but by its name it is part 1 of 1"):
        load(str(tmp_path / "alone.gguf"))


# --- mutations ---


def mutate(data: bytearray, rng: np.random.Generator, header: int) -> None:
    """Change some bytes, mostly in the header: to random values, to all ones, or by moving a part."""
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(0, header if rng.random() < 0.9 else len(data)))
        kind, size = rng.integers(0, 4), int(rng.integers(1, 9))
        if kind == 0:
            data[place : place + size] = rng.bytes(size)
        elif kind == 1:
            data[place : place + size] = b"\xff" * size
        elif kind == 2:
            del data[place : place + size]
        else:
            data[place:place] = data[place // 2 : place // 2 + size]


def fuzz(whole: Path, path: Path, count: int) -> int:
    """The number of mutated files that were refused; all others were read. Other errors propagate."""
    original, rng = whole.read_bytes(), np.random.default_rng(0)
    header = min(tensor.offset_bytes for tensor in read_container(whole).tensors.values())
    refused = 0
    for _ in range(count):
        data = bytearray(original)
        mutate(data, rng, header)
        path.write_bytes(data)
        try:
            checkpoint = load(str(path))
            for tensor in checkpoint.tensors.values():
                tensor.rows(0, 1)
        except NearfarError:
            refused += 1
    return refused


def test_mutated_files_are_read_or_refused(whole: Path, tmp_path: Path) -> None:
    assert fuzz(whole, tmp_path / "x.gguf", 150) > 50


@pytest.mark.exhaustive
def test_ten_thousand_mutated_files_are_read_or_refused(whole: Path, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        assert fuzz(whole, tmp_path / "x.gguf", 10_000) > 5_000
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
