"""The forward pass of decoders with grouped-query attention and a gated feed-forward. They differ in their ModelSpec,
and in the names and norms of their layers (`DecoderLayout`).

Weights have the names of transformers; other formats map their names to these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Constant, Graph, Parameter, Source, Value
from ..ir.ops import Type
from ..ir.pages import PAGES
from ..ir.rope import inverse_frequencies, pairs, rotary_dim
from ..ir.rotary_pairs import RotaryPairs
from ..ir.sampling import Settings
from ..ir.spec import ModelSpec, RopeSpec
from .experts import SEPARATE, ExpertNames, Mixture

# Rows [start, stop) of a module's weight.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DecoderLayout:
    """The modules of a family's layers, by name.

    ``fused``: a checkpoint's tensors that hold the rows of several projections in order, as the tensor's module -> the
    projections' modules. The four norms of a layer are around its attention and its feed-forward; None if the family
    has no such norm. A norm's factors are stored without ``norm_offset``. ``centered_norms``: they are LayerNorms, with
    a bias if ``norm_bias``. ``parallel``: the feed-forward reads the norm that the attention reads.

    ``q_norm``, ``k_norm``: the norms of queries and keys, if the spec has them. They are over each head, or with
    ``wide_qk_norm`` over all heads of a row, and before the rotation unless ``norm_after_rope``.

    ``interleaved``: the checkpoint's queries and keys are rotated by pairs (2i, 2i + 1). ``gated``: the feed-forward
    multiplies its inner projection by an activated gate; without one, it activates that projection. ``head_bias``: the
    head has one, if it is not the embedding. ``positions``: the table of positions, if there is one. ``experts``: the
    tensors of layers with experts.
    """

    fused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None
    norm_offset: float = 0.0
    centered_norms: bool = False
    norm_bias: bool = False
    parallel: bool = False
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    wide_qk_norm: bool = False
    norm_after_rope: bool = False
    interleaved: bool = False
    gated: bool = True
    final_norm: str = "model.norm"
    head_bias: bool = False
    positions: str | None = None
    experts: ExpertNames = SEPARATE


PRE_NORM = DecoderLayout()


def forward(
    spec: ModelSpec,
    page_size: int,
    context: int,
    *,
    embeds: bool = False,
    layout: DecoderLayout = PRE_NORM,
    layers: type[Layer] | None = None,
) -> Graph:
    """The graph of one forward pass on a ragged batch: logits (R, V) of the sampled rows, and the next token of each.

    With ``embeds``, its only output is the rows' embeddings (R, E), which the final norm computes. ``layers`` adds the
    nodes of a layer, by default those of attention and a gated feed-forward.
    """
    graph = new_graph(embeds=embeds)
    x = embedding(graph, "model.embed_tokens", spec.vocab_size, spec.hidden_size, spec.embedding_scale, "embedded")
    if spec.vision is not None or spec.hearing is not None:
        x = place_features(graph, spec, x)
    if layout.positions is not None:
        table = matrix(graph, layout.positions, spec.max_position_embeddings, spec.hidden_size)
        inputs = {"x": x, "positions": "positions", "position_table": table}
        x = graph.add("embed_positions", inputs, name="placed")
    for layer in range(spec.num_layers):
        block = (layers or Layer)(graph, spec, layer, layout, context)
        x = block.attention(x, page_size)
        x = block.feed_forward(x)
        if spec.vision is not None and layer < len(spec.vision.deepstack_layers):
            x = add_features(graph, spec, x, layer)
    finish(graph, spec, layout, x, embeds=embeds)
    return graph


def new_graph(*, embeds: bool, sampled: str = "sampled") -> Graph:
    """A graph with the batch's inputs. ``sampled``: the state with the tokens that were sampled last."""
    graph = Graph()
    for name, (shape, dtype) in BATCH_INPUTS.items():
        if not (embeds and name in SAMPLING_INPUTS):
            graph.inputs[name] = Value(name, shape, dtype)
    graph.states[sampled] = Value(sampled, ("N",), "int32")
    return graph


def embedding(
    graph: Graph,
    module: str,
    rows: int,
    columns: int,
    scale: float,
    name: str,
    *,
    host: bool = False,
    sampled: str = "sampled",
) -> str:
    """Add the lookup of each token's row. ``host``: see `Parameter`; ``sampled``: see `new_graph`."""
    inputs = {"table": matrix(graph, module, rows, columns, host=host), "token_ids": "token_ids", "sampled": sampled}
    return graph.add("embed", inputs, name=name, scale=scale)


