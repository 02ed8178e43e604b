"""What a projection loads and stores, from the options of a row in a table of cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.norms import LOAD, STORE
from nearfar.compiler.ir.ops.parts import Part


@dataclass
class Parts:
    """``load`` and ``store`` in canonical form, and the ``shapes`` of their inputs by role."""

    load: list[Part] = field(default_factory=list)
    store: list[Part] = field(default_factory=list)
    shapes: dict[str, tuple[Expr, ...]] = field(default_factory=dict)

    def add(self, place: str, op: str, shapes: dict[str, tuple[Expr, ...]], **attrs: Any) -> None:
        """Append a part. ``shapes`` are those of its inputs, by the roles of its op."""
        parts, declared = getattr(self, place), OPS[op].attrs
        own = {name: value for name, value in attrs.items() if name == "keep" or value != declared[name].default}
        self.shapes |= {f"{place}{len(parts)}_{role}": shape for role, shape in shapes.items()}
        parts.append({"op": op, **own})

    @property
    def attrs(self) -> dict[str, list[Part]]:
        return {"load": self.load, "store": self.store}

    @property
    def facts(self) -> dict[str, list[Part]]:
        """The two lists as kernels get them."""
        return {"load": LOAD.facts(self.shapes, self.attrs), "store": STORE.facts(self.shapes, self.attrs)}


def parts_of(
    columns: int,
    width: int,
    *,
    batch: Expr = "S",
    stream_eps: float | None = None,
    stream_factor: bool = False,
    norm_eps: float | None = None,
    norm_bias: bool = False,
    centered: bool = False,
    keeps_norm: bool = False,
    joint: bool = False,
    x_step: float | None = None,
    gated: bool = False,
    activation: str = "silu",
    up_width: int = 0,
    up_start: int = 0,
    y_step: float | None = None,
    y_activation: str | None = None,
    cap: float | None = None,
    clip: float | None = None,
    clamps: bool = False,
    factor: bool = False,
    row_factors: bool = False,
    limit: float | None = None,
    residual: bool = False,
) -> Parts:
    """The parts of a projection from ``columns`` to ``width`` columns. ``stream_eps``: x becomes the residual stream
    plus its norm, times a factor if ``stream_factor``. ``joint``: the weights of both norms are in one array.
    ``limit``: the gate of halves is that of gpt-oss.
    """
    parts, rows, first = Parts(), (batch, width), 0 if joint else None
    if stream_eps is not None:
        weights = columns * (2 if joint and norm_eps is not None else 1)
        parts.add("load", "rms_norm", {"weight": (weights,)}, eps=stream_eps, row=first)
        parts.add("load", "add", {"b": (batch, columns)}, **({} if stream_factor else {"keep": True}))
        if stream_factor:
            parts.add("load", "scale", {"factor": (1,)}, keep=True)
    if norm_eps is not None:
        shapes = {"weight": (columns * (2 if joint else 1),)} | ({"bias": (columns,)} if norm_bias else {})
        kept = {"keep": True} if keeps_norm else {}
        own = {"eps": norm_eps, "centered": centered, "row": 1 if joint else None}
        parts.add("load", "rms_norm", shapes, **own, **kept)  # type: ignore[arg-type]
    if x_step is not None:
        parts.add("load", "fake_quantize", {}, scale=x_step)
    if gated:
        own = {} if limit is None else {"limit": limit, "slope": 1.702, "shift": 1.0}
        parts.add("store", "gate_halves", {}, activation=activation, **own)
    if y_step is not None:
        parts.add("store", "fake_quantize", {}, scale=y_step)
    if up_width:
        parts.add("store", "gate", {"up": (batch, up_width)}, activation=activation, start=up_start)
    if y_activation == "xielu":
        parts.add("store", "xielu", {"alphas": (4,)})
    elif y_activation is not None:
        parts.add("store", "activate", {}, activation=y_activation)
    if cap is not None:
        parts.add("store", "soft_cap", {}, scale=0.5, cap=cap)
    if clip is not None:
        parts.add("store", "clip", {}, limit=clip)
    if clamps:
        parts.add("store", "clamp", {"bounds": (2,)})
    if factor:
        parts.add("store", "scale", {"factor": (1,)})
    if row_factors:
        parts.add("store", "scale_rows", {"factors": (batch,)})
    if residual:
        parts.add("store", "add", {"b": rows})
    return parts
