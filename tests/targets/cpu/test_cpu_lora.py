"""LoRA adapters from PEFT's folders, one for each sequence of a batch, against transformers with the same changes in
its weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tiny_adapters import MLP, SELF_ATTENTION, Deltas, adapted_logits, make_adapter
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.formats.peft import read_adapter
from nearfar.compiler.ir.rotary_pairs import RotaryPairs
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner
from nearfar.targets.cpu.runner import CpuRunner

CompileTiny = Callable[..., Path]
# Token ids of three sequences, and the slot of each one's adapter.
PROMPTS = {-1: [5, 9, 2, 77, 31], 0: [400, 3, 3, 8, 250, 17], 1: [60, 61]}
LIMITS = Limits(tokens=16, sequences=3, rows=3, pages=6, adapters=2)
EMBEDDING = "base_model.model.model.embed_tokens.lora_embedding_A"


@pytest.fixture(scope="module")
def adapters(
    tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Path, Deltas]]:
    """One adapter for all projections, and one for two of them, with a smaller rank and the other kind of scale."""
    folder = tmp_path_factory.mktemp("adapters")
    checkpoint = tiny_checkpoints["qwen3"]
    every, some = folder / "every", folder / "some"
    return [
        (every, make_adapter(every, checkpoint, SELF_ATTENTION + MLP, rank=4, alpha=8, seed=1)),
        (some, make_adapter(some, checkpoint, ("v_proj", "up_proj"), rank=3, alpha=5, seed=2, use_rslora=True)),
    ]


@pytest.fixture(scope="module")
def bundle(compile_base: CompileTiny) -> Bundle:
    return open_bundle(compile_base("qwen3", "f32", target="cpu", lora_rank=4))


@pytest.mark.parametrize("make_runner", [CpuRunner, ReferenceRunner])
def test_every_sequence_of_a_batch_has_its_own_adapter(
    make_runner: Callable[..., Runner],
    bundle: Bundle,
    adapters: list[tuple[Path, Deltas]],
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    runner = make_runner(bundle, limits=LIMITS)
    for adapter, (folder, _) in enumerate(adapters):
        for name, values in read_adapter(folder, bundle.manifest).items():
            runner.write_state(name, adapter, values)
    expected = {
        adapter: adapted_logits(tiny_checkpoints["qwen3"], adapters[adapter][1] if adapter >= 0 else {}, prompt)[-1]
        for adapter, prompt in PROMPTS.items()
    }
    chunks = [
        Chunk(prompt, 0, [2 * slot, 2 * slot + 1], [len(prompt) - 1], adapter=adapter)
        for slot, (adapter, prompt) in enumerate(PROMPTS.items())
    ]
    together = runner.forward(make_batch(chunks, 16)).logits
    for row, adapter in zip(together, PROMPTS, strict=True):
        assert relative_error(row, expected[adapter]) < F32, adapter
    # Without an adapter in the batch, the steps for them are left out.
    alone = runner.forward(make_batch([chunks[0]], 16)).logits[0]
    assert relative_error(alone, expected[-1]) < F32
    runner.close()


@pytest.mark.parametrize("make_runner", [CpuRunner, ReferenceRunner])
def test_an_adapter_of_fused_tensors_changes_all_projections_that_read_them(
    make_runner: Callable[..., Runner], compile_base: CompileTiny, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    phi3 = open_bundle(compile_base("phi3", "f32", target="cpu", lora_rank=4))
    deltas = make_adapter(
        tmp_path / "adapter", tiny_checkpoints["phi3"], ("qkv_proj", "gate_up_proj", "o_proj"), rank=3, alpha=6, seed=3
    )
    assert any(module.endswith("qkv_proj") for module in deltas)
    runner = make_runner(phi3, limits=LIMITS)
    for name, values in read_adapter(tmp_path / "adapter", phi3.manifest).items():
        runner.write_state(name, 1, values)
    for adapter, expected in ((1, deltas), (-1, {})):
        logits = runner.forward(make_batch([Chunk(PROMPTS[0], 0, [0], [5], adapter=adapter)], 16)).logits[0]
        assert relative_error(logits, adapted_logits(tiny_checkpoints["phi3"], expected, PROMPTS[0])[-1]) < F32, adapter
    runner.close()


def test_rows_that_a_checkpoint_stores_as_pairs_are_read_in_the_order_of_the_model(
    bundle: Bundle, adapters: list[tuple[Path, Deltas]]
) -> None:
    assert bundle.manifest.lora is not None
    module, folder = "model.layers.1.self_attn.q_proj", adapters[0][0]
    (part,) = bundle.manifest.lora.modules[module]
    pairs = RotaryPairs(24, 16)
    paired = part.model_copy(update={"pairs": pairs})
    lora = bundle.manifest.lora.model_copy(update={"modules": {**bundle.manifest.lora.modules, module: [paired]}})
    plain = read_adapter(folder, bundle.manifest)
    found = read_adapter(folder, bundle.manifest.model_copy(update={"lora": lora}))
    order = pairs.stored_rows(0, part.stop - part.start)
    expected = plain[part.b].copy()
    expected[part.start : part.stop] = expected[part.start : part.stop][order]
    assert not np.array_equal(expected, plain[part.b])
    for name, values in plain.items():
        np.testing.assert_array_equal(found[name], expected if name == part.b else values)


def test_a_slot_can_hold_another_adapter(
    bundle: Bundle, adapters: list[tuple[Path, Deltas]], tiny_checkpoints: Mapping[str, Path]
) -> None:
    runner = CpuRunner(bundle, limits=LIMITS)
    for folder, deltas in adapters:
        for name, values in read_adapter(folder, bundle.manifest).items():
            runner.write_state(name, 1, values)
        logits = runner.forward(make_batch([Chunk(PROMPTS[0], 0, [0], [5], adapter=1)], 16)).logits[0]
        assert relative_error(logits, adapted_logits(tiny_checkpoints["qwen3"], deltas, PROMPTS[0])[-1]) < F32
    runner.close()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"peft_type": "IA3"}, UnsupportedModel, "peft_type is 'IA3'; supported: LORA"),
        ({"use_dora": True}, UnsupportedModel, "use_dora True is not supported"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedModel, "modules_to_save"),
        ({"r": 5}, RequestError, "has rank 5, but the bundle accepts ranks up to 4; compile it with --lora-rank 5"),
        ({"r": 2}, RequestError, r"has shape \[3, 72\], .* needs \[2, 72\]"),
        ({"r": 0}, CheckpointError, "r at least 1"),
        ({"lora_alpha": "8"}, CheckpointError, "must be numbers"),
    ],
)
def test_an_unsupported_adapter_is_refused(
    change: dict[str, object],
    error: type[NearfarError],
    says: str,
    bundle: Bundle,
    adapters: list[tuple[Path, Deltas]],
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(adapters[1][0], tmp_path / "changed")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(error, match=says):
        read_adapter(folder, bundle.manifest)


def test_a_file_that_is_not_an_adapter_of_the_model_is_refused(
    bundle: Bundle, adapters: list[tuple[Path, Deltas]], tmp_path: Path
) -> None:
    import safetensors.numpy

    folder = shutil.copytree(adapters[1][0], tmp_path / "changed")
    file = folder / "adapter_model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    first = next(name for name in tensors if "lora_A" in name)

    def refused(error: type[NearfarError], says: str, **changed: np.ndarray) -> None:
        safetensors.numpy.save_file(
            {**{name: tensor for name, tensor in tensors.items() if name not in changed}, **changed}, file
        )
        with pytest.raises(error, match=says):
            read_adapter(folder, bundle.manifest)

    for name in ("lm_head.lora", "base_model.model.lm_head.lora_A.weight", EMBEDDING):
        refused(UnsupportedModel, f"'{name}' is not a LoRA matrix of a layer's projection", **{name: tensors[first]})
    elsewhere = "base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"
    refused(
        RequestError,
        "adapts model.layers.9.mlp.up_proj; of .*, adapters can change down_proj, ",
        **{elsewhere: tensors[first]},
    )
    safetensors.numpy.save_file({name: tensor for name, tensor in tensors.items() if name != first}, file)
    with pytest.raises(CheckpointError, match="has lora_B but not the other matrix"):
        read_adapter(folder, bundle.manifest)
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_adapter(folder, bundle.manifest)


def test_bundles_without_adapters_and_ranks_out_of_range_are_refused(
    compile_tiny: CompileTiny, adapters: list[tuple[Path, Deltas]], tiny_bundle: Path
) -> None:
    with pytest.raises(RequestError, match="does not accept LoRA adapters; compile it with --lora-rank"):
        read_adapter(adapters[0][0], open_bundle(tiny_bundle).manifest)
    with pytest.raises(RequestError, match="--lora-rank 257: must be between 0 \\(no adapters\\) and 256"):
        compile_tiny("qwen3", "q4f16", lora_rank=257)