FEATURES = {name: name for name in ("features", "feature_rows")}


def place_features(graph: Graph, spec: ModelSpec, x: str) -> str:
    """Replace the embeddings of the tokens that stand for pictures and sound."""
    types: list[Type] = [(("F", spec.feature_size), "float32"), (("F",), "int32")]
    graph.inputs |= {name: Value(name, *each) for name, each in zip(FEATURES, types, strict=True)}
    return graph.add("place_rows", {"into": x, **FEATURES}, name="placed_features")


def add_features(graph: Graph, spec: ModelSpec, x: str, layer: int) -> str:
    """Add the features for a layer to what it makes of the tokens that stand for pictures."""
    first = (layer + 1) * spec.hidden_size
    return graph.add("place_rows", {"into": x, **FEATURES}, name=f"layers.{layer}.features", first=first, adds=True)


def finish(graph: Graph, spec: ModelSpec, layout: DecoderLayout, x: str, *, embeds: bool) -> None:
    """Add everything after the last layer, which computes all rows, or only the sampled ones."""
    if graph.shape_of(x)[0] != "R":
        x = take_sampled(graph, x, "sampled_rows")
    x = norm(graph, layout.final_norm, x, spec.hidden_size, spec.rms_norm_eps, layout=layout)
    if embeds:
        graph.outputs = {"embeddings": x}
        return
    head(graph, spec, x, bias=layout.head_bias)
    sampling_block(graph, spec.vocab_size)


# The inputs that a runtime passes with every batch; `ops/` defines them.
BATCH_INPUTS: dict[str, Type] = {
    "token_ids": (("S",), "int32"),
    "positions": (("S",), "int32"),
    "slots": (("S",), "int32"),
    "seq_starts": ((["add", "B", 1],), "int32"),
    "page_indptr": ((["add", "B", 1],), "int32"),
    "page_ids": (("L",), "int32"),
    "sample_rows": (("R",), "int32"),
    "sample_slots": (("R", 2), "int32"),
    "sample_settings": (("R", len(Settings._fields)), "float32"),
}
# Further inputs of models in which the upper layers compute only sampled rows: these as sequences of one row each.
SAMPLED_INPUTS: dict[str, Type] = {
    "sample_positions": (("R",), "int32"),
    "sample_starts": ((["add", "R", 1],), "int32"),
    "sample_page_indptr": ((["add", "R", 1],), "int32"),
}
# The position of each token on each axis, in models that rotate by several.
ROPE_POSITIONS = "rope_positions"
# The inputs that an embedding model does not need.
SAMPLING_INPUTS = ("sample_slots", "sample_settings")


def take_sampled(graph: Graph, x: str, name: str) -> str:
    """The sampled rows of x (S, N) -> (R, N)."""
    return graph.add("take_rows", {"x": x, "rows": "sample_rows"}, name=name)


def sequences_of(graph: Graph, x: str) -> dict[str, str]:
    """The inputs that describe the sequences of a value's rows: all new tokens, or the sampled ones."""
    roles = ("positions", "seq_starts", "page_indptr")
    if graph.shape_of(x)[0] == "S":
        return {role: role for role in roles}
    graph.inputs |= {name: Value(name, shape, dtype) for name, (shape, dtype) in SAMPLED_INPUTS.items()}
    return dict(zip(roles, SAMPLED_INPUTS, strict=True))


def head(graph: Graph, spec: ModelSpec, x: str, *, bias: bool = False) -> None:
    """Add the nodes that compute "logits" (R, V) from the sampled rows."""
    scaled = (spec.logit_scale, spec.logit_softcap) != (1.0, None)
    module = "model.embed_tokens" if spec.tie_word_embeddings else "lm_head"
    inputs = {"x": x, "weight": matrix(graph, module, spec.vocab_size, spec.hidden_size)}
    if bias:
        inputs["bias"] = vector(graph, "lm_head.bias", spec.vocab_size)
    logits = graph.add("linear", inputs, name="raw_logits" if scaled else "logits", dtype="float32")
    if scaled:
        graph.add("soft_cap", {"x": logits}, name="logits", scale=spec.logit_scale, cap=spec.logit_softcap)


