"""Vectors of MPNet and DeBERTa 3 on this machine's CPU, at the shapes of all-mpnet-base-v2 and deberta-v3-base (random
weights, f32): milliseconds of a batch compared with ONNX Runtime and transformers.

``python tests/bench/bench_distances.py`` prints a table and writes ``build/bench/distances.json``. ONNX Runtime runs
transformers' traced model with its own optimizations. The engines alternate in each round, and figures are medians.
Texts of a batch have one length, so no engine pads. Before that, the vectors of all engines are compared. ``--layers``
runs the first layers alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import ROOT, machine
from bench_embed import Embed, Vectors, compare, measure, onnx_session, ours, padded

from nearfar.targets.threads import default_threads

MODELS = ("all-mpnet-base-v2", "deberta-v3-base")
PUBLISHED = ROOT / "compiler" / "arch" / "published" / "encoders"
# (texts, tokens of each)
BATCHES = ((1, 32), (1, 256), (8, 128))


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for models")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--model", choices=MODELS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.model or MODELS:
        engines = make_engines(name, options.folder / name, options.threads, options.layers)
        rng = np.random.default_rng(0)
        results[name] = {}
        for texts, tokens in BATCHES:
            batch = rng.integers(5, 30_000, (texts, tokens)).tolist()
            found = results[name][f"{texts} x {tokens}"] = measure(engines, batch, options.rounds)
            print(name, f"{texts} x {tokens}", {engine: round(each, 1) for engine, each in found.items()}, flush=True)
    about = {"machine": machine(), "threads": options.threads, "rounds": options.rounds, "layers": options.layers}
    file = options.folder / "distances.json"
    file.write_text(json.dumps({**about, "milliseconds": results}, indent=2))


def make_engines(name: str, folder: Path, threads: int, layers: int | None) -> dict[str, Embed]:
    import torch
    import transformers

    values = json.loads((PUBLISHED / f"{name}.json").read_text())
    if layers is not None:
        values["num_hidden_layers"] = layers
    config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).float().eval()
    model.save_pretrained(folder / "checkpoint")
    write_tokenizer(folder / "checkpoint")

    def of_transformers(texts: Sequence[Sequence[int]]) -> Vectors:
        token_ids, mask = map(torch.from_numpy, padded(texts))
        with torch.inference_mode():
            return list(pooled(model, token_ids, mask).numpy())

    engines = {"nearfar f32": ours(folder, "f32", "float32", threads)}
    engines["ONNX Runtime"] = onnx_session(export_traced(model, folder), threads)
    engines["transformers"] = of_transformers
    compare(engines, of_transformers)
    return engines


def pooled(model: Any, token_ids: Any, mask: Any) -> Any:
    rows = model(input_ids=token_ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(rows.dtype)
    return (rows * weights).sum(1) / weights.sum(1)


def export_traced(model: Any, folder: Path) -> Path:
    import torch

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return pooled(self.encoder, input_ids, attention_mask)

    both = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        Exported().eval(), (torch.full((2, 16), 7), torch.ones(2, 16, dtype=torch.int64)), str(folder / "traced.onnx"),
        input_names=["input_ids", "attention_mask"], output_names=["vectors"],
        dynamic_axes={"input_ids": both, "attention_mask": both, "vectors": {0: "batch"}},
        opset_version=17, dynamo=False,
    )  # fmt: skip
    return folder / "traced.onnx"


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that the compiler accepts; the benchmark gives token ids."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


if __name__ == "__main__":
    main()
