"""A checkpoint with MiniLM's shapes and random weights, for sentence-transformers, ONNX Runtime and llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.formats.gguf.writer import NewTensor, Value, write_header, write_tensors

HIDDEN, LAYERS, HEADS, FFN, VOCAB, CONTEXT, EPS = 384, 6, 12, 1536, 30522, 512, 1e-12
# The names of GGUF by those of transformers.
GGUF_NAMES = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def write_checkpoint(folder: Path) -> Any:
    """Write the folder of sentence-transformers. Returns transformers' model."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=FFN, max_position_embeddings=CONTEXT, layer_norm_eps=EPS,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    described = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(described))
    for path, _ in modules[1:]:
        (folder / path).mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return model


def vocabulary() -> list[str]:
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(5, VOCAB))]


def write_tokenizer(folder: Path) -> None:
    from transformers import BertTokenizer

    (folder / "vocab.txt").write_text("\n".join(vocabulary()))
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=CONTEXT).save_pretrained(folder)


def export_onnx(model: Any, folder: Path, *, pooled: bool = True) -> dict[str, Path]:
    """Write the model for ONNX Runtime: as traced, as its own optimiser fuses it, and with int8 weights. The output is
    the mean of each text (B, E) or, without ``pooled``, the last hidden state (B, T, E).
    """
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            rows = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            if not pooled:
                return rows
            mask = attention_mask.unsqueeze(-1).to(rows.dtype)
            return (rows * mask).sum(1) / mask.sum(1)

    files = {name: folder / f"{name}.onnx" for name in ("traced", "fp32", "int8")}
    # The optimiser knows this form of attention.
    model.set_attn_implementation("eager")
    example = (torch.full((2, 16), 7), torch.ones(2, 16, dtype=torch.int64))
    both = {0: "batch", 1: "tokens"}
    output = "vectors" if pooled else "last_hidden_state"
    torch.onnx.export(
        Exported().eval(), example, str(files["traced"]),
        input_names=["input_ids", "attention_mask"], output_names=[output],
        dynamic_axes={"input_ids": both, "attention_mask": both, output: {0: "batch"} if pooled else both},
        opset_version=17, dynamo=False,
    )  # fmt: skip
    model.set_attn_implementation("sdpa")
    optimized = optimize_model(str(files["traced"]), "bert", num_heads=HEADS, hidden_size=HIDDEN)
    fused = optimized.get_fused_operator_statistics()
    if (fused["Attention"], fused["SkipLayerNormalization"], fused["BiasGelu"]) != (LAYERS, 2 * LAYERS, LAYERS):
        raise SystemExit(f"ONNX Runtime's optimiser did not fuse the model: {fused}")
    optimized.save_model_to_file(str(files["fp32"]))
    # The quantizer does not know the types of fused nodes' results.
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(files["fp32"], files["int8"], per_channel=True, weight_type=QuantType.QInt8, extra_options=types)
    return {"fp32": files["fp32"], "int8": files["int8"]}


def export_gguf(model: Any, path: Path, kind: str) -> None:
    """Write the model for llama.cpp, with matrices of ``kind``: "F32" or "Q8_0"."""
    metadata: dict[str, Value] = {
        "general.architecture": "bert",
        "general.name": "minilm",
        "bert.context_length": CONTEXT,
        "bert.embedding_length": HIDDEN,
        "bert.feed_forward_length": FFN,
        "bert.block_count": LAYERS,
        "bert.attention.head_count": HEADS,
        "bert.attention.layer_norm_epsilon": EPS,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": [*vocabulary()[:5], *(f"\u2581{word}" for word in vocabulary()[5:])],
        "tokenizer.ggml.token_type": np.array([3] * 5 + [1] * (VOCAB - 5), np.int32),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }
    tensors = list(gguf_tensors(model, kind))
    offsets = write_header(path, metadata, tensors)
    write_tensors(path, list(zip(tensors, offsets, strict=True)))


def gguf_tensors(model: Any, kind: str) -> Iterator[NewTensor]:
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        multiplies = name.startswith("encoder") and values.ndim == 2
        stored = q8_0(values) if kind == "Q8_0" and multiplies else values
        yield NewTensor(gguf_name(name), values.shape, kind if multiplies else "F32", partial(bytes_of, stored))


def bytes_of(stored: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[np.uint8]:
    return stored[start:stop].view(np.uint8)


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    module, _, kind = name.rpartition(".")
    if module in GGUF_NAMES:
        return f"{GGUF_NAMES[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.{kind}"


def q8_0(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Blocks of 32 columns: a float16 scale, then 32 signed bytes."""
    blocks = values.reshape(len(values), -1, 32)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    codes = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)).astype(np.int8)
    parts = [scales.astype(np.float16).view(np.uint8), codes.view(np.uint8)]
    return np.concatenate(parts, axis=-1).reshape(len(values), -1)


def embed_reference(model: Any, texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
    """The mean vector (E,) of each text of token ids, by transformers."""
    import torch

    with torch.inference_mode():
        return [model(input_ids=torch.tensor([list(text)])).last_hidden_state[0].numpy().mean(axis=0) for text in texts]
