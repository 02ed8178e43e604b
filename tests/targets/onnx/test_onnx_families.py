"""Every decoder family in ONNX Runtime against transformers. ONNX Runtime GenAI and Transformers.js continue a text
with the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from case_selection import names_in, usual_or_exhaustive
from decoder_families import FAMILIES, TOKENS, WITH_EXPERTS, make_family
from onnx_session import Session
from ragged import chunked_logits
from test_onnx_loaders import COUNT, answers_of_transformers_js
from tokenizers import Tokenizer
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, Limits, make_batch
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel
from nearfar.targets.onnx.rows_graph import read_graph

# Every layer has keys and values of its own.
LOADED = [name for name in FAMILIES if name not in ("gemma4_text", *WITH_EXPERTS)]
# They have every block: LayerNorms, without 1 and with biases; sub-layers side by side; soft caps; windows and two
# tables of rotations; interleaved pairs of a part of a head; multipliers; sinks; the square of ReLU and an ungated
# GELU; norms of whole queries and keys; scaled queries; YaRN; a gated GELU; a long rotation.
USUAL = (
    "cohere2", "gemma2", "gemma3_text", "glm4", "granite", "granite_swa", "nemotron", "olmo3", "phi", "ministral3",
    "llama_yarn", "phi3_long",
)  # fmt: skip
UNKNOWN_TO_TRANSFORMERS_JS = ("granite_swa", "nemotron")
TEXT = "Near and far, all the same."


@dataclass(frozen=True, slots=True)
class Case:
    folder: Path
    logits: npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Mapping[str, Case]:
    """The folder of each family of this session, with transformers' logits."""
    found = {}
    names = names_in(request)
    for name in (name for name in LOADED if name in names or name in USUAL):
        folder = tmp_path_factory.mktemp(name)
        logits = make_family(name, folder / "checkpoint")
        found[name] = Case(export(folder), logits)
    return found


@pytest.mark.parametrize("name", usual_or_exhaustive(LOADED, USUAL))
def test_logits_are_those_of_transformers(name: str, cases: Mapping[str, Case]) -> None:
    case = cases[name]
    runner = open_runner("onnx", open_any(case.folder), Limits(tokens=64, rows=64, sequences=2))
    assert relative_error(chunked_logits(runner, TOKENS, 41), case.logits) < 1e-5
    assert relative_error(chunked_logits(runner, TOKENS, 5), case.logits) < 1e-5


@pytest.mark.parametrize("name", usual_or_exhaustive(LOADED, USUAL))
def test_genai_continues_a_text_beyond_the_windows(name: str, cases: Mapping[str, Case]) -> None:
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(cases[name].folder))
    generator = onnxruntime_genai.Generator(model, onnxruntime_genai.GeneratorParams(model))
    generator.append_tokens(TOKENS[:20])
    tokens: list[int] = []
    while len(tokens) < 16:
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    assert tokens == Session(cases[name].folder).greedy(TOKENS[:20], 16)


def test_transformers_js_continues_a_text_with_every_family(node: str, cases: Mapping[str, Case]) -> None:
    known = {name: case for name, case in cases.items() if name not in UNKNOWN_TO_TRANSFORMERS_JS}
    answers = answers_of_transformers_js(node, [case.folder for case in known.values()], TEXT)
    prompt = list(Tokenizer.from_file(str(cases["llama_yarn"].folder / "tokenizer.json")).encode(TEXT).ids)
    for (name, case), answer in zip(known.items(), answers, strict=True):
        assert answer.get("prompt") == prompt, (name, answer)
        assert answer["tokens"] == Session(case.folder).greedy(prompt, COUNT), name


def test_gemma_4s_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """Its unscaled scores magnify differences in the order of sums, so the tolerance is that of the kernel targets."""
    expected = make_family("gemma4_text", tmp_path / "checkpoint")
    runner = open_runner("onnx", open_any(export(tmp_path)), Limits(tokens=64, rows=64, sequences=2))
    for chunk in (41, 5, 1):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), expected) < F32, chunk


def test_layers_share_keys_and_values_in_several_sequences(tmp_path: Path) -> None:
    expected = make_family("gemma4_text", tmp_path / "checkpoint")
    folder = export(tmp_path)
    names = [each for each in Session(folder).inputs if each.endswith(".key")]
    assert names == [f"past_key_values.{layer}.key" for layer in range(4)]
    runner = open_runner("onnx", open_any(folder), Limits(tokens=64, rows=64, sequences=2, pages=2))
    steps = (
        (Chunk(TOKENS[:13], 0, [1], [3, 12]), Chunk(TOKENS[:7], 0, [0])),
        (Chunk(TOKENS[13:40], 13, [1], [26]), Chunk(TOKENS[7:39], 7, [0], [0, 31], slot=1)),
        (Chunk(TOKENS[40:], 40, [1], [0]), Chunk(TOKENS[39:40], 39, [0], [0], slot=1)),
    )
    found = [runner.forward(make_batch(chunks, 41)).logits.copy() for chunks in steps]
    assert relative_error(np.concatenate(found), expected[[3, 12, 39, 7, 38, 40, 39]]) < F32


@pytest.mark.parametrize("device", ["webgpu", "cuda"])
def test_shared_keys_and_values_have_a_form_for_every_device(device: str, tmp_path: Path) -> None:
    make_family("gemma4_text", tmp_path / "checkpoint")
    graph = read_graph(export(tmp_path, device=device) / "onnx/model.onnx").graph
    attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    # The input for the keys of each of the six layers: the last two read those of earlier layers.
    assert [node.input[3] for node in attentions] == [f"past_key_values.{layer}.key" for layer in (0, 1, 2, 3, 2, 3)]


def test_genai_gets_no_configuration_for_layers_that_it_cannot_allocate(tmp_path: Path) -> None:
    import onnxruntime_genai

    make_family("gemma4_text", tmp_path / "checkpoint")
    folder = export(tmp_path)
    assert not (folder / "genai_config.json").exists()
    with pytest.raises(RuntimeError):
        onnxruntime_genai.Model(str(folder))


def test_8_bit_keys_and_values_of_gemma_4_are_refused_by_name(tmp_path: Path) -> None:
    make_family("gemma4_text", tmp_path / "checkpoint")
    with pytest.raises(RequestError, match=r"--kv q8: .* too coarse for gemma4_text.*leave it out, or use --target"):
        export(tmp_path, kv="q8")


@pytest.mark.parametrize(
    ("name", "found"), [("lfm2", "the model has causal_conv"), ("qwen3_moe", "the model has route")]
)
def test_states_of_sequences_and_experts_are_refused_by_name(name: str, found: str, tmp_path: Path) -> None:
    make_family(name, tmp_path / "checkpoint")
    options = CompileOptions(target="onnx", quantization="f32", context=41, activations=("float32",))
    with pytest.raises(UnsupportedModel, match=f"{found}.*use --target webgpu, cpu or cuda"):
        compile_any(str(tmp_path / "checkpoint"), tmp_path / "bundle", options)


def export(folder: Path, **changes: Any) -> Path:
    options = CompileOptions(target="onnx", quantization="f32", context=41, activations=("float32",), **changes)
    compile_any(str(folder / "checkpoint"), folder / "onnx", options)
    return folder / "onnx"
