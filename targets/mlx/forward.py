"""The graph's ops in MLX's terms: one forward on a ragged batch, op by op as `compiler/ir/ops/` defines them.

Projections process all rows at once, attention each sequence separately. The residual stream, norms, the gated
feed-forward and logits are float32; q, k, v, the pages and the inputs of projections have ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfar.compiler.ir.graph import Graph, Node
from nearfar.compiler.ir.ops import OPS, sampling
from nearfar.compiler.runtime.errors import UnsupportedModel

from .attention import attend
from .framework import load_mlx
from .pages import Pages, Span
from .weights import Weight

# The ops that `Forward` computes, with the attributes and the optional inputs that it supports.
KNOWN: dict[str, tuple[str, ...]] = {
    "embed": ("scale", "sampled"),
    "take_rows": (),
    "slice_columns": ("start", "stop", "dtype"),
    "linear": ("dtype", "bias"),
    "rms_norm": ("eps", "dtype", "centered", "bias"),
    "add": (),
    "activate": ("activation",),
    "gate": ("activation",),
    "gate_halves": ("activation",),
    "soft_cap": ("scale", "cap"),
    "scale": (),
    "rope": ("head_dim", "dtype", "position_scale"),
    "append_kv": (),
    "attention": ("q", "scale", "window", "softcap", "causal", "sinks"),
}


def require_known(graph: Graph) -> None:
    """Raise UnsupportedModel for an op, an attribute or an optional input that `Forward` does not compute."""
    for node in graph.nodes:
        if node.op in sampling.OPS:
            continue
        known = KNOWN.get(node.op, ())
        unknown = [
            name for name in (*node.attrs, *(node.inputs.keys() - OPS[node.op].inputs.keys())) if name not in known
        ]
        if node.op not in KNOWN or unknown:
            found = f"{node.op} with {unknown[0]}" if node.op in KNOWN else node.op
            raise UnsupportedModel(
                f"the model has {found}, which the MLX runner does not compute; run the folder with mlx-lm, or "
                "use --target webgpu, cpu or cuda"
            )


class Forward:
    """``weights``: the graph's parameters. ``dtype`` is an MLX dtype. The graph must have passed `require_known`."""

    def __init__(self, graph: Graph, weights: Mapping[str, Weight], dtype: Any) -> None:
        import mlx.core as mx

        self._mx: Any = mx
        self._weights, self._dtype = weights, dtype
        self._head_dims = {name: state.shape[-1] for name, state in graph.states.items()}
        # `HostSampler` replaces the ops of sampling.
        self._nodes = [node for node in graph.nodes if node.op not in sampling.OPS]
        # If no row is sampled, only pages change.
        self._hidden_nodes = next(index for index, node in enumerate(self._nodes) if node.op == "take_rows")
        last_use = {name: index for index, node in enumerate(self._nodes) for name in node.inputs.values()}
        # For each node, the values that no later one reads: MLX frees arrays that Python no longer references.
        self._ended = [
            [name for name in set(node.inputs.values()) if name in graph.values and last_use[name] == index]
            for index, node in enumerate(self._nodes)
        ]
        self._tables = {name: mx.array(constant.table()) for name, constant in graph.constants.items()}
        self._ops: dict[str, Callable[[Node, dict[str, Any]], Any]] = {
            "embed": self._embed, "take_rows": self._take_rows, "slice_columns": self._slice_columns,
            "rms_norm": self._rms_norm, "linear": self._linear, "add": self._add, "activate": self._activate,
            "gate": self._gate, "gate_halves": self._gate_halves, "soft_cap": self._soft_cap, "rope": self._rope,
            "scale": self._scale,
        }  # fmt: skip

    def run(self, inputs: Mapping[str, Any], spans: Sequence[Span], pages: Pages, sampled: Sequence[Span] = ()) -> Any:
        """The logits (R, V) in float32, not yet evaluated, or None if no row is sampled. ``inputs`` are the batch's
        token_ids, positions and sample_rows, and sample_positions if upper layers compute only the sampled rows, which
        ``sampled`` describes as spans of one row each.
        """
        values, wanted = dict(inputs), len(inputs["sample_rows"]) > 0
        nodes = self._nodes if wanted else self._nodes[: self._hidden_nodes]
        for node, ended in zip(nodes, self._ended, strict=False):
            if node.op == "append_kv":
                self._append_kv(node, values, spans, pages)
            elif node.op == "attention":
                rows = spans if node.inputs["seq_starts"] == "seq_starts" else sampled
                values[node.outputs["y"]] = self._attention(node, values, rows, pages)
            else:
                values[node.outputs["y"]] = self._ops[node.op](node, values)
            for name in ended:
                del values[name]
        return values["logits"] if wanted else None

    def _embed(self, node: Node, values: dict[str, Any]) -> Any:
        rows = self._weights[node.inputs["table"]].rows(values[node.inputs["token_ids"]])
        return rows.astype(self._mx.float32) * node.attr("scale")

    def _take_rows(self, node: Node, values: dict[str, Any]) -> Any:
        return values[node.inputs["x"]][values[node.inputs["rows"]]]

    def _slice_columns(self, node: Node, values: dict[str, Any]) -> Any:
        return self._of(node, values[node.inputs["x"]][:, node.attrs["start"] : node.attrs["stop"]])

    def _rms_norm(self, node: Node, values: dict[str, Any]) -> Any:
        x = values[node.inputs["x"]].astype(self._mx.float32)
        weight: Any = self._vector(node.inputs["weight"]).astype(self._mx.float32)
        bias: Any = self._vector(node.inputs["bias"]).astype(self._mx.float32) if "bias" in node.inputs else None
        groups, eps = x.reshape(len(x), -1, weight.shape[0]), node.attrs["eps"]
        if node.attr("centered"):
            normed = self._mx.fast.layer_norm(groups, weight, bias, eps)
        else:
            normed = self._mx.fast.rms_norm(groups, weight, eps)
            normed = normed if bias is None else normed + bias
        return self._of(node, normed.reshape(x.shape))

    def _linear(self, node: Node, values: dict[str, Any]) -> Any:
        y = self._weights[node.inputs["weight"]].times(values[node.inputs["x"]].astype(self._dtype))
        return self._of(node, y + self._vector(node.inputs["bias"]) if "bias" in node.inputs else y)

    def _add(self, node: Node, values: dict[str, Any]) -> Any:
        return values[node.inputs["a"]] + values[node.inputs["b"]]

    def _activate(self, node: Node, values: dict[str, Any]) -> Any:
        return activated(node.attrs["activation"], values[node.inputs["x"]])

    def _gate(self, node: Node, values: dict[str, Any]) -> Any:
        return gated(node.attr("activation"), values[node.inputs["gate"]], values[node.inputs["up"]])

    def _gate_halves(self, node: Node, values: dict[str, Any]) -> Any:
        return gated(node.attr("activation"), *self._mx.split(values[node.inputs["x"]], 2, axis=-1))

    def _soft_cap(self, node: Node, values: dict[str, Any]) -> Any:
        scaled, cap = values[node.inputs["x"]] * node.attr("scale"), node.attr("cap")
        return scaled if cap is None else cap * self._mx.tanh(scaled / cap)

    def _scale(self, node: Node, values: dict[str, Any]) -> Any:
        return values[node.inputs["x"]] * self._vector(node.inputs["factor"]).astype(self._mx.float32)

    def _rope(self, node: Node, values: dict[str, Any]) -> Any:
        # Not mx.fast.rope: its angles are float32, which is too coarse at far positions.
        table = self._tables[node.inputs["table"]][values[node.inputs["positions"]]]
        cosine, sine, half = table[:, None, :, 0], table[:, None, :, 1], table.shape[1]
        x = values[node.inputs["x"]].astype(self._mx.float32)
        low, high, rest = self._mx.split(x.reshape(len(x), -1, node.attrs["head_dim"]), [half, 2 * half], axis=-1)
        rotated = self._mx.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], axis=-1)
        if node.attr("position_scale") is not None:
            beta, length = node.attr("position_scale")
            periods = (values[node.inputs["positions"]] // length).astype(self._mx.float32)
            rotated = rotated * (1 + beta * self._mx.log1p(periods))[:, None, None]
        return self._of(node, rotated.reshape(x.shape))

    def _append_kv(self, node: Node, values: dict[str, Any], spans: Sequence[Span], pages: Pages) -> None:
        name = node.inputs["kv"]
        keys, rows = (values[node.inputs[role]] for role in ("k", "v"))
        for span in spans:
            pages.append(name, span, self._heads(keys, span, name), self._heads(rows, span, name))

    def _attention(self, node: Node, values: dict[str, Any], spans: Sequence[Span], pages: Pages) -> Any:
        name, q = node.inputs["kv"], values[node.inputs["q"]]
        sinks = self._vector(node.inputs["sinks"]) if "sinks" in node.inputs else None
        attended = []
        for span in spans:
            y = attend(node, self._heads(q, span, name), sinks, span, pages)
            attended.append(y.transpose(0, 2, 1, 3).reshape(span.stop - span.first, q.shape[1]))
        return attended[0] if len(attended) == 1 else self._mx.concatenate(attended)

    def _heads(self, x: Any, span: Span, state: str) -> Any:
        """A span's rows (n, heads * D) as (1, heads, n, D)."""
        rows = x[span.first : span.stop]
        return rows.reshape(1, len(rows), -1, self._head_dims[state]).transpose(0, 2, 1, 3)

    def _vector(self, name: str) -> Any:
        """A parameter that is not a matrix."""
        (values,) = self._weights[name].arrays
        return values

    def _of(self, node: Node, x: Any) -> Any:
        return x.astype(self._dtype if node.attrs["dtype"] == "activation" else self._mx.float32)


def gated(activation: str, gate: Any, up: Any) -> Any:
    """Float32 arrays of the same shape; ``activation`` is one of `ops.op.ACTIVATIONS`."""
    return activated(activation, gate) * up


def activated(activation: str, x: Any) -> Any:
    mx = load_mlx()
    match activation:
        case "silu":
            return x * mx.sigmoid(x)
        case "gelu":
            return 0.5 * x * (1 + mx.erf(x / 2**0.5))
        case "gelu_tanh":
            return 0.5 * x * (1 + mx.tanh((2 / mx.pi) ** 0.5 * (x + 0.044715 * x * x * x)))
        case "relu2":
            return mx.square(mx.maximum(x, 0))
        case "relu":
            return mx.maximum(x, 0)
        case "tanh":
            return mx.tanh(x)
        case "asinh":
            return mx.arcsinh(x)
        case "sigmoid":
            return mx.sigmoid(x)
        case "none":
            return x
    raise AssertionError(f"activation {activation} is not declared")
