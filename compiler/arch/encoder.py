"""The forward pass of encoders: models that read a text at once, in both directions, without pages.

`EncoderGraph` adds the parts that they are made of; an architecture puts them in its order, with the names that its
weights have on disk. `finish` adds what makes vectors or scores of the rows of the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import Constant, Graph, Parameter, Source, Value
from ..ir.ops import Type
from ..ir.rope import inverse_frequencies, pairs
from ..ir.spec import ModelSpec, RopeSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .graph_parts import GraphParts

# The inputs of a batch of texts; `ops/` defines them. A graph declares those that its nodes read.
TEXT_INPUTS: dict[str, Type] = {
    "token_ids": (("S",), "int32"),
    "positions": (("S",), "int32"),
    "token_types": (("S",), "int32"),
    "seq_starts": ((["add", "B", 1],), "int32"),
}


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """The modules of a classifier. ``dense`` are the modules before the classifier, each with its activation, and
    ``norm`` a norm after them. ``token_dense``: they also precede the scores of single tokens. ``classifier_bias``:
    whether the classifier of complete texts has a bias.
    """

    classifier: str = "classifier"
    classifier_bias: bool = True
    dense: Sequence[tuple[str, str]] = ()
    dense_bias: bool = True
    norm: str | None = None
    token_classifier: str = "classifier"
    token_dense: bool = False


class EncoderGraph(GraphParts):
    """``norm_bias``: whether the norms have a bias. ``centered``: whether they are LayerNorms. ``graph``: one that
    computes the first nodes; None: empty. ``tables``: what the names of tables of rotations begin with.
    """

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        *,
        norm_bias: bool = True,
        centered: bool = True,
        graph: Graph | None = None,
        tables: str = "",
    ) -> None:
        super().__init__(graph or Graph(), spec.rms_norm_eps, norm_bias=norm_bias, centered=centered)
        self.spec, self.context, self._tables = spec, context, tables
        self._table_columns = spec.embedding_size or spec.hidden_size

    def embedding(self, module: str) -> str:
        """The lookup of each token's row."""
        spec = self.spec
        table = self.matrix(f"{module}.weight", spec.vocab_size, self._table_columns)
        inputs = {"table": table, "token_ids": self.input("token_ids")}
        return self.graph.add("embed", inputs, name="embedded", scale=spec.embedding_scale)

    def positions(self, x: str, positions: str | None, types: str | None) -> str:
        """Add the rows of the tables of these modules: of positions, and of types of tokens."""
        spec = self.spec
        inputs = {"x": x}
        if positions is not None:
            rows = spec.max_position_embeddings + spec.first_position
            inputs |= {
                "positions": self.input("positions"),
                "position_table": self.matrix(f"{positions}.weight", rows, self._table_columns),
            }
        if types is not None:
            inputs |= {
                "token_types": self.input("token_types"),
                "type_table": self.matrix(f"{types}.weight", spec.num_token_types, self._table_columns),
            }
        if len(inputs) == 1:
            return x
        return self.graph.add("embed_positions", inputs, name="placed", first_position=spec.first_position)

    def gated(self, gate: str, up: str, x: str, *, bias: bool, gate_row: int = 0, up_row: int = 0) -> str:
        """activation(gate) * up; the rows of the two may be parts of one tensor, from these rows on."""
        size, columns = self.spec.intermediate_size, self.graph.shape_of(x)[1]
        assert isinstance(columns, int)
        results = []
        for role, module, row in (("gate", gate, gate_row), ("up", up, up_row)):
            name = module if gate != up else f"{module}.{role}"
            inputs = {"x": x, "weight": self.part(f"{name}.weight", f"{module}.weight", row, size, columns)}
            if bias:
                inputs["bias"] = self.part(f"{name}.bias", f"{module}.bias", row, size, None)
            results.append(self.graph.add("linear", inputs, name=f"{name}.out", dtype="float32"))
        inputs = dict(zip(("gate", "up"), results, strict=True))
        return self.graph.add("gate", inputs, name=f"{gate}.gated", activation=self.spec.activation)

    def attention(
        self,
        layer: int,
        qkv: str,
        *,
        qk_norm: str | None = None,
        name: str = "",
        scale: float | None = None,
        more: Mapping[str, str] | None = None,
    ) -> str:
        """Attention over the heads of a joint projection, which are rotated if the layer rotates, and normalized first
        by the parameter ``qk_norm`` if there is one. ``more``: further inputs by role, which change scores.
        """
        graph, spec = self.graph, self.spec
        num_kv_heads, head_dim = spec.heads_of(layer)
        heads = {"head_dim": head_dim, "num_kv_heads": num_kv_heads}
        rope, window = spec.rope_of(layer), spec.window(layer)
        if rope is not None or qk_norm is not None:
            inputs = {"qkv": qkv, "positions": self.input("positions"), "qk_norm": qk_norm}
            inputs["table"] = None if rope is None else self.rope_table(rope, head_dim)
            eps = None if qk_norm is None else spec.rms_norm_eps
            qkv = graph.add("rope_heads", inputs, name=f"layers.{layer}.rotated", eps=eps, **heads)
        rows = {"positions": self.input("positions"), "seq_starts": self.input("seq_starts")}
        return graph.add(
            "ragged_attention",
            {"qkv": qkv, **rows, **(more or {})},
            name=name or f"layers.{layer}.attended",
            causal=spec.causal,
            # A window as long as the context has no effect.
            window=None if window is None or window >= self.context else window,
            scale=scale if scale is not None else spec.attention_scale,
            softcap=spec.attention_softcap,
            **heads,
        )

    def rope_table(self, rope: RopeSpec, head_dim: int) -> str:
        name = self._tables + ("rope_table" if rope == self.spec.rope else "window_rope_table")
        if name not in self.graph.constants:
            frequencies = inverse_frequencies(rope, head_dim, self.context)
            attrs = {"inverse_frequencies": frequencies, "scale": rope.attention_factor}
            shape = (self.context, pairs(rope, head_dim), 2)
            self.graph.constants[name] = Constant(name, "rope", shape, attrs)
        return name

    def pool(self, x: str, mode: str) -> str:
        """One row of each text. A plan with pages has computed the last tokens' rows alone."""
        if self.graph.shape_of(x)[0] == "R":
            return x
        inputs = {"x": x, "seq_starts": self.input("seq_starts")}
        return self.graph.add("pool_rows", inputs, name="pooled", mode=mode)

    def input(self, name: str) -> str:
        shape, dtype = TEXT_INPUTS[name]
        self.graph.inputs[name] = Value(name, shape, dtype)
        return name

    def part(self, name: str, tensor: str, row: int, size: int, columns: int | None) -> str:
        self.graph.parameters[name] = Parameter(name, (Source(tensor, row, row + size),), columns)
        return name


