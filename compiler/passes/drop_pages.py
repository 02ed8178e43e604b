"""q, k, v = linear(x), norms and rotations, append_kv, attention over pages  ->  qkv = linear(x), rope_heads,
ragged_attention: a decoder that reads complete texts needs no pages.

The result computes all rows of the final norm instead of those of the sampled tokens, so the tokens of a text can be
pooled. It reads the inputs of a batch of complete texts: token_ids, positions and seq_starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops.attention import SCORES
from .head_chain import HeadChain, chain_of
from .stack import can_stack, module_of, stack_parameters, stacked

# The output of the graph: the rows (S, E) of the final norm.
ROWS = "rows"
INPUTS = ("token_ids", "positions", "seq_starts")
ATTENTION_INPUTS = ("q", "kv", "positions", "seq_starts", "page_indptr", "page_ids")
# The stored form of a tensor of the checkpoint; None if it holds floats.
FormOf = Callable[[str], str | None]


def drop_pages(graph: Graph, *, causal: bool, form_of: FormOf) -> Graph | None:
    """The graph of a decoder's embeddings without pages; None if its layers share keys and values, or prepare queries
    and keys in a way that `rope_heads` does not: norms over all heads, norms behind the rotation, norms of values,
    factors by position, and weights that are stored in several forms.

    ``causal``: a token sees no later one.
    """
    makers = graph.makers()
    appends = {node.inputs["kv"]: node for node in graph.nodes if node.op == "append_kv"}
    parameters: dict[str, Parameter] = {}
    replaced: dict[int, list[Node]] = {}
    attentions = [node for node in graph.nodes if node.op == "attention"]
    if len(attentions) != len(appends):
        return None
    for attention in attentions:
        append = appends.get(attention.inputs["kv"])
        if append is None or not attention.has_only(inputs=ATTENTION_INPUTS, attrs=SCORES.keys() - {"causal"}):
            return None
        head_dim = graph.shape_of(append.inputs["kv"])[-1]
        assert isinstance(head_dim, int)
        names = (attention.inputs["q"], append.inputs["k"], append.inputs["v"])
        q, k, v = chains = [chain_of(graph, makers, name, head_dim) for name in names]
        plain = not q.norm_after and q.norm_of_each and k.norm_of_each and q.position_scale is k.position_scale is None
        if v.nodes or not plain or not q.is_like(k):
            return None
        linears = [makers[chain.start] for chain in chains if chain.start in makers and graph.only_user(chain.start)]
        if len(linears) < 3 or not can_stack(graph, linears) or not stored_alike(graph, linears, form_of):
            return None
        replaced |= {id(node): [] for node in (*q.nodes, *k.nodes, *linears, append)}
        linear = stacked(graph, parameters, linears, "qkv")
        replaced[id(linears[-1])], joint = [linear], linear.outputs["y"]
        heads = {"head_dim": head_dim, "num_kv_heads": graph.shape_of(append.inputs["kv"])[2]}
        nodes: list[Node] = []
        if q.norm is not None or q.rope is not None:
            nodes.append(prepared(graph, parameters, joint, q, k, heads))
            joint = nodes[0].outputs["y"]
        rows = {role: attention.inputs[role] for role in ("positions", "seq_starts")}
        attrs = {**attention.attrs, **heads, "causal": causal}
        replaced[id(attention)] = [*nodes, Node("ragged_attention", {"qkv": joint, **rows}, attention.outputs, attrs)]
    return with_all_rows(graph, replaced, parameters)


def stored_alike(graph: Graph, linears: list[Node], form_of: FormOf) -> bool:
    weights = [graph.parameters[linear.inputs["weight"]] for linear in linears]
    return len({form_of(source.tensor) for weight in weights for source in weight.sources}) == 1


def prepared(
    graph: Graph, parameters: dict[str, Parameter], joint: str, q: HeadChain, k: HeadChain, heads: Mapping[str, object]
) -> Node:
    """The norms and the rotation of q and k in a joint projection."""
    inputs, attrs = {"qkv": joint}, dict(heads)
    if q.rope is not None:
        inputs["table"] = q.rope.inputs["table"]
    if q.norm is not None and k.norm is not None:
        names = [norm.inputs["weight"] for norm in (q.norm, k.norm)]
        inputs["qk_norm"] = stack_parameters(graph, parameters, names, f"{module_of(q.norm)}.qk_norm.weight")
        attrs["eps"] = q.norm.attr("eps")
    return Node("rope_heads", {**inputs, "positions": "positions"}, {"y": f"{joint}.rotated"}, attrs)


def with_all_rows(graph: Graph, replaced: Mapping[int, list[Node]], parameters: Mapping[str, Parameter]) -> Graph:
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
        inputs={name: graph.inputs[name] for name in INPUTS},
        constants=graph.constants,
        parameters=graph.parameters,
        outputs={ROWS: rows},
    )
    return without.with_nodes(nodes, parameters.values())
