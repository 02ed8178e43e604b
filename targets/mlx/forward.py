"""The graph's ops in MLX's terms: one forward on a ragged batch, op by op as `compiler/ir/ops.py` defines them.

Projections take all rows at once, attention each sequence by itself. The residual stream, norms, the gated feed-forward and logits are
float32; q, k, v, the pages and what enters a projection are of ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfar.compiler.ir.graph import Graph, Node
from nearfar.compiler.ir.rope import rope_table

from .pages import Arrays, Pages, Span

# What `HostSampler` does in their place.
SAMPLING_OPS = ("adjust_logits", "sample", "top_logprobs")


class Forward:
    """``weights`` by their names in the folder; ``group`` is None, or weights in a group and bits of a weight. ``dtype`` is MLX's."""

    def __init__(self, graph: Graph, weights: Mapping[str, Any], group: tuple[int, int] | None, dtype: Any) -> None:
        import mlx.core as mx

        self._mx: Any = mx
        self._weights, self._dtype = weights, dtype
        self._quantization = {} if group is None else {"group_size": group[0], "bits": group[1]}
        self._head_dims = {name: state.shape[-1] for name, state in graph.states.items()}
        self._nodes = [node for node in graph.nodes if node.op not in SAMPLING_OPS]
        # Where no row is sampled, only pages change.
        self._hidden_nodes = next(index for index, node in enumerate(self._nodes) if node.op == "take_rows")
        last_use = {name: index for index, node in enumerate(self._nodes) for name in node.inputs.values()}
        # Of each node, the values that no later one reads: MLX frees what Python no longer names.
        self._ended = [
            [name for name in set(node.inputs.values()) if name in graph.values and last_use[name] == index]
            for index, node in enumerate(self._nodes)
        ]
        self._tables = {
            name: mx.array(rope_table(constant.attrs["inverse_frequencies"], constant.shape[0], constant.attrs["scale"]))
            for name, constant in graph.constants.items()
        }
        self._ops: dict[str, Callable[[Node, dict[str, Any]], Any]] = {
            "embed": self._embed, "take_rows": self._take_rows, "rms_norm": self._rms_norm, "linear": self._linear, "add": self._add,
            "gate": self._gate, "rope": self._rope,
        }  # fmt: skip

    def run(self, inputs: Mapping[str, Any], spans: Sequence[Span], pages: Pages) -> Any:
        """The logits (R, V) in float32, not yet evaluated, or None where no row is sampled. ``inputs`` are the batch's token_ids,
        positions and sample_rows.
        """
        values, wanted = dict(inputs), len(inputs["sample_rows"]) > 0
        nodes = self._nodes if wanted else self._nodes[: self._hidden_nodes]
        for node, ended in zip(nodes, self._ended, strict=False):
            if node.op == "append_kv":
                self._append_kv(node, values, spans, pages)
            elif node.op == "attention":
                values[node.outputs["y"]] = self._attention(node, values, spans, pages)
            else:
                values[node.outputs["y"]] = self._ops[node.op](node, values)
            for name in ended:
                del values[name]
        return values["logits"] if wanted else None

    def _embed(self, node: Node, values: dict[str, Any]) -> Any:
        name, token_ids = node.inputs["table"], values["token_ids"]
        rows = [self._weights[tensor][token_ids] for tensor in self._tensors(name)]
        if len(rows) > 1:
            rows = [self._mx.dequantize(*rows, **self._quantization)]
        return rows[0].astype(self._mx.float32)

    def _take_rows(self, node: Node, values: dict[str, Any]) -> Any:
        return values[node.inputs["x"]][values[node.inputs["rows"]]]

    def _rms_norm(self, node: Node, values: dict[str, Any]) -> Any:
        x, weight = values[node.inputs["x"]].astype(self._mx.float32), self._weights[node.inputs["weight"]]
        groups = x.reshape(len(x), -1, weight.shape[0])
        return self._of(node, self._mx.fast.rms_norm(groups, weight.astype(self._mx.float32), node.attrs["eps"]).reshape(x.shape))

    def _linear(self, node: Node, values: dict[str, Any]) -> Any:
        x, name = values[node.inputs["x"]].astype(self._dtype), node.inputs["weight"]
        tensors = [self._weights[tensor] for tensor in self._tensors(name)]
        y = self._mx.quantized_matmul(x, *tensors, **self._quantization) if len(tensors) > 1 else x @ tensors[0].T
        return self._of(node, y + self._weights[node.inputs["bias"]] if "bias" in node.inputs else y)

    def _add(self, node: Node, values: dict[str, Any]) -> Any:
        return values[node.inputs["a"]] + values[node.inputs["b"]]

    def _gate(self, node: Node, values: dict[str, Any]) -> Any:
        gate = values[node.inputs["gate"]]
        return gate * self._mx.sigmoid(gate) * values[node.inputs["up"]]

    def _rope(self, node: Node, values: dict[str, Any]) -> Any:
        # Not mx.fast.rope: its angles are float32, which at far positions is less than the table has.
        table = self._tables[node.inputs["table"]][values[node.inputs["positions"]]]
        cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
        x = values[node.inputs["x"]].astype(self._mx.float32)
        low, high = self._mx.split(x.reshape(len(x), -1, 2 * table.shape[1]), 2, axis=-1)
        rotated = self._mx.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)
        return self._of(node, rotated.reshape(x.shape))

    def _append_kv(self, node: Node, values: dict[str, Any], spans: Sequence[Span], pages: Pages) -> None:
        name = node.inputs["kv"]
        keys, rows = (values[node.inputs[role]] for role in ("k", "v"))
        for span in spans:
            pages.append(name, span, self._heads(keys, span, name), self._heads(rows, span, name))

    def _attention(self, node: Node, values: dict[str, Any], spans: Sequence[Span], pages: Pages) -> Any:
        name, q = node.inputs["kv"], values[node.inputs["q"]]
        attended = []
        for span in spans:
            keys, rows = pages.read(name, span)
            queries = self._heads(q, span, name)
            if pages.group is None:
                mask = "causal" if span.stop - span.first > 1 else None
                scale = queries.shape[-1] ** -0.5
                y = self._mx.fast.scaled_dot_product_attention(queries, *keys, *rows, scale=scale, mask=mask)
            else:
                y = self._quantized_attention(queries, keys, rows, span, pages.group)
            attended.append(y.transpose(0, 2, 1, 3).reshape(span.stop - span.first, q.shape[1]))
        return attended[0] if len(attended) == 1 else self._mx.concatenate(attended)

    def _quantized_attention(self, queries: Any, keys: Arrays, values: Arrays, span: Span, group: int) -> Any:
        """Queries (1, H, n, D) on keys and values of 8-bit integers."""
        mx, (_, heads, count, head_dim) = self._mx, queries.shape
        kv_heads = keys[0].shape[1]
        grouped = (queries * head_dim**-0.5).reshape(1, kv_heads, heads // kv_heads, count, head_dim)
        keys, values = (tuple(array[:, :, None] for array in arrays) for arrays in (keys, values))
        scores = mx.quantized_matmul(grouped, *keys, group_size=group, bits=8).astype(mx.float32)
        hidden = mx.arange(span.length)[None, :] > mx.arange(span.start, span.length)[:, None]
        weights = mx.softmax(mx.where(hidden, -mx.inf, scores), axis=-1).astype(queries.dtype)
        return mx.quantized_matmul(weights, *values, transpose=False, group_size=group, bits=8).reshape(queries.shape)

    def _heads(self, x: Any, span: Span, state: str) -> Any:
        """A span's rows (n, heads * D) as (1, heads, n, D)."""
        rows = x[span.first : span.stop]
        return rows.reshape(1, len(rows), -1, self._head_dims[state]).transpose(0, 2, 1, 3)

    def _tensors(self, weight: str) -> list[str]:
        """A matrix's codes, scales and biases, or the one tensor of what is not quantized."""
        module = weight.removesuffix(".weight")
        names = [weight, f"{module}.scales", f"{module}.biases"]
        return names if names[1] in self._weights else names[:1]

    def _of(self, node: Node, x: Any) -> Any:
        return x.astype(self._dtype if node.attrs["dtype"] == "activation" else self._mx.float32)
