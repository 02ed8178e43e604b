"""The demo encoder in the repository: transformers computes the same vectors, rounded weights keep them, and the
browser's index finds as many passages with its bundle as the README says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from plain_target import compile_plain
from server_thread import serving

from demo_encoder.recall import MODES, measure
from demo_encoder.saved_encoder import embed_texts, read_checkpoint
from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.demo import DEMOS, ENCODER_CHECKPOINT
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import Text, encode, finished
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

CONTEXT = 256
# The longest has as many tokens as the context.
TEXTS = ("how are passages found?", "a", "Search in documents > Passages\nBM25 and vectors", "one " * 254)
# The least cosine of a vector of rounded weights and the exact one. With 4 bits, a single letter is the worst.
LEAST_COSINE = {"f32": 0.99999, "q8f16": 0.99, "q4f16": 0.85}
# The documents change with nearly every commit, so the README's figures may differ by this many points.
POINTS = 8.0


class Embedder:
    """Embeds with a bundle, as `nearfar serve` does with ``truncate``."""

    def __init__(self, bundle: Bundle) -> None:
        self._tokenizer = Tokenizer(bundle.tokenizer_files())
        self._spec = bundle.manifest.embedding
        self._runner = ReferenceRunner(bundle, limits=Limits(sequences=16), activation="float32")

    def __call__(self, texts: Sequence[str]) -> list[FloatArray]:
        assert self._spec is not None
        ids = [self._tokenizer.encode(text) for text in texts]
        cut = [Text(one if len(one) <= CONTEXT else [*one[: CONTEXT - 1], one[-1]]) for one in ids]
        parts = [encode(self._runner, cut[start : start + 16]) for start in range(0, len(cut), 16)]
        return [finished(vector, self._spec, None) for part in parts for vector in part]


def _bundle(folder: Path, quantization: str) -> Bundle:
    return compile_plain(ENCODER_CHECKPOINT, folder / quantization, quantization, CONTEXT)


def _by_transformers(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """The first token, the dense layer and the norm, one text at a time."""
    import transformers
    from safetensors.torch import load_file

    model = transformers.AutoModel.from_pretrained(ENCODER_CHECKPOINT, dtype=torch.float32, add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ENCODER_CHECKPOINT)
    dense = {
        name: tensor.float() for name, tensor in load_file(ENCODER_CHECKPOINT / "2_Dense/model.safetensors").items()
    }
    rows = []
    with torch.no_grad():
        for text in texts:
            first = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[:, 0]
            rows.append(torch.nn.functional.normalize(first @ dense["linear.weight"].T + dense["linear.bias"], dim=-1))
    result: npt.NDArray[np.float32] = torch.cat(rows).numpy()
    return result


def test_transformers_and_the_recipe_compute_the_same_vectors() -> None:
    assert DEMOS["demo-encoder"] == ENCODER_CHECKPOINT
    wanted = _by_transformers(TEXTS)
    np.testing.assert_allclose(embed_texts(*read_checkpoint(ENCODER_CHECKPOINT), TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize("quantization", LEAST_COSINE)
def test_each_format_of_weights_keeps_the_vectors(quantization: str, tmp_path: Path) -> None:
    vectors = Embedder(_bundle(tmp_path, quantization))(TEXTS)
    for vector, exact in zip(vectors, _by_transformers(TEXTS), strict=True):
        assert vector @ exact >= LEAST_COSINE[quantization]


@pytest.fixture
def embedding_server(tmp_path: Path) -> Iterator[str]:
    """An address that embeds with the bundle that `nearfar demo` compiles, in 8 bits."""
    embed = Embedder(_bundle(tmp_path, "q8f16"))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            vectors = embed(request["input"])
            body = json.dumps({"data": [{"embedding": vector.tolist()} for vector in vectors]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.exhaustive
def test_the_readme_states_the_recall_of_the_bundle(embedding_server: str) -> None:
    readme = Path(__file__).with_name("README.md").read_text()
    row = re.search(r"\| all questions +\|(.*)\|", readme)
    assert row is not None
    stated = dict(zip(MODES, (float(cell) for cell in row[1].split("|")), strict=True))
    recall = measure(embedding_server, "nearfar-demo-encoder")
    assert len(recall.outdated) <= 8, [question.text for question in recall.outdated]
    assert {mode: recall.share(mode) for mode in MODES} == pytest.approx(stated, abs=POINTS)
    assert recall.share("vectors") >= recall.share("words")
    assert recall.share("hybrid") > recall.share("words")
