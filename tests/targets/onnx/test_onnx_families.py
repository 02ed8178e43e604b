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
from decoder_families import FAMILIES, HYBRIDS, TOKENS, make_family
from draft_heads import DraftHeads
from onnx_cases import relative_rms
from onnx_session import Session
from plain_target import compile_plain
from ragged import chunked_logits
from test_onnx_loaders import COUNT, answers_of_transformers_js
from tiny_models import VOCAB_SIZE
from tokenizers import Tokenizer
from tolerances import F32, KV_Q8, ONNX_F32, ONNX_INT8_KERNEL, ONNX_INT8_MODEL, relative_error

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import QuantizationError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.onnx.rows_graph import read_graph

# Every layer has keys and values of its own, or a state.
LOADED = [name for name in (*FAMILIES, *HYBRIDS) if name not in ("gemma4_text", "gemma4_experts")]
# Heads of a size that GroupQueryAttention supports.
SIZES: dict[str, Mapping[str, int]] = {
    "falcon_h1": {"head_dim": 16},
    **{
        name: {"hidden_size": 96}
        for name in ("granitemoe", "granitemoehybrid", "granitemoehybrid_experts", "lfm2", "lfm2_moe", "olmoe")
    },
}
# They have every block: LayerNorms, without 1 and with biases; sub-layers side by side; soft caps; windows and two
# tables of rotations; interleaved pairs of a part of a head; multipliers; sinks; the square of ReLU and an ungated
# GELU; norms of whole queries and keys; scaled queries; YaRN; a gated GELU; a long rotation; the gated delta rule;
# Mamba-2 beside attention, with norms of groups; convolutions, and experts by sigmoids with a bias; experts with biases
# and limits; experts with weights that are not normalized.
USUAL = (
    "cohere2", "gemma2", "gemma3_text", "glm4", "granite", "granite_swa", "nemotron", "olmo3", "phi", "ministral3",
    "llama_yarn", "phi3_long", "qwen3_5_text", "falcon_h1", "lfm2_moe", "gpt_oss", "olmoe",
)  # fmt: skip
UNKNOWN_TO_TRANSFORMERS_JS = ("granite_swa", "mamba2", "nemotron")
# GenAI has no states of Mamba-2.
UNKNOWN_TO_GENAI = ("falcon_h1", "granitemoehybrid", "granitemoehybrid_experts", "mamba2")
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
        logits = make_family(name, folder / "checkpoint", **SIZES.get(name, {}))
        found[name] = Case(export(folder), logits)
    return found


@pytest.mark.parametrize("name", usual_or_exhaustive(LOADED, USUAL))
def test_logits_are_those_of_transformers(name: str, cases: Mapping[str, Case]) -> None:
    case = cases[name]
    runner = open_runner("onnx", open_any(case.folder), Limits(tokens=64, rows=64, sequences=2))
    # A state sums over all tokens.
    limit = F32 if name in HYBRIDS else 1e-5
    for chunk in (41, 5, 1):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), case.logits) < limit, chunk


@pytest.mark.parametrize("name", usual_or_exhaustive([name for name in LOADED if name not in UNKNOWN_TO_GENAI], USUAL))
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


def test_states_belong_to_slots_of_several_sequences(tmp_path: Path) -> None:
    """Rows that start, go on in place, and go on from the state of another slot, which is kept. The model's heads that
    draft tokens are left out.
    """
    expected = DraftHeads(tmp_path / "checkpoint").logits
    runner = open_runner("onnx", open_any(export(tmp_path)), Limits(tokens=64, rows=64, sequences=2, pages=2, states=3))
    steps = (
        # The slots are those of states that an earlier sequence has left.
        (Chunk(TOKENS[5:30], 0, [0], [0], state=(0, 0)), Chunk(TOKENS[9:20], 0, [1], [0], state=(2, 2))),
        (Chunk(TOKENS[:13], 0, [1], [12], state=(2, 2)), Chunk(TOKENS[:1], 0, [0], [0], state=(0, 0))),
        (Chunk(TOKENS[1:2], 1, [0], [0], state=(0, 0)), Chunk(TOKENS[13:14], 13, [1], [0], state=(2, 1))),
        # The second sequence refuses its token, and reads other ones.
        (Chunk(TOKENS[2:7], 2, [0], [4], state=(0, 0)), Chunk(TOKENS[13:20], 13, [1], [6], state=(2, 1))),
        (Chunk(TOKENS[20:21], 20, [1], [0], state=(1, 1)),),
    )
    found = [runner.forward(make_batch(chunks, 41)).logits.copy() for chunks in steps]
    assert relative_error(np.concatenate(found[1:]), expected[[12, 0, 1, 13, 6, 19, 20]]) < F32


