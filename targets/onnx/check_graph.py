"""Check an export's graph against its manifest, before ONNX Runtime opens it.

The runner allocates keys, values and logits by the manifest and passes their addresses to the graph, and consumers of
embeddings and scores rely on their number, so both must have the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.bundle.manifest import ExportManifest
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.runtime.errors import BundleError

from .slot_states import PREFIXES

Require = Callable[[bool, str], None]


def check_graph(graph: onnx.GraphProto, bundle: ExportBundle) -> None:
    """Raises BundleError if layers, heads, tokens or positions differ from the manifest's, or weights are in files
    outside the bundle.
    """
    manifest, spec = bundle.manifest, bundle.manifest.spec

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise BundleError(f"{bundle.path}: the graph {what}; compile the bundle again")

    if manifest.generates:
        check_decoder(graph, spec, require)
    else:
        check_results(graph, manifest, require)
    names = {entry.file for entry in manifest.files}
    for constant in graph.initializer:
        if constant.name.endswith((".cos", ".sin")):
            require(
                constant.dims[0] >= manifest.context,
                f"rotates {constant.dims[0]} positions, the manifest's context has {manifest.context}",
            )
        for entry in constant.external_data:
            # The graph and its weights are in the folder onnx/.
            if entry.key == "location":
                require(
                    f"onnx/{entry.value}" in names, f"has weights in {entry.value!r}, which is not a file of the bundle"
                )


def check_results(graph: onnx.GraphProto, manifest: ExportManifest, require: Require) -> None:
    """Check the length of embeddings, or the number of labels."""
    embedding, classifier = manifest.embedding, manifest.classifier
    name, size = ("logits", len(classifier.labels)) if classifier is not None else ("sentence_embedding", 0)
    size = embedding.size if embedding is not None else size
    found = [sizes_of(each) for each in graph.output if each.name == name]
    require(len(found) == 1 and found[0][-1:] == [size], f"has {name} {found}, the manifest {size} numbers")
    inputs = {each.name for each in graph.input}
    require(
        {"input_ids", "attention_mask"} <= inputs <= {"input_ids", "attention_mask", "token_type_ids"},
        f"reads {', '.join(sorted(inputs))}, which are not those of a model of texts",
    )


def check_decoder(graph: onnx.GraphProto, spec: ModelSpec, require: Require) -> None:
    """Check the keys and values, and the logits."""
    # The last layers may share the keys and values of earlier ones, and some may have a state instead.
    owners = [layer for layer in range(spec.num_layers - spec.num_kv_shared_layers) if "attention" in spec.mixer(layer)]
    planes = {
        f"past_key_values.{layer}.{plane}": spec.heads_of(layer) for layer in owners for plane in ("key", "value")
    }
    caches = {each.name: sizes_of(each) for each in graph.input if each.name.startswith("past_key_values.")}
    require(
        caches.keys() == planes.keys(),
        f"has {len(caches)} arrays of keys and values, the manifest's layers {len(planes)}",
    )
    for name, shape in caches.items():
        heads, head_dim = planes[name]
        fits = len(shape) == 4 and (shape[1], shape[3]) == (heads, head_dim)
        require(fits, f"has {name} of shape {shape}, the manifest {heads} heads of {head_dim}")
    states = [sizes_of(each) for each in graph.input if each.name.startswith(PREFIXES)]
    found = sum(math.prod(shape[1:]) for shape in states)
    require(
        found == spec.state_elements and all(min(shape[1:]) > 0 for shape in states),
        f"has states of {found:,} elements, the manifest's layers {spec.state_elements:,}",
    )
    logits = [sizes_of(each) for each in graph.output if each.name == "logits"]
    require(
        len(logits) == 1 and logits[0][-1:] == [spec.vocab_size],
        f"has logits {logits}, the manifest {spec.vocab_size} tokens",
    )


def sizes_of(value: onnx.ValueInfoProto) -> list[int]:
    """The value's shape, with 0 for dims that each call determines."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
