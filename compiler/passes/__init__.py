"""The rewrites of the graph, in order. All but the last preserve what the graph computes; they determine the number of
dispatches per token.

gather_on_host    lookups in large tables of embeddings         -> inputs that the host gathers, if its runtime can
fuse_gate_up      gate and up projections and their activation  -> one gated projection
fold_rounding     fake_quantize before or after a projection    -> a projection that rounds
fuse_side_gate    projection, then gate of another value        -> one projection
fuse_projections  projections of the same input (q, k, v)       -> one projection, sliced
fuse_attention    slices, q/k norms, rotations, KV append, then attention -> one step
fuse_residual     projection or norm, then residual addition    -> one step
fuse_scale        norm and residual addition, then a factor     -> one step
fuse_norm         RMSNorm, then projection                      -> one projection that normalizes its input
fuse_layer_norm   LayerNorm, then projection                    -> the same
add_lora          projections                                   -> each followed by a LoRA adapter, if requested
split_large       a weight larger than a binding                -> parts by rows
keep_norm         LayerNorm, then projection and residual       -> one projection with two results
fuse_attention_output  attention without pages, then projection -> one step
fuse_stream       norm and residual addition, then projection   -> one projection with two results
quantize_kv       KV pages of activations                       -> of integers, if requested

A plan that gives pages back goes through one more, `split_page_groups`: page tables of their own for window layers.
Before all of them, `drop_pages` makes the graph of a decoder that computes vectors or scores read complete texts.
"""

from __future__ import annotations

from ..ir.graph import Graph
from ..quant import Quantization
from .add_lora import add_lora
from .fold_rounding import fold_rounding
from .fuse_attention import fuse_attention
from .fuse_attention_output import fuse_attention_output
from .fuse_gate_up import fuse_gate_up
from .fuse_norm import fuse_layer_norm, fuse_norm
from .fuse_projections import fuse_projections
from .fuse_residual import fuse_residual
from .fuse_scale import fuse_scale
from .fuse_side_gate import fuse_side_gate
from .fuse_stream import fuse_stream
from .gather_on_host import gather_on_host
from .keep_norm import keep_norm
from .quantize_kv import quantize_kv
from .split_large import split_large

FUSIONS = (
    fuse_gate_up,
    fold_rounding,
    fuse_side_gate,
    fuse_projections,
    fuse_attention,
    fuse_residual,
    fuse_scale,
    fuse_norm,
    fuse_layer_norm,
)
# An adapter changes a projection's result before it is gated, and normalizes its input only by an RMS norm.
WITHOUT_LORA = (fuse_side_gate, fuse_layer_norm)


def run_passes(
    graph: Graph,
    quantization: Quantization,
    max_binding_bytes: int,
    kv: str = "activation",
    lora_rank: int = 0,
    *,
    host_tables: bool = False,
) -> Graph:
    """Run all fusions, then split the weights whose planes exceed ``max_binding_bytes``.

    ``kv`` is the format of the pages (`ir/kv_format.py`); ``lora_rank`` is the largest rank of adapters, 0 for none.
    ``host_tables``: whether the target's runtimes gather rows of tables on the host.
    """
    if host_tables:
        graph = gather_on_host(graph, quantization)
    for fuse in FUSIONS:
        if not (lora_rank and fuse in WITHOUT_LORA):
            graph = fuse(graph)
    if lora_rank:
        graph = add_lora(graph, lora_rank)
    graph = split_large(graph, quantization, max_binding_bytes)
    if not lora_rank:
        graph = fuse_attention_output(keep_norm(graph))
    return quantize_kv(fuse_stream(graph), kv)