def test_a_batch_without_slots_of_states_is_refused(tmp_path: Path) -> None:
    make_family("lfm3", tmp_path / "checkpoint")
    runner = open_runner("onnx", open_any(export(tmp_path)), Limits(tokens=64, rows=64, sequences=2, pages=2))
    with pytest.raises(RequestError, match=r"names no slots of states; set Chunk\.state"):
        runner.forward(make_batch([Chunk(TOKENS[:3], 0, [0])], 41))


@pytest.mark.parametrize(
    ("name", "device", "found"),
    [
        (
            "gemma4_experts",
            "cpu",
            "expert_linear with experts gated by gelu_tanh, and ONNX Runtime's MoE gates",
        ),
        ("qwen3_moe", "webgpu", "route, for which ONNX Runtime's MoE was not tried on this device"),
    ],
)
def test_experts_that_onnx_runtime_does_not_compute_are_refused_by_op(
    name: str, device: str, found: str, tmp_path: Path
) -> None:
    make_family(name, tmp_path / "checkpoint")
    with pytest.raises(UnsupportedModel, match=f"the model has {found}.*use --"):
        export(tmp_path, device=device)


def test_weights_of_experts_by_sigmoids_may_stay_as_they_are(tmp_path: Path) -> None:
    expected = make_family("lfm2_moe", tmp_path / "checkpoint", norm_topk_prob=False, **SIZES["lfm2_moe"])
    runner = open_runner("onnx", open_any(export(tmp_path)), Limits(tokens=64, rows=64, sequences=2))
    assert relative_error(chunked_logits(runner, TOKENS, 41), expected) < F32


def test_experts_are_codes_in_blocks_without_a_rest(tmp_path: Path) -> None:
    wide = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "head_dim": 32}
    make_family("qwen3_moe", tmp_path / "checkpoint", **wide)
    bundle = open_any(export(tmp_path, quantization="q4f16"))
    runner = open_runner("onnx", bundle, Limits(tokens=64, rows=64, sequences=2))
    assert {node.op_type for node in read_graph(bundle.path / "onnx/model.onnx").graph.node} >= {"QMoE", "MatMulNBits"}
    expected = codes_logits(tmp_path, "q4f16")
    for chunk in (41, 1):
        assert relative_rms(chunked_logits(runner, TOKENS, chunk), expected) < ONNX_INT8_MODEL, chunk
    make_family("qwen3_moe", tmp_path / "odd/checkpoint")
    with pytest.raises(QuantizationError, match=r"have 72 columns, and ONNX Runtime's QMoE needs blocks of 32 without"):
        export(tmp_path / "odd", quantization="q4f16")


@pytest.mark.parametrize("quantization", ["q4f16", "q8f16"])
def test_codes_of_recurrent_layers_equal_the_ops_in_float_products(quantization: str, tmp_path: Path) -> None:
    import onnx

    make_family("qwen3_5_text", tmp_path / "checkpoint")
    folder = export(tmp_path, quantization=quantization)
    model = read_graph(folder / "onnx/model.onnx")
    for attribute in (attribute for node in model.graph.node for attribute in node.attribute):
        if attribute.name == "accuracy_level":
            attribute.i = 1
    onnx.save(model, folder / "onnx/model.onnx")
    session = Session(folder)
    logits = np.concatenate([session.run([TOKENS[:9]]), *(session.run([[token]]) for token in TOKENS[9:])])
    assert relative_rms(logits, codes_logits(tmp_path, quantization)[8:]) < F32


