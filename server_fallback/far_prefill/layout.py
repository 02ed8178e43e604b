"""The pages and states of a model, as `engine/retained_pages.py` writes them and as they travel to a client.

On the wire a page of keys and values is one of `--kv q4` (`compiler/ir/kv_format.py`): 4-bit codes and a float32 scale
for each row, with rotated keys. So a device whose pages have that format stores what it receives, and every other one
decodes it. States of recurrent layers travel in the same rows: see `pack_states`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from nearfar.compiler.bundle.entries import ITEM_BYTES, BufferEntry
from nearfar.compiler.bundle.manifest import GENERATE, Description, Manifest
from nearfar.compiler.ir.kv_format import KV_FORMATS, KvName, kv_format
from nearfar.compiler.ir.ops.kv_pages import page_rows, quantize_rows, read_pages, rotated
from nearfar.compiler.ir.pages import PAGE_DIMS, STATES
from nearfar.compiler.quant.base import Array
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.page_groups import dead_pages, group_windows
from nearfar.compiler.runtime.variant import stored_dtype

WIRE: Final = KV_FORMATS["q4"]
# The forms of states: rows of 4 or 8 bits, or float16.
StatesForm = Literal["q4", "q8", "float16"]
LARGEST_FLOAT16: Final = 65504.0
# The targets whose kernels store the keys of a page element by element: see `compiler/kernels/cpu/pages.py`.
KEYS_BY_ELEMENT: Final = frozenset({"cpu"})


@dataclass(frozen=True, slots=True)
class Layer:
    """The keys and values of a layer: the state ``name``, (P, 2, heads, page, head_dim)."""

    name: str
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Group:
    """The layers of a page group, in the plan's order. ``window`` is that of `page_groups.PageGroup`."""

    window: int | None
    layers: tuple[Layer, ...]

    def dead(self, position: int, page_size: int) -> int:
        return dead_pages(self.window, position, page_size)


@dataclass(frozen=True, slots=True)
class State:
    """A state of recurrent layers: float32 of this shape in a slot. It is the matrix of each head, which later rows
    multiply, or a convolution's window of the last rows.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether its rows may travel as codes."""
        return len(self.shape) == 3 and self.shape[-1] % WIRE.multiple == 0


