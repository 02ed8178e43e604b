"""The tower of SmolVLM-256M (SigLIP: 12 layers of 768, 1,024 patches; random weights) on this machine's CPU:
milliseconds from the patches of a tile to its features, compared with ONNX Runtime.

``make bench-tower`` prints a table and writes ``build/bench/tower.json``. Engines of a class alternate in each round,
and figures are medians. Classes: "float" has weights in float32 or float16, and activations as precise as float16; in
"int8", matrices and the inputs of their products have 8 bits. ONNX Runtime runs our export, and transformers' traced
model as its own optimiser fuses it, both also quantized by its `quantize_dynamic`. Before that, the features of all
engines are compared with those of transformers. It also prints the dispatches of the tower on a GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_compile import ROOT, machine
from bench_whisper import open_session
from image_families import pattern
from rich.console import Console
from rich.table import Table
from smolvlm import HEADS, HIDDEN, PATCHES, SIDE, write_checkpoint
from vision_arguments import pixels_of

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import VISION
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.images.patches import PreparedImage, prepare_image
from nearfar.compiler.runtime.patches import image_features
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.threads import default_threads

Floats = npt.NDArray[np.float32]
Engine = Callable[[], Floats]

# (quantization, activations) of our bundles, and the class in which each competes.
OURS = {
    "nearfar f32": ("f32", "float32", "float"),
    "nearfar f16": ("f16", "float16", "float"),
    "nearfar q8": ("q8f16", "int8", "int8"),
}
LEAST_CORRELATION = {"float": 0.999, "int8": 0.97}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for models")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", action="append", help="a part of the names of engines to measure (default: all)")
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor seconds, which other work hardly changes; use --threads 1"
    )
    options = parser.parse_args()
    folder = options.folder / "smolvlm"
    model = write_checkpoint(folder / "checkpoint")
    images = load(str(folder / "checkpoint")).images
    assert images is not None
    image = prepare_image(images, pattern(SIDE, SIDE))
    assert len(image.patches) == PATCHES, len(image.patches)
    pixels = pixels_of(images, [image], tiles=False)["pixel_values"]
    expected = reference(model, pixels)
    engines: dict[str, dict[str, Engine]] = {"float": {}, "int8": {}}
    for name, kind, engine in make_engines(model, folder, image, pixels.numpy(), options.threads, options.engine):
        correlation = float(np.corrcoef(engine().reshape(-1), expected.reshape(-1))[0, 1])
        print(f"{name}: the features' correlation with transformers' is {correlation:.5f}", flush=True)
        if not correlation > LEAST_CORRELATION[kind]:
            raise SystemExit(f"{name} does not run the same model")
        engines[kind][name] = engine
    clock = time.process_time if options.cpu_time else time.perf_counter
    results = {kind: measure(each, options.rounds, clock) for kind, each in engines.items()}
    about = {
        "machine": machine(), "threads": options.threads, "rounds": options.rounds, "clock": clock.__name__,
        "dispatches": dispatches(folder),
    }  # fmt: skip
    (options.folder / "tower.json").write_text(json.dumps({**about, "milliseconds": results}, indent=2))
    for kind, found in results.items():
        table = Table(title=f"milliseconds, {kind}, {options.threads} threads, {clock.__name__}, {machine()}")
        for column in ("", "a tile", "speed relative to the best other"):
            table.add_column(column, justify="right" if column else "left")
        others = [each for name, each in found.items() if name not in OURS]
        for name, each in found.items():
            table.add_row(name, f"{each:.1f}", f"{min(others) / each:.2f}" if others and name in OURS else "")
        Console(width=120).print(table)
    print(f"dispatches of a tile's tower on WebGPU: {about['dispatches']}")


def reference(model: Any, pixels: Any) -> Floats:
    import torch

    with torch.inference_mode():
        found = model.model.get_image_features(pixels).pooler_output
        features: Floats = torch.cat(list(found)).numpy()
    return features


def make_engines(
    model: Any, folder: Path, image: PreparedImage, pixels: Floats, threads: int, wanted: list[str] | None
) -> Iterator[tuple[str, str, Engine]]:
    """(name, class, engine)"""

    def is_wanted(name: str) -> bool:
        return wanted is None or any(each in name for each in wanted)

    for name, (quantization, activation, kind) in OURS.items():
        if is_wanted(name):
            yield name, kind, ours(folder, quantization, activation, threads, image)
    logging.getLogger().setLevel(logging.ERROR)
    for name, kind, file in onnx_files(model, folder, pixels) if is_wanted("ONNX Runtime") else ():
        if is_wanted(name):
            yield name, kind, onnx_engine(file, threads, pixels)


def ours(folder: Path, quantization: str, activation: str, threads: int, image: PreparedImage) -> Engine:
    path = folder / f"{quantization}-{activation}"
    options = CompileOptions(
        target="cpu", quantization=quantization, activations=(activation,), context=1024, self_test=False, force=True
    )
    compile_model(str(folder / "checkpoint"), path, options)
    limits = Limits(tokens=64, rows=1, sequences=1)
    runner = CpuRunner(open_bundle(path), limits=limits, threads=threads, activation=activation)
    return lambda: image_features(runner, image)


def onnx_files(model: Any, folder: Path, pixels: Floats) -> Iterator[tuple[str, str, Path]]:
    """(name, class, file)"""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    bundle = folder / "onnx-f32"
    options = CompileOptions(target="onnx", quantization="f32", context=1024, self_test=False, force=True)
    export_model(str(folder / "checkpoint"), bundle, options)
    files = {"our export": bundle / "onnx/vision_encoder.onnx", "traced": export_traced(model, folder, pixels)}
    for name, file in files.items():
        yield f"ONNX Runtime f32, {name}", "float", file
        small = folder / f"{name.split()[0]}-int8.onnx"
        quantize_dynamic(
            file, small, ["MatMul", "Gemm", "Attention"], per_channel=True, weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )  # fmt: skip
        yield f"ONNX Runtime int8, {name}", "int8", small


def export_traced(model: Any, folder: Path, pixels: Floats) -> Path:
    """The tower as transformers' traced model, fused by ONNX Runtime's optimiser for transformers."""
    import torch
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model.model

        def forward(self, pixel_values: Any) -> Any:
            # A complete tile, without the search for masked pixels and for tiles of padding.
            tower = self.model.vision_model
            rows = tower.embeddings.patch_embedding(pixel_values[0]).flatten(2).transpose(1, 2)
            rows = rows + tower.embeddings.position_embedding.weight
            rows = tower.encoder(inputs_embeds=rows, attention_mask=None).last_hidden_state
            return self.model.connector(tower.post_layernorm(rows))

    traced, fused = folder / "traced.onnx", folder / "fused.onnx"
    model.set_attn_implementation("eager")
    torch.onnx.export(
        Exported().eval(), (torch.from_numpy(pixels),), str(traced), input_names=["pixel_values"],
        output_names=["image_features"], opset_version=17, dynamo=False,
    )  # fmt: skip
    model.set_attn_implementation("sdpa")
    options = FusionOptions("clip")
    optimized = optimize_model(str(traced), "clip", num_heads=HEADS, hidden_size=HIDDEN, optimization_options=options)
    found = optimized.get_fused_operator_statistics()
    print("ONNX Runtime's optimiser fused", {name: count for name, count in found.items() if count})
    optimized.save_model_to_file(str(fused))
    return fused


def onnx_engine(file: Path, threads: int, pixels: Floats) -> Engine:
    session = open_session(file, threads)
    feeds: dict[str, Any] = {"pixel_values": pixels}
    if len(session.get_inputs()) > 1:
        feeds["pixel_attention_mask"] = np.ones((1, 1, SIDE, SIDE), bool)
    return lambda: session.run(None, feeds)[0]


def measure(engines: dict[str, Engine], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of each engine: medians of alternating rounds."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            start = clock()
            engine()
            found[name].append(1e3 * (clock() - start))
    return {name: statistics.median(each) for name, each in found.items()}


def dispatches(folder: Path) -> int:
    """The dispatches of the tower of a bundle for WebGPU."""
    path = folder / "webgpu"
    options = CompileOptions(quantization="q4f16", context=1024, self_test=False, force=True)
    compile_model(str(folder / "checkpoint"), path, options)
    manifest = open_bundle(path).manifest
    return sum(len(manifest.variants[step.variants][0].kernels) for step in manifest.plan(VISION).steps)


if __name__ == "__main__":
    main()