@pytest.mark.exhaustive
@pytest.mark.parametrize("quantization", ["q4f16", "q8f16"])
def test_8_bit_activations_change_recurrent_layers_as_in_the_cpu_target(quantization: str, tmp_path: Path) -> None:
    """These weights magnify what the rounding of activations changes: by 3.6 % and 4.9 % of the logits, in both."""
    make_family("qwen3_5_text", tmp_path / "checkpoint", linear_key_head_dim=64, linear_value_head_dim=64)
    options = CompileOptions(target="cpu", quantization=quantization, context=41, activations=("int8",))
    limits = Limits(tokens=64, rows=64, sequences=1)
    cpu = open_runner("cpu", compile_any(str(tmp_path / "checkpoint"), tmp_path / "cpu", options), limits)
    expected = chunked_logits(cpu, TOKENS, 41)
    runner = open_runner("onnx", open_any(export(tmp_path, quantization=quantization)), limits)
    assert relative_rms(chunked_logits(runner, TOKENS, 5), expected) < ONNX_INT8_KERNEL
    assert 3e-2 < relative_rms(expected, codes_logits(tmp_path, quantization)) < 6e-2


def codes_logits(folder: Path, quantization: str) -> npt.NDArray[np.float32]:
    """The logits of `ir/ops/` with a checkpoint's quantized weights."""
    plain = compile_plain(folder / "checkpoint", folder / "plain", quantization, 41)
    reference = ReferenceRunner(plain, limits=Limits(sequences=2, pages=4), activation="float32")
    return chunked_logits(reference, TOKENS, 41)


@pytest.mark.parametrize("name", ["qwen3_5_text", "falcon_h1"])
def test_8_bit_keys_and_values_stand_beside_states(name: str, tmp_path: Path) -> None:
    expected = make_family(name, tmp_path / "checkpoint", **SIZES.get(name, {}))
    runner = open_runner("onnx", open_any(export(tmp_path, kv="q8")), Limits(tokens=64, rows=64, sequences=2))
    for chunk in (41, 1):
        assert F32 < relative_rms(chunked_logits(runner, TOKENS, chunk), expected) < KV_Q8, chunk


def test_a_model_without_attention_has_no_keys_and_values_to_quantize(tmp_path: Path) -> None:
    make_family("mamba2", tmp_path / "checkpoint")
    with pytest.raises(RequestError, match="--kv q8: mamba2 keeps no keys and values; leave the option out"):
        export(tmp_path, kv="q8")


@pytest.mark.parametrize("name", ["lfm3", "mamba2"])
def test_padding_is_never_read_into_a_state(name: str, tmp_path: Path) -> None:
    """Rows of equal length are a batch. With padding at either end, the call fails and names the reason."""
    make_family(name, tmp_path / "checkpoint")
    folder, texts = export(tmp_path), [TOKENS[:7], TOKENS[7:14]]
    together = Session(folder)
    found = [together.run(texts), together.run([[3], [4]])]
    for row, text in enumerate(texts):
        alone = Session(folder)
        for logits, expected in zip(found, (alone.run([text]), alone.run([[3 + row]])), strict=True):
            assert relative_rms(logits[row], expected[0]) < ONNX_F32
    for mask in ([1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]):
        for rows in (1, 2):
            with pytest.raises(Exception, match="rows_of_a_model_with_states_must_not_be_padded"):
                Session(folder).run(texts[:rows], [mask, [1] * 7][:rows])


def test_states_have_a_form_for_webgpu_up_to_the_keys_of_its_kernel(tmp_path: Path) -> None:
    make_family("mamba2", tmp_path / "checkpoint", state_size=256)
    graph = read_graph(export(tmp_path, device="webgpu") / "onnx/model.onnx").graph
    assert {node.op_type for node in graph.node} >= {"CausalConvWithState", "LinearAttention"}
    make_family("mamba2", tmp_path / "larger/checkpoint", state_size=264)
    with pytest.raises(UnsupportedModel, match=r"ssm_scan with keys of 264 .* at most 256 .* use --device cpu"):
        export(tmp_path / "larger", device="webgpu")
    assert Session(export(tmp_path / "larger")).run([TOKENS]).shape == (1, VOCAB_SIZE)


def export(folder: Path, **changes: Any) -> Path:
    options = {"target": "onnx", "quantization": "f32", "context": 41, "activations": ("float32",), **changes}
    compile_any(str(folder / "checkpoint"), folder / "onnx", CompileOptions(**options))
    return folder / "onnx"