@dataclass(frozen=True, slots=True)
class KvLayout:
    """``kv``: the format of the engine's own pages. ``quantization``: the formats of the matrices.
    ``keys_by_element``: whether the engine's pages hold the keys of all tokens element by element.
    """

    page_size: int
    kv: KvName
    quantization: str
    groups: tuple[Group, ...]
    states: tuple[State, ...]
    keys_by_element: bool = False

    @staticmethod
    def of(manifest: Description) -> KvLayout:
        """Raises RequestError for a model whose pages cannot be sent."""
        if not isinstance(manifest, Manifest) or not manifest.generates or not manifest.paged:
            raise unavailable("it does not keep keys and values in pages of this server's own engine")
        states = manifest.plans[GENERATE].states
        groups = [
            Group(
                window,
                tuple(layer_of(name, state, manifest.kv) for name, state in states.items() if state.shape[0] == dim),
            )
            for dim, window in zip(PAGE_DIMS, group_windows(manifest), strict=False)
        ]
        if any(state.shape[0] == "PS" for state in states.values()):
            raise unavailable("its prompts are sounds")
        if not all(group.layers for group in groups):
            raise unavailable("it has no layers with attention, by which a client could check what it receives")
        odd = [layer for group in groups for layer in group.layers if layer.head_dim % WIRE.multiple > 0]
        if odd:
            raise unavailable(f"its heads have {odd[0].head_dim} numbers, which is not a multiple of {WIRE.multiple}")
        return KvLayout(
            manifest.page_size,
            manifest.kv,
            manifest.matrix_formats,
            tuple(groups),
            tuple(State(name, sizes_of(state)) for name, state in states.items() if state.shape[0] == STATES),
            manifest.target in KEYS_BY_ELEMENT,
        )

    def page_bytes(self, group: Group, activation: str) -> int:
        """The bytes of a page in the engine's own format."""
        return sum(self._layer_bytes(layer, activation) for layer in group.layers)

    def wire_pages(self, group: Group, data: bytes, activation: str) -> bytes:
        """Pages of a group as they travel: page by page, each with all layers. ``data``: the same in the engine's own
        format. Raises DeviceError for keys or values that are not finite.
        """
        count, rest = divmod(len(data), self.page_bytes(group, activation))
        assert rest == 0, "data has whole pages"
        pages = np.frombuffer(data, np.uint8).reshape(count, -1)
        columns, start = list[Array](), 0
        for layer in group.layers:
            size = self._layer_bytes(layer, activation)
            columns.append(self._wire_layer(layer, pages[:, start : start + size], activation))
            start += size
        return np.concatenate(columns, axis=1).tobytes()

    def split(self, data: bytes, activation: str, dead: Sequence[int], tokens: int) -> tuple[list[bytes], bytes]:
        """The pages of each group, and the states, in what the engine has read of ``tokens`` tokens without the first
        ``dead`` pages of each group.
        """
        parts, start = list[bytes](), 0
        for group, first in zip(self.groups, dead, strict=True):
            size = (tokens // self.page_size - first) * self.page_bytes(group, activation)
            parts.append(data[start : start + size])
            start += size
        if len(data) - start != self.state_bytes:
            raise DeviceError(f"{len(data)} bytes of pages were read, {start + self.state_bytes} were expected")
        return parts, data[start:]

    @property
    def state_bytes(self) -> int:
        """The bytes of a slot of all states."""
        return 4 * sum(state.size for state in self.states)

    def description(self) -> dict[str, Any]:
        """What a client compares with its own model."""
        return {
            "page_size": self.page_size,
            "quantization": self.quantization,
            "groups": [
                {
                    "window": group.window,
                    "layers": [[layer.name, layer.heads, layer.head_dim] for layer in group.layers],
                }
                for group in self.groups
            ],
            "states": [[state.name, list(state.shape)] for state in self.states],
        }

    def _layer_bytes(self, layer: Layer, activation: str) -> int:
        rows, form = 2 * layer.heads * self.page_size, kv_format(self.kv)
        if form is not None:
            return 4 * rows * form.words(layer.head_dim)
        return rows * layer.head_dim * ITEM_BYTES[activation]

    def _wire_layer(self, layer: Layer, data: Array, activation: str) -> Array:
        """The pages of a layer (n, bytes) as (n, words) of the wire."""
        form = kv_format(self.kv)
        content = np.ascontiguousarray(data)
        shape = (len(content), 2, layer.heads, self.page_size, -1)
        numbers = numbers_of(content, activation) if form is None else content.view("<u4")
        if self.keys_by_element:
            numbers = with_key_rows(numbers.reshape(shape), self.kv)
        if form is WIRE:
            return numbers.reshape(len(content), -1)
        return to_wire(read_pages(numbers.reshape(shape), {"kv": self.kv})).reshape(len(content), -1)


def with_key_rows(pages: Array, kv: KvName) -> Array:
    """Pages (n, 2, K, page, D), or words of integers, whose keys are (D, page) numbers, bytes or words of 4-bit codes,
    with keys (page, D).
    """
    changed, form = pages.copy(), kv_format(kv)
    keys, stored = (
        (changed[:, 0], pages[:, 0]) if form is None else (each[0][:, 0] for each in map(page_rows, (changed, pages)))
    )
    if form is not None and form.bits == 8:
        stored = np.ascontiguousarray(stored).view(np.uint8)
    rows, size = stored.shape[-2:]
    turned = np.swapaxes(stored.reshape(*stored.shape[:-2], size, rows), -1, -2)
    keys[...] = turned if turned.dtype == keys.dtype else np.ascontiguousarray(turned).view(keys.dtype)
    return changed


def to_wire(rows: Array) -> Array:
    """Pages (n, 2, K, page, D) float32, whose keys are not rotated, as uint32 (n, 2, K, page * words): for each page,
    plane and kv head the codes of all rows, then their scales. Raises DeviceError for numbers that are not finite.
    """
    if not np.isfinite(rows).all():
        raise DeviceError("the device computed keys or values that are not numbers; try another quantization")
    turned = rows.copy()
    turned[:, 0] = rotated(rows[:, 0])
    words = quantize_rows(turned, WIRE)
    pages = np.empty(words.shape, np.uint32)
    codes, scales = page_rows(pages)
    codes[...], scales[...] = words[..., :-1], words[..., -1]
    return pages.reshape(*pages.shape[:3], -1)


def pack_states(states: Sequence[State], data: bytes, form: StatesForm) -> tuple[bytes, str]:
    """Float32 states as they travel, and their dtype: ``form``, or "float32" if a number does not fit into float16.

    As "q4" or "q8", a matrix travels as a block of rows: rotated like keys, the codes of all rows, then their scales. A
    window travels as float16. Raises DeviceError for states that are not finite.
    """
    values, start = np.frombuffer(data, "<f4"), 0
    if not np.isfinite(values).all():
        raise DeviceError("the device computed states that are not numbers; try another quantization")
    parts = list[bytes]()
    for state in states:
        numbers = values[start : start + state.size]
        start += state.size
        if state.is_matrix and form != "float16":
            words = quantize_rows(rotated(numbers.reshape(-1, state.shape[-1])), KV_FORMATS[form])
            parts += [words[:, :-1].tobytes(), words[:, -1].tobytes()]
        elif np.abs(numbers).max(initial=0) > LARGEST_FLOAT16:
            return data, "float32"
        else:
            parts.append(numbers.astype("<f2").tobytes())
    return b"".join(parts), form


def numbers_of(data: Array, activation: str) -> Array:
    """Bytes of activations as numbers."""
    stored = stored_dtype(activation)
    if stored == "bfloat16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view({"float16": "<f2", "float32": "<f4"}[stored])


def layer_of(name: str, state: BufferEntry, kv: KvName) -> Layer:
    _, heads, _, last = sizes_of(state)
    form = kv_format(kv)
    return Layer(name, heads, last if form is None else form.head_dim(last))


def sizes_of(state: BufferEntry) -> tuple[int, ...]:
    """The sizes of one page or slot."""
    assert all(isinstance(size, int) for size in state.shape[1:]), "pages and states have fixed sizes"
    return tuple(int(size) for size in state.shape[1:])  # type: ignore[arg-type]


def unavailable(why: str) -> RequestError:
    return RequestError(
        f"this model's prompts cannot be computed for a client: {why}; compute them there",
        param="model",
        code="prefill_unavailable",
    )
