"""The safetensors reader against the library's own writer, and with truncated, corrupt and contradictory files."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.compiler.formats.safetensors_file import SafetensorsTensor, read_safetensors
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

FILE_SETTINGS = settings(max_examples=150)


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    as_lists = [list(each) if isinstance(each, tuple) else each for each in (shape, offsets)]
    return {"dtype": dtype, "shape": as_lists[0], "data_offsets": as_lists[1]}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1,), (7,), (1, 1), (5, 3), (4, 3, 2), (0, 3), (3, 0), ()])
def test_rows_have_the_values_of_torch(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    save_file({"before": torch.ones(3), "x": values}, tmp_path / "x.safetensors")
    tensor = read_safetensors(tmp_path / "x.safetensors")["x"]
    assert (tensor.name, tensor.shape) == ("x", shape)
    expected = values.float().numpy().reshape(shape or (1,))
    for start in range(len(expected) + 1):
        for stop in range(start, len(expected) + 1):
            rows = tensor.rows(start, stop)
            assert rows.dtype == np.float32
            assert rows.flags.c_contiguous
            np.testing.assert_array_equal(rows, expected[start:stop])


def test_special_values_survive_widening(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    values = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3.3e38, 6e-8])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        save_file({"x": values.to(dtype)}, tmp_path / "x.safetensors")
        rows = read_safetensors(tmp_path / "x.safetensors")["x"].rows(0, 8)
        np.testing.assert_array_equal(rows, values.to(dtype).float().numpy())
        assert np.signbit(rows[1])


def test_rows_outside_of_the_tensor_are_an_index_error(tmp_path: Path) -> None:
    tensor = read_safetensors(write(tmp_path / "x", {"x": entry()}, bytes(8)))["x"]
    for start, stop in [(-1, 1), (0, 3), (2, 1)]:
        with pytest.raises(IndexError, match=f"rows {start} to {stop} of tensor 'x', which has 2"):
            tensor.rows(start, stop)


@pytest.mark.parametrize(
    ("dtype", "size"), [("I64", 16), ("F64", 16), ("F8_E4M3", 2), ("BOOL", 2), ("U8", 2), ("F4", 1)]
)
def test_other_dtypes_are_listed_and_refused_when_read(dtype: str, size: int, tmp_path: Path) -> None:
    tensor = read_safetensors(write(tmp_path / "x", {"steps": entry(dtype, (2,), (0, size))}, bytes(size)))["steps"]
    assert tensor.dtype == dtype
    with pytest.raises(
        UnsupportedModel, match=f"tensor 'steps' has dtype {dtype}, which is not supported; supported: F32, F16, BF16"
    ):
        tensor.rows(0, 1)


def test_tensors_are_in_the_order_of_their_bytes_without_metadata(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry(offsets=(8, 16)),
        "empty": entry("F32", (0,), (8, 8)),
        "a": entry(),
    }
    assert list(read_safetensors(write(tmp_path / "x", header, bytes(16)))) == ["a", "empty", "b"]


def test_reading_rows_uses_memory_only_for_these_rows(tmp_path: Path) -> None:
    rows, columns = 4096, 1024
    path = write(
        tmp_path / "x", {"x": entry("BF16", (rows, columns), (0, rows * columns * 2))}, bytes(rows * columns * 2)
    )
    tracemalloc.start()
    try:
        read_safetensors(path)["x"].rows(100, 104)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_threads_read_the_same_tensor_at_once(tmp_path: Path) -> None:
    values = np.arange(64 * 33, dtype=np.float32).reshape(64, 33)
    tensor = read_safetensors(
        write(tmp_path / "x", {"x": entry("F32", (64, 33), (0, values.nbytes))}, values.tobytes())
    )["x"]
    with ThreadPoolExecutor(8) as pool:
        for index, rows in enumerate(pool.map(lambda index: tensor.rows(index % 64, index % 64 + 1), range(400))):
            np.testing.assert_array_equal(rows[0], values[index % 64])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"x": entry("F99")}, "tensor 'x' has unknown dtype 'F99'"),
        ({"x": entry(shape=(3,))}, r"shape \[3\] takes 12 bytes, data_offsets give 8"),
        ({"x": entry(shape=(-2,))}, "expected a list of sizes"),
        ({"x": entry(shape=(True, 2))}, "expected a list of sizes"),
        ({"x": entry(shape=(2.0,))}, "expected a list of sizes"),
        ({"x": entry(shape=(0, 2**62), offsets=(0, 0))}, "expected a list of sizes"),
        ({"x": entry(shape=[1] * 65)}, "expected a list of sizes"),
        ({"x": entry(shape="2")}, "expected a list of sizes"),
        ({"x": entry(offsets=(8, 0))}, "expected \\[start, stop\\]"),
        ({"x": entry(offsets=(0, 8, 9))}, "expected \\[start, stop\\]"),
        ({"x": entry(offsets=(4, 12))}, "starts at byte 4 of the data, but byte 0 is expected"),
        (
            {"x": entry(), "y": entry(offsets=(4, 12))},
            "tensor 'y' starts at byte 4 of the data, but byte 8 is expected",
        ),
        ({"x": {"dtype": "F32", "shape": [2]}}, "must have exactly dtype, shape and data_offsets"),
        ({"x": [1]}, "must have exactly dtype, shape and data_offsets"),
        ([1], "contains a JSON array, but an object is expected"),
        (b'{"x": ', "header: line 1 column 7: not valid JSON"),
        (b'{"x": {}, "x": {}}', "key 'x' occurs twice"),
        ({}, "according to its header it has 10 bytes, but it has 18; the file is corrupt"),
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(header: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"x\.safetensors: .*{message}"):
        read_safetensors(write(tmp_path / "x.safetensors", header, bytes(8)))


def test_the_error_for_a_truncated_file_states_both_sizes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"x": entry()}, bytes(8))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(
        CheckpointError,
        match=f"the file is truncated: according to its header it has {len(content)} bytes, but it has "
        f"{len(content) - 1}; ",
    ):
        read_safetensors(path)
    path.write_bytes(content[:20])
    with pytest.raises(CheckpointError, match="the file is truncated: its header alone has"):
        read_safetensors(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="the file has 0 bytes"):
        read_safetensors(path)


def test_files_of_other_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\x80\x02pickled weights" * 10)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_safetensors(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(CheckpointError, match="is a Git LFS pointer"):
        read_safetensors(path)
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_safetensors(tmp_path / "absent")


def test_a_file_that_shrinks_or_vanishes_after_it_was_opened_is_a_typed_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"x": entry()}, bytes(8))
    tensor = read_safetensors(path)["x"]
    path.write_bytes(path.read_bytes()[:-4])
    assert tensor.rows(0, 1).shape == (1,)
    with pytest.raises(CheckpointError, match="ends inside tensor 'x'"):
        tensor.rows(0, 2)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        tensor.rows(0, 2)


SOUND_DATA = np.arange(6, dtype=np.float32)
SOUND_HEADER = json.dumps({"a": entry("F32", (2, 2), (0, 16)), "b": entry("F32", (2,), (16, 24))}).encode()
SOUND_FILE = len(SOUND_HEADER).to_bytes(8, "little") + SOUND_HEADER + SOUND_DATA.tobytes()


def check_right_or_refused(path: Path, content: bytes) -> None:
    """An accepted file must cover its data exactly and return its bytes; all others must be a CheckpointError."""
    path.write_bytes(content)
    try:
        tensors = read_safetensors(path)
        rows = [tensor.rows(0, (tensor.shape or (1,))[0]) for tensor in tensors.values() if tensor.dtype == "F32"]
    except CheckpointError:
        return
    if len(rows) == len(tensors):
        data_start = 8 + int.from_bytes(content[:8], "little")
        assert b"".join(each.tobytes() for each in rows) == content[data_start:]


@FILE_SETTINGS
@given(length=st.integers(0, len(SOUND_FILE) - 1))
def test_every_truncation_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(SOUND_FILE[:length])
    with pytest.raises(CheckpointError):
        read_safetensors(path)


@FILE_SETTINGS
@given(flips=st.lists(st.tuples(st.integers(0, 8 + len(SOUND_HEADER) - 1), st.integers(0, 7)), min_size=1, max_size=3))
def test_flipped_bits_in_the_header_are_refused_or_do_not_change_the_data(
    flips: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(SOUND_FILE)
    for position, bit in flips:
        content[position] ^= 1 << bit
    check_right_or_refused(tmp_path / "x.safetensors", bytes(content))


@FILE_SETTINGS
@given(position=st.integers(0, len(SOUND_FILE)), inserted=st.binary(min_size=1, max_size=12))
def test_inserted_bytes_are_refused_or_do_not_change_the_data(position: int, inserted: bytes, tmp_path: Path) -> None:
    check_right_or_refused(tmp_path / "x.safetensors", SOUND_FILE[:position] + inserted + SOUND_FILE[position:])


@FILE_SETTINGS
@given(
    tensors=st.dictionaries(
        st.text(min_size=1, max_size=6).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(["F32", "F16"]), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    ),
    data=st.data(),
)
def test_any_file_of_the_library_reads_back(
    tensors: dict[str, tuple[str, list[int]]], data: st.DataObject, tmp_path: Path
) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    kinds = {"F32": np.float32, "F16": np.float16}
    arrays: dict[str, Any] = {
        name: np.asarray(rng.standard_normal(shape)).astype(kinds[dtype]) for name, (dtype, shape) in tensors.items()
    }
    save_file(arrays, tmp_path / "x.safetensors")
    actual = read_safetensors(tmp_path / "x.safetensors")
    assert actual.keys() == arrays.keys()
    for name, array in arrays.items():
        assert isinstance(actual[name], SafetensorsTensor)
        expected = array.astype(np.float32).reshape(array.shape or (1,))
        np.testing.assert_array_equal(actual[name].rows(0, len(expected)), expected)


def test_a_tensor_at_a_large_offset_is_read(tmp_path: Path) -> None:
    far = 2**31
    header = json.dumps(
        {
            "padding": {"dtype": "U8", "shape": [far], "data_offsets": [0, far]},
            "weight": {"dtype": "F32", "shape": [2], "data_offsets": [far, far + 8]},
        }
    ).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:  # A sparse file, which takes no disk space.
        file.write(len(header).to_bytes(8, "little") + header)
        file.seek(far, 1)
        file.write(np.array([1.5, -2.0], np.float32).tobytes())
    np.testing.assert_array_equal(read_safetensors(path)["weight"].rows(0, 2), [1.5, -2.0])
