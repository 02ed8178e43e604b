"""The facts of attention's steps and kernels: heads and their pages, the preparation of q and k, and the scores.

They are derived from the shapes and attributes of a step, never from the model's spec, because layers may differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .expr import Expr
from .kv_format import KvFormat, kv_format

# The scratch buffer of an attention's result, if a projection reads it in the same step.
ATTENDED = "attended"


@dataclass(frozen=True, slots=True)
class Heads:
    """H query heads and K kv heads of D elements, of ``activation`` dtype, on pages of ``page_size`` tokens.

    ``kv`` is the format of pages (`ir/kv_format.py`). ``rows`` is the dim of the rows of q: "S" for all new tokens,
    "R" for the sampled rows, each of which is a sequence of one row, "V" for the patches of pictures.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    activation: str
    kv: str = "activation"
    rows: str = "S"

    @property
    def sequences(self) -> str:
        """The dim of the sequences that the rows belong to."""
        return {"S": "B", "V": "I"}.get(self.rows, self.rows)

    @property
    def group(self) -> int:
        """Query heads of one kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return 4 if self.head_dim % 4 == 0 else 2

    @property
    def vectors(self) -> int:
        """Vectors of a head."""
        return self.head_dim // self.lanes

    @property
    def vector_dtype(self) -> str:
        return f"float32x{self.lanes}"

    @property
    def stored_dtype(self) -> str:
        return f"{self.activation}x{self.lanes}"

    @property
    def form(self) -> KvFormat | None:
        """The format of pages of integers; None for pages of activations."""
        return kv_format(self.kv)

    @property
    def rotates_keys(self) -> bool:
        """Whether keys are stored rotated, so that queries must be rotated too."""
        return self.form is not None and self.form.rotates_keys

    @property
    def block_vectors(self) -> int:
        """Vectors in a block of a page: 16 bytes, or less if a head is not a multiple of that."""
        if self.form is not None:
            return math.gcd(self.vectors, 4 * self.form.vectors)
        return 2 if self.activation == "float16" and self.head_dim % 8 == 0 else 1


@dataclass(frozen=True, slots=True)
class Preparation:
    """The preparation of q and k before attention: a norm of each head if ``eps`` is given, then the rotation of
    ``rotary_dim`` elements.

    ``positions`` is the length of the rotation table; both are 0 without a rotation. If it is the dim of the step's
    rows, the table has a row for each of them. With ``norms_values``, heads of v
    are normalized too, without factors. Without ``appends``, a step has new queries only, and reads the keys and values
    of another. ``norm_wide``: the norms are over all heads of q and over all of k, each with weights of its own.
    ``norm_after``: the weights follow the rotation. Since a rotation does not change a head's length, the norm's factor
    may be computed before it. ``position_scale``: that of rotated queries; see `op.POSITION_SCALE`.
    """

    positions: Expr
    rotary_dim: int
    eps: float | None
    norms_values: bool = False
    appends: bool = True
    norm_wide: bool = False
    norm_after: bool = False
    position_scale: tuple[float, int] | None = None

    @property
    def by_row(self) -> bool:
        """Whether the table has a row for each row of the step."""
        return not isinstance(self.positions, int)

    @property
    def prepares(self) -> bool:
        """Whether anything happens to the queries, or there are keys and values to append."""
        return self.appends or self.rotary_dim > 0


@dataclass(frozen=True, slots=True)
class Scores:
    """score = softcap * tanh(scale * q k / softcap), for the keys that a row sees; see `ops.attention`. ``sinks``:
    whether each head has a sink. ``reach``: whether each row has a last key of its own. ``distances``: how many
    distances change a score, 0 if none do. Each adds a bias; or if ``distance_heads`` is not 0, the products with its
    own of that many projected embeddings; or if these are as many as the distances, a bias and the product of the
    query with its own.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
    sinks: bool = False
    reach: bool = False
    distances: int = 0
    distance_heads: int = 0

    @property
    def reads_positions(self) -> bool:
        """Whether the keys that a row sees, or their scores, depend on its position."""
        return self.causal or self.window is not None or self.distances > 0

    @property
    def own_heads(self) -> bool:
        """Whether each distance has a bias, and heads for queries alone."""
        return self.distances == self.distance_heads > 0

    @property
    def has_bias(self) -> bool:
        """Whether each distance has a bias."""
        return self.distances > 0 and (not self.distance_heads or self.own_heads)

    @property
    def bends(self) -> bool:
        """Whether a score is more than the scaled product of a query and a key."""
        return self.softcap is not None or self.distances > 0
