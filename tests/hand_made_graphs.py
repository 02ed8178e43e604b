"""Decoder graphs that no architecture produces: layers of different sizes, and every option of attention, norms, gates
and weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from run_plan import PAGE_SIZE, random_tensors, run_graph

from nearfar.compiler.arch.decoder import BATCH_INPUTS, matrix, norm, sampling_block
from nearfar.compiler.ir.graph import Constant, Graph, Parameter, Source, Value
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.runtime.batch import Chunk, make_batch

VOCAB, HIDDEN, FEED_FORWARD, CONTEXT = 37, 32, 48, 32
# This is more than three of the windows below.
TOKENS = [(5 * i * i + 3 * i + 1) % VOCAB for i in range(29)]


@dataclass(frozen=True)
class Facts:
    """One layer. ``q_rotated`` and ``k_rotated`` are the numbers of rotated elements of a head. ``q_eps`` and ``k_eps``
    are None without a norm of heads. ``theta`` is that of the keys' rotations; that of the queries is 100.
    """

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    q_rotated: int = 16
    k_rotated: int = 16
    theta: float = 100.0
    q_eps: float | None = None
    k_eps: float | None = None
    activation: str = "silu"
    halves: bool = False
    norms_behind: bool = False


PLAIN = Facts()
# One layer of each graph is plain, so that a fact of one layer does not leak into another.
LAYERS: Mapping[str, Sequence[Facts]] = {
    "scale, window": (Facts(scale=0.4, window=7), PLAIN),
    "softcap": (Facts(softcap=1.5, scale=0.5), PLAIN),
    "sinks": (Facts(sinks=True, window=8), PLAIN),
    "no rotation": (Facts(q_rotated=0, k_rotated=0), PLAIN),
    "part of a head rotated": (Facts(head_dim=32, q_rotated=16, k_rotated=16), PLAIN),
    "odd part of a head rotated": (Facts(q_rotated=6, k_rotated=6), PLAIN),
    "heads of 24": (Facts(head_dim=24, q_rotated=24, k_rotated=24), PLAIN),
    "keys of another table": (Facts(theta=30.0), PLAIN),
    "queries rotated, keys not": (Facts(k_rotated=0), PLAIN),
    "norms of one eps": (Facts(q_eps=1e-5, k_eps=1e-5), PLAIN),
    "norms of two eps": (Facts(q_eps=0.5, k_eps=1e-5), PLAIN),
    "queries normed, keys not": (Facts(q_eps=1e-5), PLAIN),
    "norms without rotation": (Facts(q_eps=1e-5, k_eps=1e-5, q_rotated=0, k_rotated=0), PLAIN),
    "layers of other sizes": (
        Facts(heads=6, kv_heads=3, head_dim=8, q_rotated=8, k_rotated=8),
        Facts(heads=2, kv_heads=1),
    ),
    "norms behind": (Facts(norms_behind=True), Facts(norms_behind=True, halves=True)),
    "gelu": (Facts(activation="gelu", halves=True), PLAIN),
    "gelu_tanh": (Facts(activation="gelu_tanh"), PLAIN),
    "relu2": (Facts(activation="relu2"), PLAIN),
    "none": (Facts(activation="none"), PLAIN),
}


def build(layers: Sequence[Facts]) -> Graph:
    """Build a graph that ends in logits. The embedding has a scale, norm weights are read as 1 + w, and down_proj has a
    factor.
    """
    graph = Graph()
    graph.inputs = {name: Value(name, shape, dtype) for name, (shape, dtype) in BATCH_INPUTS.items()}
    graph.states["sampled"] = Value("sampled", ("N",), "int32")
    x = graph.add(
        "embed",
        {"table": matrix(graph, "embed", VOCAB, HIDDEN), "token_ids": "token_ids", "sampled": "sampled"},
        name="embedded",
        scale=HIDDEN**0.5,
    )
    for number, facts in enumerate(layers):
        x = feed_forward(graph, facts, f"layers.{number}.mlp", attention(graph, facts, f"layers.{number}.attn", x))
    x = graph.add("take_rows", {"x": x, "rows": "sample_rows"}, name="sampled_rows")
    x = norm(graph, "norm", x, HIDDEN, 1e-5)
    graph.add("linear", {"x": x, "weight": matrix(graph, "head", VOCAB, HIDDEN)}, name="logits", dtype="float32")
    sampling_block(graph, VOCAB)
    for name, parameter in graph.parameters.items():
        if parameter.columns is None and name != "norm.weight":
            graph.parameters[name] = replace(
                parameter, sources=tuple(replace(source, offset=1.0) for source in parameter.sources)
            )
    return graph


def attention(graph: Graph, facts: Facts, here: str, x: str) -> str:
    kv, size = f"{here}.kv", facts.head_dim
    graph.states[kv] = Value(kv, ("P", 2, facts.kv_heads, PAGE_SIZE, size), "activation")
    normed = x if facts.norms_behind else norm(graph, f"{here}.norm", x, HIDDEN, 1e-5)
    # q, k and v are slices of one tensor.
    roles, start = {}, 0
    for role, heads in (("q", facts.heads), ("k", facts.kv_heads), ("v", facts.kv_heads)):
        name, rows = f"{here}.{role}.weight", heads * size
        graph.parameters[name] = Parameter(name, (Source(f"{here}.qkv.weight", start, start + rows),), HIDDEN)
        roles[role] = graph.add("linear", {"x": normed, "weight": name}, name=f"{here}.{role}.out", dtype="activation")
        start += rows
    for role, eps, rotated, theta in (
        ("q", facts.q_eps, facts.q_rotated, 100.0),
        ("k", facts.k_eps, facts.k_rotated, facts.theta),
    ):
        if eps is not None:
            roles[role] = norm(graph, f"{here}.{role}_norm", roles[role], size, eps, "activation")
        if rotated:
            where = {"positions": "positions", "table": rope_table(graph, rotated, theta)}
            roles[role] = graph.add(
                "rope", {"x": roles[role], **where}, name=f"{here}.{role}.rotated", head_dim=size, dtype="activation"
            )
    graph.add("append_kv", {"k": roles["k"], "v": roles["v"], "kv": kv, "slots": "slots"})
    inputs = {
        "q": roles["q"],
        "kv": kv,
        **{name: name for name in ("positions", "seq_starts", "page_indptr", "page_ids")},
    }
    if facts.sinks:
        graph.parameters[f"{here}.sinks"] = Parameter(f"{here}.sinks", (Source(f"{here}.sinks", 0, facts.heads),), None)
        inputs["sinks"] = f"{here}.sinks"
    y = graph.add(
        "attention", inputs, name=f"{here}.attended", scale=facts.scale, window=facts.window, softcap=facts.softcap
    )
    weight = matrix(graph, f"{here}.o", HIDDEN, facts.heads * size)
    return residual(
        graph, facts, here, x, graph.add("linear", {"x": y, "weight": weight}, name=f"{here}.o.out", dtype="float32")
    )


def feed_forward(graph: Graph, facts: Facts, here: str, x: str) -> str:
    normed = x if facts.norms_behind else norm(graph, f"{here}.norm", x, HIDDEN, 1e-5)
    if facts.halves:
        weight = matrix(graph, f"{here}.gate_up", 2 * FEED_FORWARD, HIDDEN)
        both = graph.add("linear", {"x": normed, "weight": weight}, name=f"{here}.gate_up.out", dtype="float32")
        gated = graph.add("gate_halves", {"x": both}, name=f"{here}.gated", activation=facts.activation)
    else:
        gate, up = (
            graph.add(
                "linear",
                {"x": normed, "weight": matrix(graph, f"{here}.{part}", FEED_FORWARD, HIDDEN)},
                name=f"{here}.{part}.out",
                dtype="float32",
            )
            for part in ("gate", "up")
        )
        gated = graph.add("gate", {"gate": gate, "up": up}, name=f"{here}.gated", activation=facts.activation)
    down = f"{here}.down.weight"
    graph.parameters[down] = Parameter(down, (Source(down, 0, HIDDEN, factor=0.5),), FEED_FORWARD)
    y = graph.add("linear", {"x": gated, "weight": down}, name=f"{here}.down.out", dtype="float32")
    return residual(graph, facts, here, x, y)


def residual(graph: Graph, facts: Facts, here: str, x: str, y: str) -> str:
    y = norm(graph, f"{here}.norm_behind", y, HIDDEN, 1e-5) if facts.norms_behind else y
    return graph.add("add", {"a": x, "b": y}, name=f"{here}.sum")


def rope_table(graph: Graph, rotated: int, theta: float) -> str:
    name = f"rope_{rotated}_{theta:g}"
    frequencies = [theta ** (-2 * pair / rotated) for pair in range(rotated // 2)]
    # A scale like those for long contexts.
    attrs = {"inverse_frequencies": frequencies, "scale": 1.1 if theta == 100 else 1.0}
    graph.constants[name] = Constant(name, "rope", (CONTEXT, rotated // 2, 2), attrs)
    return name


def tensors_and_logits(graph: Graph) -> tuple[dict[str, Array], npt.NDArray[np.float32]]:
    """A checkpoint's tensors, and the logits (tokens, V) of TOKENS by `ir/ops/`."""
    tensors = random_tensors(graph, 3)
    pages = range(-(-len(TOKENS) // PAGE_SIZE))
    batch = make_batch([Chunk(TOKENS, 0, pages, range(len(TOKENS)))], PAGE_SIZE)
    logits: npt.NDArray[np.float32] = run_graph(graph, tensors, [batch]).outputs[0]["logits"]
    return tensors, logits
