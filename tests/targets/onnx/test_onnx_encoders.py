"""ONNX folders of embedding models and classifiers: onnxruntime's results for padded batches are those of transformers
for each text alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from decoder_families import make_family
from plain_target import compile_plain
from tiny_encoders import CONTEXT, logits_of, make_encoder, rows_of, texts_of, write_json
from tiny_models import write_modules
from tokenizers import Tokenizer
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.encoding import Text, encode
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

FloatArray = npt.NDArray[np.float32]
SCRIPT = Path(__file__).parent / "transformers_js_texts.mjs"
TEXTS = texts_of([7, 1, CONTEXT, 33])


def exported(checkpoint: Path, folder: Path, quantization: str = "f32") -> onnxruntime.InferenceSession:
    options = CompileOptions(target="onnx", quantization=quantization, activations=("float32",), context=CONTEXT)
    compile_any(str(checkpoint), folder, options)
    return onnxruntime.InferenceSession(str(folder / "onnx/model.onnx"), providers=["CPUExecutionProvider"])


def run_padded(
    session: onnxruntime.InferenceSession, *, left: bool = False, types: bool = False
) -> dict[str, FloatArray]:
    """All TEXTS in one batch. The second half of each text has type 1 if there are ``types``."""
    ids, mask, kinds = (np.zeros((len(TEXTS), CONTEXT), np.int64) for _ in range(3))
    for row, text in enumerate(TEXTS):
        where = slice(CONTEXT - len(text), CONTEXT) if left else slice(0, len(text))
        ids[row, where], mask[row, where], kinds[row, where] = text, 1, types_of(text)
    feeds = {"input_ids": ids, "attention_mask": mask} | ({"token_type_ids": kinds} if types else {})
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def types_of(text: list[int]) -> list[int]:
    return [int(index >= len(text) // 2) for index in range(len(text))]


# Gemma 3 sees in both directions, with windows; Qwen 3 not. ModernBERT rotates with windows. MPNet's scores have biases
# of distances, and its positions begin with 2; DeBERTa's have products with heads of distances. The rows of
# EmbeddingGemma 2 are projected.
@pytest.mark.parametrize(("family", "pooling"), [
    ("gemma3_text", "mean_tokens"), ("qwen3", "lasttoken"), ("modernbert", "cls_token"), ("mpnet", "max_tokens"),
    ("deberta-v2", "mean_tokens"), ("embedding_gemma2_text", "mean_tokens"),
    ("jina_embeddings_v3", "mean_tokens"),
])  # fmt: skip
@pytest.mark.parametrize("left", [False, True])
def test_vectors_of_padded_texts_are_those_of_each_text_alone(
    family: str, pooling: str, left: bool, tmp_path: Path
) -> None:
    pools: Mapping[str, Any] = {
        "mean_tokens": lambda rows: rows.mean(axis=0),
        "lasttoken": lambda rows: rows[-1],
        "cls_token": lambda rows: rows[0],
        "max_tokens": lambda rows: rows.max(axis=0),
    }
    model = make_encoder(family, pooling, tmp_path / "checkpoint")
    found = run_padded(exported(tmp_path / "checkpoint", tmp_path / "onnx"), left=left)
    for index, text in enumerate(TEXTS):
        expected = rows_of(model, text)
        where = slice(CONTEXT - len(text), CONTEXT) if left else slice(0, len(text))
        assert relative_error(found["last_hidden_state"][index, where], expected) < F32
        vector = pools[pooling](expected)
        assert relative_error(found["sentence_embedding"][index], vector / np.linalg.norm(vector)) < F32


# The convolution of Falcon-H1 has a bias, which makes other numbers of padding.
@pytest.mark.parametrize(("family", "base"), [("falcon_h1", "FalconH1Model"), ("qwen3_5_text", "Qwen3_5TextModel")])
def test_states_of_recurrent_layers_begin_after_the_padding(family: str, base: str, tmp_path: Path) -> None:
    import transformers

    make_family(family, tmp_path / "checkpoint")
    write_modules(tmp_path / "checkpoint", behind=())
    model = getattr(transformers, base).from_pretrained(tmp_path / "checkpoint").float().eval()
    found = run_padded(exported(tmp_path / "checkpoint", tmp_path / "onnx"), left=True)
    for index, text in enumerate(TEXTS):
        expected = rows_of(model, text)
        assert relative_error(found["last_hidden_state"][index, CONTEXT - len(text) :], expected) < F32
        assert relative_error(found["sentence_embedding"][index], expected[-1]) < F32


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
def test_scores_and_types_of_tokens_are_transformers_and_config_names_the_labels(head: str, tmp_path: Path) -> None:
    model = make_encoder("bert", head, tmp_path / "checkpoint", num_labels=3)
    logits = run_padded(exported(tmp_path / "checkpoint", tmp_path / "onnx"), types=True)["logits"]
    for index, text in enumerate(TEXTS):
        own = logits[index, : len(text)] if head == "ForTokenClassification" else logits[index]
        assert relative_error(own, logits_of(model, text, types_of(text))) < F32
    config = json.loads((tmp_path / "onnx/config.json").read_text())
    assert config["id2label"]["2"] == "LABEL_2"
    runner = open_runner("onnx", open_any(tmp_path / "onnx"), Limits(sequences=2, tokens=70))
    found = encode(runner, [Text(text, types_of(text)) for text in TEXTS])
    for text, scores in zip(TEXTS, found, strict=True):
        assert relative_error(scores, logits_of(model, text, types_of(text))) < F32
    runner.close()


def test_codes_and_dense_layers_are_those_of_our_own_bundles(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    checkpoint = tmp_path / "checkpoint"
    make_encoder("bert", "mean_tokens", checkpoint)
    write_modules(checkpoint, "mean_tokens", behind=("Dense",))
    (checkpoint / "2_Dense").mkdir()
    write_json(checkpoint / "2_Dense/config.json", in_features=72, out_features=20, bias=False)
    weight = np.random.default_rng(3).normal(size=(20, 72)).astype(np.float32) / 9
    save_file({"linear.weight": weight}, checkpoint / "2_Dense/model.safetensors")
    session = exported(checkpoint, tmp_path / "onnx", "q8f16")
    bundle = compile_plain(checkpoint, tmp_path / "bundle", "q8f16", CONTEXT)
    expected = encode(ReferenceRunner(bundle), [Text(text, types_of(text)) for text in TEXTS])
    # ONNX Runtime rounds the input of a product with codes to 8 bits.
    assert relative_error(run_padded(session, types=True)["sentence_embedding"], np.stack(expected)) < 0.05
    assert (tmp_path / "onnx/2_Dense/model.safetensors").is_file()
    assert (tmp_path / "onnx/modules.json").is_file()


def test_the_pipelines_of_transformers_js_return_the_same(node: str, tmp_path: Path) -> None:
    texts, models = ["near", "far and farther"], []
    for name, head in (("vectors", "mean_tokens"), ("classes", "ForSequenceClassification")):
        models.append(make_encoder("bert", head, tmp_path / name, num_labels=3))
        write_json(tmp_path / name / "tokenizer_config.json", pad_token="</s>")
        exported(tmp_path / name, tmp_path / f"{name}-onnx")
    folders = [tmp_path / "vectors-onnx", tmp_path / "classes-onnx"]
    done = subprocess.run([node, SCRIPT, *folders, *texts], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    vectors, classes = json.loads(done.stdout)
    tokenizer = Tokenizer.from_file(str(tmp_path / "vectors/tokenizer.json"))
    for text, vector, labels in zip(texts, vectors, classes, strict=True):
        ids = tokenizer.encode(text).ids
        mean = rows_of(models[0], ids).mean(axis=0)
        assert relative_error(np.array(vector, np.float32), mean / np.linalg.norm(mean)) < F32
        chances = np.exp(logits_of(models[1], ids))
        found = {each["label"]: each["score"] for each in labels}
        expected = dict(zip(("LABEL_0", "LABEL_1", "LABEL_2"), (chances / chances.sum()).tolist(), strict=True))
        assert found == pytest.approx(expected, rel=F32)


def test_what_onnx_folders_cannot_hold_is_refused(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path / "checkpoint")
    with pytest.raises(RequestError, match=r"--kv q8: .* keeps no keys and values"):
        compile_any(str(tmp_path / "checkpoint"), tmp_path / "onnx", CompileOptions(target="onnx", kv="q8"))
    with pytest.raises(UnsupportedModel, match="makes embeddings, but mlx bundles generate text"):
        compile_any(str(tmp_path / "checkpoint"), tmp_path / "mlx", CompileOptions(target="mlx"))
