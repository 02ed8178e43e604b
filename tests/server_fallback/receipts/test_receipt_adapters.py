"""Receipts of answers that a LoRA adapter gave, and of bundles whose activations have 8 bits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_adapters import MLP, make_adapter

from nearfar.compiler.bundle.signature import new_key
from nearfar.compiler.cli import main
from nearfar.compiler.formats.peft import CONFIG, adapter_id
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.fold import CompletionFold
from nearfar.server_fallback.schema.models import LoadAdapterRequest, LoadRequest
from nearfar.server_fallback.text.output import Chunks

BODY = {"prompt": [5, 9, 2, 77, 31], "max_tokens": 6, "temperature": 0, "receipt": True, "return_token_ids": True}


async def answered(bundle: Path, key: Path, adapter: Path | None = None) -> dict[str, Any]:
    """The model's answer, or that of the adapter under the name "red"."""
    registry = Registry(
        LocalOpener(LocalOptions(max_sequences=2, max_adapters=1, receipt_key=key, own_process=False)), None
    )
    await registry.load(LoadRequest(model=str(bundle), name="tiny"))
    if adapter is not None:
        await registry.load_adapter(LoadAdapterRequest(lora_name="red", lora_path=str(adapter)))
    name, fold = "tiny" if adapter is None else "red", CompletionFold()
    request = CompletionRequest.model_validate({"model": name, **BODY})
    await (await registry.executor(name)).answer(request, Call("test", received=BODY), Chunks(fold.add))
    await registry.close(0)
    answer: dict[str, Any] = fold.answer().model_dump(mode="json")
    return answer


def test_an_adapters_answer_is_computed_again_with_this_adapter_only(
    compile_base: Callable[..., Path],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = compile_base("qwen3", "f32", target="cpu", lora_rank=4)
    for seed, name in enumerate(("red", "blue")):
        make_adapter(tmp_path / name, tiny_checkpoints["qwen3"], MLP, rank=4, alpha=8, seed=seed + 3)
    new_key(tmp_path / "key.pem")
    answer = asyncio.run(answered(bundle, tmp_path / "key.pem", tmp_path / "red"))
    [signed] = answer["receipts"]
    assert signed["receipt"]["adapter"] == adapter_id(tmp_path / "red") != adapter_id(tmp_path / "blue")
    assert (signed["receipt"]["model"], signed["receipt"]["device"]["activation"]) == ("red", "float32")
    (tmp_path / "request.json").write_text(json.dumps(BODY))

    def verify(given: Mapping[str, Any], *options: str) -> tuple[int, dict[str, Any]]:
        (tmp_path / "answer.json").write_text(json.dumps(given))
        files = [str(tmp_path / "answer.json"), "--request", str(tmp_path / "request.json"), "--bundle", str(bundle)]
        capsys.readouterr()
        status = main(["verify", *files, "--json", *options])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)["receipts"][0]
        return status, report

    status, report = verify(answer, "--adapter", str(tmp_path / "blue"), "--adapter", str(tmp_path / "red"), "--exact")
    assert (status, report["faults"], report["choices"][0]["computed"]) == (0, [], 6)
    status, report = verify(answer)
    assert (status, any("pass --adapter" in note for note in report["notes"])) == (0, True)
    status, report = verify(answer, "--adapter", str(tmp_path / "blue"))
    assert (status, "the receipt is of adapter" in report["faults"][0]) == (2, True)
    # The same files with another scale are another adapter.
    config = json.loads((tmp_path / "red" / CONFIG).read_text())
    (tmp_path / "red" / CONFIG).write_text(json.dumps({**config, "lora_alpha": 9}))
    assert verify(answer, "--adapter", str(tmp_path / "red"))[0] == 2


def test_a_receipt_states_activations_of_8_bits(compile_base: Callable[..., Path], tmp_path: Path) -> None:
    bundle = compile_base("qwen3", "q4f16", target="cpu", context=320, activations=("int8", "float16"))
    new_key(tmp_path / "key.pem")
    [signed] = asyncio.run(answered(bundle, tmp_path / "key.pem"))["receipts"]
    assert signed["receipt"]["device"]["activation"] == "int8"
