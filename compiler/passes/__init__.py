"""The rewrites of the graph, in order. All but the last two preserve what the graph computes; they determine the number
of dispatches per token.

gather_on_host         lookups in large tables of embeddings     -> inputs that the host gathers, if its runtime can
stack_gates            gate and up projections, then their gate  -> one projection, then a gate of its halves
fuse                   ops beside a projection or a norm         -> parts of what it loads and stores
stack_siblings         projections of the same input (q, k, v)   -> one projection, sliced
read_slices            slices that ops with states read          -> columns of the joint projection
fuse_convolution       convolution, then gated delta rule        -> one step
fuse_attention         q/k norms, rotations, append, attention   -> one step
add_lora               projections                               -> each followed by a LoRA adapter, if requested
split_large            a weight larger than a binding            -> parts by rows
keep                   a norm that several nodes read            -> a part of the first one, which stores it
fuse_attention_output  attention without pages, then projection  -> one step
quantize_kv            KV pages of activations                   -> of integers, if requested
mark_logits            logits that are adjusted                  -> raised in a green list, if requested

A plan that gives pages back goes through one more, `split_page_groups`: page tables of their own for window layers.
Before all of them, `drop_pages` makes the graph of a decoder that computes vectors or scores read complete texts.
"""

from __future__ import annotations

from ..ir.graph import Graph
from ..quant import Quantization
from .add_lora import STORED, add_lora
from .fuse import fuse, keep
from .fuse_attention import fuse_attention, fuse_attention_output
from .fuse_convolution import fuse_convolution
from .gather_on_host import gather_on_host
from .mark_logits import mark_logits
from .quantize_kv import quantize_kv
from .read_slices import read_slices
from .split_large import split_large
from .stack import stack_gates, stack_siblings

FUSIONS = (stack_gates, fuse, stack_siblings, read_slices, fuse_convolution, fuse_attention)


def run_passes(
    graph: Graph,
    quantization: Quantization,
    max_binding_bytes: int,
    kv: str = "activation",
    lora_rank: int = 0,
    *,
    host_tables: bool = False,
    marks: bool = False,
) -> Graph:
    """Run all fusions, then split the weights whose planes exceed ``max_binding_bytes``.

    ``kv`` is the format of the pages (`ir/kv_format.py`); ``lora_rank`` is the largest rank of adapters, 0 for none.
    ``host_tables``: whether the target's runtimes gather rows of tables on the host. ``marks``: whether answers can
    have a watermark.
    """
    if host_tables:
        graph = gather_on_host(graph, quantization)
    for each in FUSIONS:
        # An adapter changes a projection's result before it is gated, and loads only an RMS norm.
        graph = fuse(graph, STORED, centered=False) if lora_rank and each is fuse else each(graph)
    if lora_rank:
        graph = add_lora(graph, lora_rank)
    graph = keep(split_large(graph, quantization, max_binding_bytes), centered=not lora_rank)
    graph = quantize_kv(graph if lora_rank else fuse_attention_output(graph), kv)
    return mark_logits(graph) if marks else graph
