"""A mixture of experts in place of a layer's feed-forward: router, gated experts, and the sum of their results."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph, Parameter, Source
from ..ir.rotary_pairs import RotaryPairs
from ..ir.spec import ExpertSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The tensors of a layer's experts. In ``gate_up`` and ``down``, "{}" stands for an expert's number; a name without
    it is a stack of all experts. The biases of stacks have the suffix "_bias". ``choice_bias`` is that of the choice.

    ``interleaved``: the rows of gates and of what they gate alternate.
    """

    router: str = "mlp.gate"
    gate_up: tuple[str, ...] = ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight")
    down: tuple[str, ...] = ("mlp.experts.{}.down_proj.weight",)
    choice_bias: str = ""
    interleaved: bool = False


SEPARATE = ExpertNames()


@dataclass(frozen=True, slots=True)
class Mixture:
    """Adds a layer's experts to a graph. ``module`` is the layer's in the checkpoint, ``here`` names its values."""

    graph: Graph
    spec: ModelSpec
    names: ExpertNames
    module: str
    here: str

    @property
    def experts(self) -> ExpertSpec:
        assert self.spec.experts is not None
        return self.spec.experts

    def route(self, x: str, *, scales: str | None = None) -> str:
        """Choose experts for the rows of x, the router's input. Returns the name of the choice, whose weights are its
        further result; they include the factor of residuals.
        """
        graph, experts, router = self.graph, self.experts, f"{self.module}.{self.names.router}"
        inputs = {"x": x, "weight": f"{router}.weight"}
        # A rounded router would choose other experts, and its weight is small.
        graph.parameters[inputs["weight"]] = Parameter(
            inputs["weight"], (Source(inputs["weight"], 0, experts.number),), self.spec.hidden_size, "f32"
        )
        if experts.biases:
            inputs["bias"] = self._vector(f"{router}.bias", (Source(f"{router}.bias", 0, experts.number),))
        logits = graph.add("linear", inputs, name=f"{router}.out", dtype="float32")
        return graph.add(
            "route",
            {"logits": logits, "bias": self._choice_bias(), "scales": scales},
            name=f"{self.here}.chosen",
            chosen=experts.chosen,
            router=experts.router,
            normalized=experts.normalized,
            scale=experts.scale * self.spec.residual_scale,
        )

    def _choice_bias(self) -> str | None:
        name = f"{self.module}.{self.names.choice_bias}"
        sources = (Source(name, 0, self.experts.number),)
        return self._vector(name, sources) if self.experts.choice_bias else None

    def sum_of(self, x: str, chosen: str) -> str:
        """The sum of the results of the chosen experts for the rows of x."""
        graph, experts, spec = self.graph, self.experts, self.spec
        both = self._linear("gate_up", x, chosen, 2 * experts.intermediate_size, spec.hidden_size)
        gated = graph.add(
            "gate_halves",
            {"x": both},
            name=f"{self.here}.experts.gated",
            activation=spec.activation,
            limit=experts.limit,
            slope=experts.slope,
            shift=experts.shift,
        )
        down = self._linear("down", gated, chosen, spec.hidden_size, experts.intermediate_size)
        return graph.add("combine", {"x": down, "weights": f"{chosen}.weights"}, name=f"{self.here}.experts.sum")

    def _linear(self, kind: str, x: str, chosen: str, rows: int, columns: int) -> str:
        """A projection by the chosen experts, whose weights have ``rows`` each."""
        name = f"{self.module}.experts.{kind}"
        inputs = {"x": x, "chosen": chosen, "weight": f"{name}.weight"}
        self.graph.parameters[inputs["weight"]] = Parameter(inputs["weight"], self._sources(kind, rows), columns)
        if self.experts.biases:
            inputs["bias"] = self._vector(f"{name}.bias", self._sources(kind, rows, "_bias"))
        return self.graph.add("expert_linear", inputs, name=f"{name}.out", experts=self.experts.number, dtype="float32")

    def _sources(self, kind: str, rows: int, suffix: str = "") -> tuple[Source, ...]:
        """Every expert's rows: those of gates before those of what they gate."""
        names: tuple[str, ...] = getattr(self.names, kind)
        count = self.experts.number
        if "{}" in names[0]:
            assert not suffix, "experts with tensors of their own have no biases"
            each = rows // len(names)
            return tuple(
                Source(f"{self.module}.{name.format(expert)}", 0, each) for expert in range(count) for name in names
            )
        # Pairs (2i, 2i + 1) are read in the order (i, i + rows / 2).
        pairs = RotaryPairs(rows, rows) if self.names.interleaved and kind == "gate_up" else None
        return (Source(f"{self.module}.{names[0]}{suffix}", 0, count * rows, pairs=pairs),)

    def _vector(self, name: str, sources: tuple[Source, ...]) -> str:
        self.graph.parameters[name] = Parameter(name, sources, None)
        return name
