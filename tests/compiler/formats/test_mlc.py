"""Folders of mlc-llm, whose parameters TVM writes: the logits of transformers with the same rounded weights, and files
that we refuse.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import TOKENS, new_family, randomize
from tiny_models import LLAMA3_ROPE, PARTIAL_ROPE, SIZES, write_tokenizer
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.runtime.errors import CheckpointError, QuantizationError, UnsupportedModel

Arrays = dict[str, npt.NDArray[Any]]
SETTINGS: Mapping[str, Any] = {
    "Llama": {"head_dim": 24, "tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE},
    "Mistral": {"head_dim": 24, "tie_word_embeddings": False, "sliding_window": 11},
    "Phi3": {"tie_word_embeddings": False, "rope_parameters": PARTIAL_ROPE, "hidden_size": 144},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 24, "tie_word_embeddings": True},
}
# The keys that mlc-llm writes besides those of all its models.
RUNTIME = {
    "prefill_chunk_size": 128, "tensor_parallel_shards": 1, "max_batch_size": 80, "context_window_size": 512,
}  # fmt: skip
SIZE_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "rms_norm_eps", "vocab_size",
)  # fmt: skip
# For each family: the quantization, and the formats of the matrices that we read.
FOLDERS = {
    "Llama": ("q4f16_1", {"q4g32_f16"}),
    "Mistral": ("q0f16", set[str]()),
    "Phi3": ("q4f16_0", {"q4g32_f16"}),
    "Qwen2": ("q4f32_1", {"q4g32"}),
    "Qwen3": ("q4f16_2", {"q4g32_f16"}),
    "gemma2": ("q3f16_0", {"q3g40"}),
    "gemma3_text": ("q3f16_1", {"q3g40"}),
}


def quantize(weight: npt.NDArray[np.float32], name: str) -> tuple[Arrays, npt.NDArray[np.float32]]:
    """The tensors of a matrix in one of mlc-llm's formats, and the weights that they represent."""
    bits, group = (3, 40) if name.startswith("q3") else (4, 32)
    scale_dtype = np.float32 if "f32" in name else np.float16
    most = 2 ** (bits - 1) - 1
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % group)))
    groups = padded.reshape(len(weight), -1, group)
    scales = (np.abs(groups).max(axis=2) / most).astype(scale_dtype)
    codes = np.clip(np.rint(groups / scales[..., None].astype(np.float32) + most), 0, 2 * most).astype(np.uint32)
    # Codes beyond the last column are 0.
    codes.reshape(len(weight), -1)[:, weight.shape[1] :] = 0
    a_word = 32 // bits
    words = np.zeros((len(weight), padded.shape[1] // a_word), np.uint32)
    for place in range(a_word):
        words += codes.reshape(len(weight), -1, a_word)[..., place] << np.uint32(place * bits)
    if "f32" in name:
        # TVM stores float32 as bfloat16, to the nearest.
        raw = scales.view(np.uint32)
        scales = (((raw + 0x7FFF + (raw >> 16 & 1)) >> 16) << 16).view(np.float32)
    meant = (codes.astype(np.float32) - most) * scales[..., None].astype(np.float32)
    return {"q_weight": words, "q_scale": scales}, meant.reshape(len(weight), -1)[:, : weight.shape[1]]


def fused(state: Arrays, family: str) -> Iterator[tuple[str, list[str]]]:
    """mlc-llm's parameters, each with the parameters from which it is built."""
    used: set[str] = set()
    prefix = "language_model." if family == "gemma3_text" else ""
    qkv = "c_attn" if family.startswith("Qwen") else "qkv_proj"
    stacks = {"gate_proj": ("gate_up_proj", ["gate_proj", "up_proj"])}
    if family != "gemma3_text":
        stacks["q_proj"] = (qkv, ["q_proj", "k_proj", "v_proj"])
    for name in state:
        module, _, kind = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        if last in stacks:
            whole, parts = stacks[last]
            names = [f"{parent}.{part}.{kind}" for part in parts]
            used.update(names)
            yield f"{prefix}{parent}.{whole}.{kind}", names
        elif name not in used and last not in [part for _, parts in stacks.values() for part in parts]:
            yield prefix + (phi3_name(name) if family == "Phi3" else name), [name]


def phi3_name(name: str) -> str:
    for theirs, ours in (
        ("model.layers", "transformer.h"),
        ("self_attn.o_proj", "mixer.out_proj"),
        ("self_attn.qkv_proj", "mixer.qkv_proj"),
        ("input_layernorm", "ln"),
        ("model.norm", "transformer.norm"),
        ("model.embed_tokens", "transformer.embd"),
    ):
        name = name.replace(theirs, ours)
    return name


def model_config(family: str, config: Any) -> dict[str, Any]:
    """The section that mlc_llm gen_config writes for a transformers' configuration."""
    values = {key: getattr(config, key) for key in SIZE_KEYS} | RUNTIME
    theta = None if family == "gemma3_text" else config.rope_parameters["rope_theta"]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if family == "Llama":
        scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
        tied = {"tie_word_embeddings": config.tie_word_embeddings, "pipeline_parallel_stages": 1}
        return {
            **values, **tied, "rope_scaling": scaling, "position_embedding_base": theta, "head_dim": head_dim,
            "disaggregation": False,
        }  # fmt: skip
    if family == "Mistral":
        window = {"sliding_window_size": config.sliding_window, "attention_sink_size": 4, "context_window_size": -1}
        return {**values, **window, "position_embedding_base": theta, "head_dim": head_dim}
    if family == "Phi3":
        return {
            **values, "model_type": "phi3", "rope_scaling": None, "original_max_position_embeddings": 0,
            "max_position_embeddings": 512, "head_dim": head_dim, "position_embedding_base": theta,
            "partial_rotary_factor": 0.75, "tie_word_embeddings": False,
        }  # fmt: skip
    if family.startswith("Qwen"):
        shared = {"hidden_act": "silu", "rope_theta": theta, "tie_word_embeddings": True, "dtype": "float32"}
        own = {"attention_bias": False, "weight_block_size": None} if family == "Qwen3" else {}
        return {**values, **shared, **own, "head_dim": head_dim}
    values |= {
        "attention_bias": False, "head_dim": config.head_dim, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config.query_pre_attn_scalar,
    }  # fmt: skip
    if family == "gemma2":
        caps = {key: getattr(config, key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
        return {**values, **caps, "sliding_window": config.sliding_window, "position_embedding_base": theta}
    extra = {"rope_parameters": config.rope_parameters, "layer_types": config.layer_types, "torch_dtype": "float32"}
    inner = {
        **values, "sliding_window_size": config.sliding_window, "rope_scaling": 0, "position_embedding_base": 1_000_000,
        "context_window_size": 8192, "kwargs": {**extra, "max_position_embeddings": 512, "model_type": "gemma3_text"},
    }  # fmt: skip
    return {"text_config": inner, "vocab_size": 262_208, "is_text_model": True, **RUNTIME}


def make_folder(folder: Path, family: str) -> npt.NDArray[np.float32]:
    """Write a folder of mlc-llm. Returns the logits of TOKENS with the folder's weights."""
    import torch
    import transformers
    from tvm.contrib import tvmjs

    name = FOLDERS[family][0]
    torch.manual_seed(len(family))
    model = (
        new_family(family)
        if family.startswith("gemma")
        else getattr(transformers, f"{family}ForCausalLM")(
            getattr(transformers, f"{family}Config")(**{**SIZES, **SETTINGS[family]})
        ).float()
    )
    randomize(model)
    state: Arrays = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    parameters: Arrays = {}
    for theirs, names in fused(state, family):
        whole = np.concatenate([state[each] for each in names])
        skipped = name == "q4f16_2" and any(part in theirs for part in ("embed_tokens", "lm_head"))
        if whole.ndim == 1 or name.startswith("q0") or skipped:
            shift = 1 if family.startswith("gemma") and whole.ndim == 1 else 0
            stored = (whole + shift).astype(np.float32 if "f32" in name else np.float16)
            parameters[theirs] = stored
            if "f32" in name:
                stored = torch.from_numpy(stored).bfloat16().float().numpy()
            meant = stored.astype(np.float32) - shift
        else:
            packed, meant = quantize(whole, name)
            is_embedding = "embed_tokens" in theirs or ".embd" in theirs
            for kind, each in packed.items():
                turned = np.ascontiguousarray(each.T) if name.endswith("_0") and not is_embedding else each
                parameters[f"{theirs.removesuffix('.weight')}.{kind}"] = turned
        start = 0
        for part in names:
            state[part][:] = meant[start : start + len(state[part])]
            start += len(state[part])
    folder.mkdir(parents=True)
    tvmjs.dump_tensor_cache(parameters, str(folder), show_progress=False)
    chat = {
        "version": "0.1.0",
        "model_type": {"gemma3_text": "gemma3"}.get(family, family.lower()),
        "quantization": name,
        "model_config": model_config(family, model.config),
        "eos_token_id": 257,
        # mlc-llm's own default for any vocabulary.
        "conv_template": {"name": "chatml", "stop_token_ids": [2]},
    }
    (folder / "mlc-chat-config.json").write_text(json.dumps(chat))
    write_tokenizer(folder)
    values = {key: torch.from_numpy(value) for key, value in state.items()}
    model.load_state_dict(values, strict=not model.config.tie_word_embeddings)
    model.eval()
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("family", FOLDERS)
def test_logits_are_those_of_transformers_with_the_same_codes(family: str, tmp_path: Path) -> None:
    expected = make_folder(tmp_path / "mlc", family)
    checkpoint = load(str(tmp_path / "mlc"))
    assert set(checkpoint.stored_forms) == FOLDERS[family][1]
    reference = CheckpointReference(checkpoint, len(TOKENS))
    found = reference.logits(next(iter(reference.hidden([TOKENS]))))
    assert relative_error(found, expected) < 1e-4
    assert checkpoint.spec.eos_token_ids == (257,)
    assert checkpoint.tokenizer.chat_template is not None


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlc") / "llama"
    make_folder(folder, "Llama")
    return folder


Change = Callable[[Path, dict[str, Any]], None]


def in_config(**values: Any) -> Change:
    """Keys of mlc-chat-config.json."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        path = folder / "mlc-chat-config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def in_record(**values: Any) -> Change:
    """Keys of the first tensor's record."""
    return lambda _, index: index["records"][0]["records"][0].update(values)


def repeat_a_tensor(_: Path, index: dict[str, Any]) -> None:
    index["records"][0]["records"].append(index["records"][0]["records"][0])


def name_another_file(_: Path, index: dict[str, Any]) -> None:
    index["records"][0]["dataPath"] = "../params_shard_0.bin"


def shorten(folder: Path, _: dict[str, Any]) -> None:
    (folder / "params_shard_0.bin").write_bytes(b"")


def remove_scales(_: Path, index: dict[str, Any]) -> None:
    records = index["records"][0]["records"]
    records.remove(next(each for each in records if each["name"].endswith("o_proj.q_scale")))


def with_keys(**values: Any) -> Change:
    """Keys of the section "model_config"."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        path = folder / "mlc-chat-config.json"
        chat = json.loads(path.read_text())
        chat["model_config"] |= values
        path.write_text(json.dumps(chat))

    return change


@pytest.mark.parametrize("texts", ["<|im_end|>", ["\n\n", "<|im_end|>"]])
def test_a_token_that_stop_str_spells_ends_an_answer(texts: object, llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "mlc"))
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    # As in a finetune of Llama for ChatML.
    content["added_tokens"].append(
        {**content["added_tokens"][-1], "id": 258, "content": "<|im_end|>", "special": False}
    )
    path.write_text(json.dumps(content))
    in_config(conv_template={"name": "chatml", "stop_str": texts, "stop_token_ids": [2]})(folder, {})
    assert load(str(folder)).spec.eos_token_ids == (257, 258)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (in_config(quantization="q4f16_ft"), UnsupportedModel, "'quantization' is 'q4f16_ft'"),
        (in_config(quantization="q0f16"), CheckpointError, "'quantization' says that the weights are floats"),
        (in_config(quantization="q3f16_1"), CheckpointError, r"q_weight has dtype U32 .* expected U32 of"),
        (in_config(model_type="mixtral"), UnsupportedModel, "'model_type' is 'mixtral'"),
        (in_config(model_config=None), UnsupportedModel, "mlc-llm before 2024"),
        (with_keys(num_key_value_heads=2), CheckpointError, "'model_config' requires"),
        (with_keys(rope_scaling={"rope_type": "ntk"}), UnsupportedModel, "RoPE type 'ntk'"),
        (with_keys(alibi=True), UnsupportedModel, "unknown key 'alibi'"),
        (in_record(dtype="int8"), UnsupportedModel, "dtype 'int8' and format"),
        (in_record(nbytes=2**60), CheckpointError, "takes .* bytes"),
        (in_record(byteOffset=2**60), CheckpointError, "and the file has"),
        (in_record(shape=[-1]), CheckpointError, "no name, shape and offset"),
        (repeat_a_tensor, CheckpointError, "appears twice"),
        (name_another_file, CheckpointError, "expected params_shard_N.bin"),
        (shorten, CheckpointError, "and the file has 0"),
        (remove_scales, CheckpointError, "o_proj.q_scale is missing"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    change: Change, error: type[Exception], words: str, llama: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "mlc"))
    path = folder / "tensor-cache.json"
    index = json.loads(path.read_text())
    change(folder, index)
    path.write_text(json.dumps(index))
    with pytest.raises(error, match=words):
        load(str(folder))


def test_a_code_that_mlc_llm_never_writes_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "mlc"))
    shard = folder / "params_shard_0.bin"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    tensor = load(str(folder)).tensors["model.layers.0.self_attn.k_proj.weight"]
    with pytest.raises(QuantizationError, match="code above 14"):
        tensor.rows(0, 1)


def test_the_former_name_of_the_index_is_read(llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "mlc"))
    (folder / "tensor-cache.json").rename(folder / "ndarray-cache.json")
    assert load(str(folder)).tensors.keys() == load(str(llama)).tensors.keys()
    (folder / "ndarray-cache.json").unlink()
    with pytest.raises(CheckpointError, match=r"has neither tensor-cache.json nor ndarray-cache.json"):
        load(str(folder))
