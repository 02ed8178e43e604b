"""The memory layouts of a packed matrix: convert planes (N, W) of any quantization to the form that a shard holds, and
back.

"rows": (N, W), row after row.
"tiles16": (ceil(N/16), W, 16), tiles of 16 rows. In each tile, element w of all rows is contiguous, so that one vector
load reads the same columns of 16 rows. A word of q4's plane ``q`` is 8 columns and one of q8's 4, so an integer dot
product instruction multiplies the bytes of 16 words by 4 activations. Rows beyond N are zeros.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from typing_extensions import TypeAliasType

from .base import Array

Layout = TypeAliasType("Layout", Literal["rows", "tiles16"])
TILE_ROWS = 16


def rows_per_tile(layout: Layout) -> int:
    """Blocks of rows that are stored separately are multiples of this number of rows."""
    return TILE_ROWS if layout == "tiles16" else 1


def stored_shape(layout: Layout, rows: int, columns: int) -> list[int]:
    """The shape of a plane (rows, columns) as it is stored."""
    return [-(-rows // TILE_ROWS), columns, TILE_ROWS] if layout == "tiles16" else [rows, columns]


def store_rows(layout: Layout, plane: Array) -> Array:
    """Rows (N, W) of a plane as they are stored; see `stored_shape`."""
    if layout == "rows":
        return plane
    rows, columns = plane.shape
    padded = np.pad(plane, ((0, -rows % TILE_ROWS), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, TILE_ROWS, columns).transpose(0, 2, 1))


def stored_rows(layout: Layout, stored: Array) -> Array:
    """The rows (N, W) of a stored plane; for tiles, all 16 rows of each, padding included."""
    if layout == "rows":
        return stored
    tiles, columns, rows = stored.shape
    return np.ascontiguousarray(stored.transpose(0, 2, 1)).reshape(tiles * rows, columns)