def sampling_block(graph: Graph, vocab_size: int, sampled: str = "sampled") -> None:
    """Add the nodes from the logits to each row's next token, its log-probability, and the likeliest tokens on
    request.
    """
    states: dict[str, Type] = {
        "token_counts": (("N", vocab_size), "int32"),
        "logit_bias": (("N", vocab_size), "float32"),
        "token_mask": (("N", -(-vocab_size // 32)), "int32"),
    }
    graph.states |= {name: Value(name, shape, dtype) for name, (shape, dtype) in states.items()}
    rows = {"logits": "logits", "settings": "sample_settings", "slots": "sample_slots", "counts": "token_counts"}
    graph.add("adjust_logits", {**rows, "bias": "logit_bias", "mask": "token_mask"}, name="adjusted")
    graph.add("sample", {**rows, "adjusted": "adjusted", "sampled": sampled}, name="next_token_ids")
    graph.add("top_logprobs", {"logits": "logits"}, name="top")
    graph.outputs = {
        "logits": "logits",
        "next_token_ids": "next_token_ids",
        "token_logprobs": "next_token_ids.logprobs",
        "top_token_ids": "top.ids",
        "top_logprobs": "top.logprobs",
    }


class Layer:
    """Adds one layer's nodes. ``layer`` counts from 0."""

    # What the names of tables begin with, and the position by which a row at position 0 rotates.
    _TABLES, _FIRST = "", 0

    def __init__(self, graph: Graph, spec: ModelSpec, layer: int, layout: DecoderLayout, context: int) -> None:
        self._graph, self._spec, self._layer, self._layout = graph, spec, layer, layout
        self._context = context
        self._attention_input = ""
        self._here, self._module = f"layers.{layer}", f"model.layers.{layer}"
        self._num_kv_heads, self._head_dim = spec.heads_of(layer)
        heads, kv = spec.num_heads * self._head_dim, self._num_kv_heads * self._head_dim
        intermediate = spec.intermediate_of(layer)
        self._rows = {
            "self_attn.q_proj": heads, "self_attn.k_proj": kv, "self_attn.v_proj": kv,
            "self_attn.o_proj": spec.hidden_size,
            "mlp.gate_proj": intermediate, "mlp.up_proj": intermediate,
            "mlp.down_proj": spec.hidden_size,
        }  # fmt: skip

    def attention(self, x: str, page_size: int) -> str:
        normed = self._attention_input = self._norm(self._layout.before_attention, x)
        mixed = self._norm(self._layout.after_attention, self._mixed(normed, page_size))
        return self._graph.add("add", {"a": mixed, "b": x}, name=f"{self._here}.after_attention")

    def _mixed(self, x: str, page_size: int) -> str:
        """What attention makes of the normed rows, between the residual streams."""
        spec = self._spec
        return self._linear(
            "self_attn.o_proj",
            self._attended(x, page_size),
            spec.num_heads * self._head_dim,
            bias=spec.output_bias,
            factor=spec.residual_scale,
        )

    def _attended(self, x: str, page_size: int) -> str:
        """The weighted values of all heads."""
        graph, spec = self._graph, self._spec
        kv, pages = self._pages()
        q = self._normed_and_rotated("q", self._head_projection("q", x))
        if kv not in graph.states:
            shape = (pages, 2, self._num_kv_heads, page_size, self._head_dim)
            graph.states[kv] = Value(kv, shape, "activation")
            k = self._normed_and_rotated("k", self._head_projection("k", x))
            v = self._clipped("v", self._values(self._head_projection("v", x)))
            graph.add("append_kv", {"k": k, "v": v, "kv": kv, "slots": "slots"})
        rows = {**sequences_of(graph, x), "page_ids": "page_ids"}
        if self._sees_pictures():
            graph.inputs["reach"] = Value("reach", ("S",), "int32")
            rows["reach"] = "reach"
        window = spec.window(self._layer)
        # A window as long as the context has no effect.
        window = None if window is None or window >= self._context else window
        return graph.add(
            "attention",
            {"q": q, "kv": kv, "sinks": self._sinks(), **rows},
            name=f"{self._here}.attended",
            window=window,
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
        )

    def _pages(self) -> tuple[str, str]:
        """The state with the keys and values that the layer reads, and the dim of its pages."""
        return f"layers.{self._spec.kv_layer(self._layer)}.kv", PAGES

    def _sees_pictures(self) -> bool:
        """Whether tokens of a picture see all of it, and not only those before them."""
        vision, window = self._spec.vision, self._spec.window(self._layer)
        return vision is not None and (vision.both_ways == "all" or (vision.both_ways == "windows" and bool(window)))

    def _sinks(self) -> str | None:
        name = f"{self._module}.self_attn.sinks"
        return vector(self._graph, name, self._spec.num_heads) if self._spec.sinks else None

    def feed_forward(self, x: str) -> str:
        graph, spec = self._graph, self._spec
        normed = self._feed_forward_input(x)
        down = self._mixture(normed) if spec.has_experts(self._layer) else self._dense(normed)
        down = self._norm(self._layout.after_feed_forward, down)
        return graph.add("add", {"a": down, "b": x}, name=f"{self._here}.after_feed_forward")

    def _feed_forward_input(self, x: str) -> str:
        return self._attention_input if self._layout.parallel else self._norm(self._layout.before_feed_forward, x)

    def _mixture(self, normed: str) -> str:
        mixture = Mixture(self._graph, self._spec, self._layout.experts, self._module, self._here)
        return mixture.sum_of(normed, mixture.route(normed))

    def _dense(self, normed: str) -> str:
        spec, inner = self._spec, self._inner(normed)
        return self._linear(
            "mlp.down_proj", inner, self._rows["mlp.up_proj"], bias=spec.mlp_bias, factor=spec.residual_scale
        )

    def _inner(self, x: str) -> str:
        """activation(gate(x)) * up(x), or activation(up(x)) without a gate."""
        graph, spec = self._graph, self._spec
        names = ("gate", "up") if self._layout.gated else ("up",)
        inner = {name: self._linear(f"mlp.{name}_proj", x, spec.hidden_size, bias=spec.mlp_bias) for name in names}
        if self._layout.gated:
            return graph.add("gate", inner, name=f"{self._here}.gated", activation=spec.activation)
        return graph.add("activate", {"x": inner["up"]}, name=f"{self._here}.inner", activation=spec.activation)

    def _head_projection(self, name: str, x: str) -> str:
        spec = self._spec
        return self._linear(f"self_attn.{name}_proj", x, spec.hidden_size, bias=spec.qkv_bias, dtype="activation")

    def _values(self, v: str) -> str:
        """The values of all kv heads, as they are stored."""
        return v

    def _normed_and_rotated(self, name: str, x: str) -> str:
        """Queries ("q") or keys ("k") of all heads."""
        normed = self._rotated(name, x) if self._layout.norm_after_rope else x
        if self._spec.qk_norm:
            module = {"q": self._layout.q_norm, "k": self._layout.k_norm}[name]
            width = self._rows[f"self_attn.{name}_proj"] if self._layout.wide_qk_norm else self._head_dim
            module, eps = f"{self._module}.{module}", self._spec.rms_norm_eps
            normed = norm(self._graph, module, normed, width, eps, "activation", layout=self._layout)
        normed = self._clipped(name, normed)
        return normed if self._layout.norm_after_rope else self._rotated(name, normed)

    def _clipped(self, name: str, x: str) -> str:
        limit = self._spec.qkv_limit
        if limit is None:
            return x
        return self._graph.add("clip", {"x": x}, name=f"{self._here}.{name}_clipped", limit=limit, dtype="activation")

    def _rotated(self, name: str, x: str) -> str:
        rope = self._spec.rope_of(self._layer)
        if rope is None:
            return x
        positions = sequences_of(self._graph, x)["positions"]
        inputs = {"x": x, "positions": positions, "table": self._turns(self._rope_table(rope), positions)}
        attrs = {"head_dim": self._head_dim, "dtype": "activation"}
        # Within the original length, the factor of every position is 1.
        if name == "q" and rope.query_beta and self._context > rope.original_max_position_embeddings:
            attrs["position_scale"] = [rope.query_beta, rope.original_max_position_embeddings]
        return self._graph.add("rope", inputs, name=f"{self._here}.{name}_rotated", **attrs)

    def _turns(self, table: str, positions: str) -> str:
        """The table, or if tokens have several positions, the rows of this batch's tokens."""
        graph, vision = self._graph, self._spec.vision
        if vision is None or not vision.mrope_section:
            return table
        assert positions == "positions", "the layers of sampled rows alone have no rotation by several axes"
        name = f"{table}.turns"
        if name not in graph.makers():
            _, rows, columns = vision.mrope_section
            half = graph.constants[table].shape[1]
            # Every third pair, from the first or the second on, while the section lasts.
            axes = [[axis, axis, min(3 * count, half), 3] for axis, count in ((1, rows), (2, columns))]
            axes = [each for each in axes if each[1] < each[2]]
            graph.inputs[ROPE_POSITIONS] = Value(ROPE_POSITIONS, ("S", 3), "int32")
            graph.add("rope_rows", {"table": table, "axis_positions": ROPE_POSITIONS}, name=name, axes=axes)
        return name

    def _rope_table(self, rope: RopeSpec) -> str:
        spec, context = self._spec, self._context
        is_common = (rope, self._head_dim) == (spec.rope, spec.head_dim)
        name = self._TABLES + ("rope_table" if is_common else "window_rope_table")
        if name not in self._graph.constants:
            frequencies = inverse_frequencies(rope, self._head_dim, context)
            shape = (context, pairs(rope, self._head_dim), 2)
            attrs = {"inverse_frequencies": frequencies, "scale": rope.attention_factor}
            attrs |= {"first": self._FIRST} if self._FIRST else {}
            self._graph.constants[name] = Constant(name, "rope", shape, attrs)
        return name

    def _linear(
        self, module: str, x: str, columns: int, *, bias: bool, dtype: str = "float32", factor: float = 1.0
    ) -> str:
        name, rows = f"{self._module}.{module}", self._rows[module]
        factor *= self._spec.factors.get(module, 1.0)
        inputs = {"x": x, "weight": self._parameter(f"{name}.weight", module, rows, columns, factor)}
        if bias:
            inputs["bias"] = self._parameter(f"{name}.bias", module, rows, None, factor)
        return self._graph.add("linear", inputs, name=f"{name}.out", dtype=dtype)

    def _rows_of(
        self, name: str, module: str, ranges: Iterable[Range], x: str, *, bias: bool, dtype: str = "float32"
    ) -> str:
        """The projection by some rows of a module's weight, named ``name``."""
        own, columns = list(ranges), self._graph.shape_of(x)[1]
        assert isinstance(columns, int)
        inputs = {"x": x}
        for role, size in (("weight", columns), *([("bias", None)] if bias else [])):
            tensor, parameter = f"{self._module}.{module}.{role}", f"{self._module}.{name}.{role}"
            factors = [self._spec.factors.get(f"{module}[{start}]", 1.0) for start, _ in own]
            sources = [Source(tensor, *each, factor=factor) for each, factor in zip(own, factors, strict=True)]
            self._graph.parameters[parameter] = Parameter(parameter, tuple(sources), size)
            inputs[role] = parameter
        return self._graph.add("linear", inputs, name=f"{self._module}.{name}.out", dtype=dtype)

    def _parameter(self, name: str, module: str, rows: int, columns: int | None, factor: float) -> str:
        """Add the weight or bias of a projection, which may be a part of a fused tensor. Returns its name."""
        stored, start = self._stored(module)
        tensor = name.replace(module, stored)
        source = Source(tensor, start, start + rows, factor=factor, pairs=self._pairs(module))
        self._graph.parameters[name] = Parameter(name, (source,), columns)
        return name

    def _stored(self, module: str) -> tuple[str, int]:
        """The module of the checkpoint that has a projection's rows, and the first of them."""
        for fused, parts in self._layout.fused.items():
            if module in parts:
                return fused, sum(self._rows[part] for part in parts[: parts.index(module)])
        return module, 0

    def _pairs(self, module: str) -> RotaryPairs | None:
        """The stored order of a projection's rows; None if they are read as they are."""
        rope = self._spec.rope_of(self._layer)
        if not self._layout.interleaved or rope is None or module not in ("self_attn.q_proj", "self_attn.k_proj"):
            return None
        assert not self._spec.qk_norm, "norms of heads are not read in the order of the rotate-half form"
        return RotaryPairs(self._head_dim, rotary_dim(rope, self._head_dim))

    def _norm(self, module: str | None, x: str) -> str:
        """The norm of that module, or ``x`` if the family has none there."""
        if module is None:
            return x
        spec = self._spec
        name = f"{self._module}.{module}"
        return norm(self._graph, name, x, spec.hidden_size, spec.rms_norm_eps, layout=self._layout)


def norm(
    graph: Graph,
    module: str,
    x: str,
    width: int,
    eps: float,
    dtype: str = "float32",
    *,
    layout: DecoderLayout = PRE_NORM,
) -> str:
    inputs = {"x": x, "weight": vector(graph, f"{module}.weight", width, layout.norm_offset)}
    if layout.norm_bias:
        inputs["bias"] = vector(graph, f"{module}.bias", width)
    return graph.add("rms_norm", inputs, name=f"{module}.out", eps=eps, dtype=dtype, centered=layout.centered_norms)


def vector(graph: Graph, name: str, size: int, offset: float = 0.0) -> str:
    graph.parameters[name] = Parameter(name, (Source(name, 0, size, offset=offset),), None)
    return name


def matrix(graph: Graph, module: str, rows: int, columns: int, factor: float = 1.0, *, host: bool = False) -> str:
    name = f"{module}.weight"
    graph.parameters[name] = Parameter(name, (Source(name, 0, rows, factor=factor),), columns, host=host)
    return name
