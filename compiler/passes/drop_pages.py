"""attention(qkv) over pages  ->  ragged_attention(rope_heads(qkv)): a decoder that reads complete texts needs no pages.

The result computes all rows of the final norm instead of those of the sampled tokens, so the tokens of a text can be
pooled. It reads the inputs of a batch of complete texts: token_ids, positions and seq_starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..ir.graph import Graph, Node
from ..ir.ops.attention import PREPARING, SCORES
from ..ir.pages import STATE_SLOTS, STATES
from .fuse_attention import fuse_attention
from .stack import stack_siblings

# The output of the graph: the rows (S, E) of the final norm.
ROWS = "rows"
INPUTS = ("token_ids", "positions", "seq_starts")
# The attributes of heads' preparation that `rope_heads` has.
OF_HEADS = ("eps", "norms_values")
ATTENTION = {
    "inputs": ("qkv", *PREPARING, "kv", "slots", "positions", "seq_starts", "page_indptr", "page_ids", "sinks"),
    "attrs": (*(SCORES.keys() - {"causal"}), *OF_HEADS),
}
# The inputs that an attention has with and without pages.
RAGGED = ("qkv", "positions", "seq_starts", "sinks")
# The stored form of a tensor of the checkpoint; None if it holds floats.
FormOf = Callable[[str], str | None]


def drop_pages(graph: Graph, *, causal: bool, form_of: FormOf) -> Graph | None:
    """The graph of a decoder's embeddings without pages; None if its layers share keys and values, or prepare queries
    and keys in a way that `rope_heads` does not: norms over all heads, norms behind the rotation, factors by position,
    and weights that are stored in several forms. Recurrent states stay.

    ``causal``: a token sees no later one.
    """
    graph = fuse_attention(stack_siblings(graph, dtype="activation"))
    makers = graph.makers()
    replaced: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if "kv" not in node.inputs:
            continue
        linear = makers.get(node.inputs.get("qkv", ""))
        if not node.has_only(**ATTENTION) or linear is None or not is_stored_alike(graph, linear, form_of):
            return None
        _, _, num_kv_heads, _, head_dim = graph.shape_of(node.inputs["kv"])
        assert isinstance(head_dim, int)
        if "qk_norm" in node.inputs and graph.shape_of(node.inputs["qk_norm"]) != (2 * head_dim,):
            return None
        replaced[id(node)] = without_pages(node, {"head_dim": head_dim, "num_kv_heads": num_kv_heads}, causal=causal)
    return with_all_rows(graph, replaced)


def is_stored_alike(graph: Graph, linear: Node, form_of: FormOf) -> bool:
    sources = graph.parameters[linear.inputs["weight"]].sources
    return len({form_of(source.tensor) for source in sources}) == 1


def without_pages(attention: Node, heads: Mapping[str, object], *, causal: bool) -> list[Node]:
    """The norms and the rotation of heads in the joint projection, if there are any, and the attention."""
    inputs = {role: name for role, name in attention.inputs.items() if role in RAGGED}
    attrs = {**attention.attrs, **heads}
    of_heads = {name: attrs.pop(name) for name in OF_HEADS if name in attrs}
    prepared = {role: name for role, name in attention.inputs.items() if role in PREPARING}
    nodes: list[Node] = []
    if prepared:
        prepared |= {role: inputs[role] for role in ("qkv", "positions")}
        inputs["qkv"] = f"{inputs['qkv']}.rotated"
        nodes.append(Node("rope_heads", prepared, {"y": inputs["qkv"]}, {**heads, **of_heads}))
    return [*nodes, Node("ragged_attention", inputs, attention.outputs, {**attrs, "causal": causal})]


def with_all_rows(graph: Graph, replaced: Mapping[int, list[Node]]) -> Graph:
    """The graph with other nodes, which computes the final norm of all rows instead of the sampled ones."""
    nodes: list[Node] = []
    all_rows: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "take_rows":
            all_rows[node.outputs["y"]] = node.inputs["x"]
            continue
        for each in replaced.get(id(node), [node]):
            inputs = {role: all_rows.get(name, name) for role, name in each.inputs.items() if role != "sampled"}
            nodes.append(Node(each.op, inputs, each.outputs, each.attrs))
    (rows,) = graph.outputs.values()
    without = Graph(
        inputs={name: graph.inputs[name] for name in (*INPUTS, STATE_SLOTS) if name in graph.inputs},
        states={name: state for name, state in graph.states.items() if state.shape[0] == STATES},
        constants=graph.constants,
        parameters=graph.parameters,
        outputs={ROWS: rows},
    )
    return without.with_nodes(nodes)