def finish(encoder: EncoderGraph, x: str, task: EmbeddingSpec | ClassifierSpec, head: HeadLayout) -> Graph:
    """Add the head of a task to the rows of the last layer: the output "embeddings" (B, E), "scores" (B, L) for each
    label of a text, or (S, L) of each token. Rows (R, E) of sampled tokens have the results (R, E) and (R, L).
    """
    graph = encoder.graph
    if isinstance(task, EmbeddingSpec):
        x = encoder.pool(x, task.pooling)
        for dense in task.dense:
            module = f"{dense.module}.linear"
            x = encoder.linear([(module, dense.outputs)], x, bias=dense.bias, activation=dense.activation)
        graph.outputs = {"embeddings": x}
        return graph
    pools = not task.per_token
    if pools and not task.pools_late:
        x = encoder.pool(x, task.pooling)
    if not task.per_token or head.token_dense:
        for module, activation in head.dense:
            rows = encoder.spec.hidden_size
            x = encoder.linear([(module, rows)], x, bias=head.dense_bias, activation=activation)
        if head.norm is not None:
            x = encoder.norm(head.norm, x)
    if pools and task.pools_late:
        x = encoder.pool(x, task.pooling)
    classifier, bias = (head.token_classifier, True) if task.per_token else (head.classifier, head.classifier_bias)
    scores = encoder.linear([(classifier, len(task.labels))], x, bias=bias)
    if task.decision is not None and task.decision.softcap is not None:
        scores = graph.add("soft_cap", {"x": scores}, name="capped_scores", cap=task.decision.softcap)
    graph.outputs = {"scores": scores}
    return graph
