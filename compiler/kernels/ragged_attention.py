"""ragged_attention: attention over the rows of each text, whose queries, keys and values are in a joint projection.

One workgroup: one query head of a tile of rows of one text; `attention_tile.py` has its phases. Keys and values are
read from the projection's rows instead of pages.
"""

from __future__ import annotations

from ..ir.heads import ATTENDED, Heads, Scores
from .attention_tile import TileAttention, TileOptions, attend
from .batch_rows import BatchRows
from .builder import Kernel, KernelBuilder, Scalar, cast


def ragged_attention(
    name: str, *, heads: Heads, scores: Scores, options: TileOptions, y_in_scratch: bool = False
) -> Kernel:
    """``heads`` has pages of one token: tiles start at the first key that a row sees. ``y_in_scratch``: the result is
    the scratch buffer `ATTENDED`.
    """
    kernel = KernelBuilder(name, scalars=(heads.sequences,))
    return attend(RaggedAttention(kernel, heads, scores, options, y_in_scratch=y_in_scratch))


class RaggedAttention(TileAttention):
    def __init__(
        self, kernel: KernelBuilder, heads: Heads, scores: Scores, options: TileOptions, *, y_in_scratch: bool
    ) -> None:
        all_heads = heads.num_heads + 2 * heads.num_kv_heads
        qkv = kernel.buffer("qkv", (heads.rows, all_heads, heads.vectors), heads.stored_dtype)
        batch = BatchRows(kernel, heads, scores, paged=False)
        scratch = ATTENDED if y_in_scratch else None
        super().__init__(kernel, heads, scores, options, 0, qkv, batch, None, scratch=scratch)

    def stored(self, plane: int, first_key: Scalar, key: Scalar, vector: Scalar) -> Scalar:
        row = self.kernel.let("key_row", self.own.start + first_key + key)
        head = self.heads.num_heads + plane * self.heads.num_kv_heads + self.kv_head
        return cast(self.q[row, head, vector], self.heads.vector_dtype)
