"""GraphParts: what encoders of texts and towers of pictures share, as nodes of a graph: projections and norms with the
names that their weights have on disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import Graph, Parameter, Source


class GraphParts:
    """``eps`` is that of the norms; they have biases if ``norm_bias``, and are LayerNorms if ``centered``."""

    def __init__(self, graph: Graph, eps: float, *, norm_bias: bool = True, centered: bool = True) -> None:
        self.graph = graph
        self._eps, self._norm_bias, self._centered = eps, norm_bias, centered

    def norm(self, module: str, x: str, name: str = "", eps: float | None = None) -> str:
        """A LayerNorm (Ba et al. 2016), or a norm by the root mean square."""
        columns = self.graph.shape_of(x)[1]
        assert isinstance(columns, int), (module, columns)
        inputs = {"x": x, "weight": self.vector(f"{module}.weight", columns)}
        if self._norm_bias:
            inputs["bias"] = self.vector(f"{module}.bias", columns)
        attrs = {"eps": eps or self._eps, "dtype": "float32", "centered": self._centered}
        return self.graph.add("rms_norm", inputs, name=f"{name or module}.out", **attrs)

    def linear(
        self,
        modules: Sequence[tuple[str, int]],
        x: str,
        name: str = "",
        *,
        bias: bool = True,
        dtype: str = "float32",
        activation: str = "none",
        here: str = "",
    ) -> str:
        """A projection whose rows are those of all modules, each with its number of rows. ``here`` precedes the names
        of values of a layer that shares its weights.
        """
        name = name or modules[0][0]
        columns = self.graph.shape_of(x)[1]
        assert isinstance(columns, int), (name, columns)
        inputs = {"x": x, "weight": self._stacked(f"{name}.weight", modules, "weight", columns)}
        if bias:
            inputs["bias"] = self._stacked(f"{name}.bias", modules, "bias", None)
        if activation == "none":
            return self.graph.add("linear", inputs, name=f"{here}{name}.out", dtype=dtype)
        y = self.graph.add("linear", inputs, name=f"{here}{name}.linear", dtype="float32")
        return self.graph.add("activate", {"x": y}, name=f"{here}{name}.out", activation=activation)

    def add(self, a: str, b: str, name: str) -> str:
        return self.graph.add("add", {"a": a, "b": b}, name=name)

    def matrix(self, name: str, rows: int, columns: int) -> str:
        self.graph.parameters[name] = Parameter(name, (Source(name, 0, rows),), columns)
        return name

    def vector(self, name: str, size: int) -> str:
        self.graph.parameters[name] = Parameter(name, (Source(name, 0, size),), None)
        return name

    def _stacked(self, name: str, modules: Sequence[tuple[str, int]], kind: str, columns: int | None) -> str:
        sources = tuple(Source(f"{module}.{kind}", 0, rows) for module, rows in modules)
        self.graph.parameters[name] = Parameter(name, sources, columns)
        return name
