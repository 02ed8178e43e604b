"""`nearfar create`: a model of a Modelfile is run by its name, with its template, its messages and its parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_bundle import few_kernels

from nearfar.compiler.cli import main

PROMPT = "what is 27 + 58?"
# The template of the demo model, in Go's form.
TEMPLATE = (
    'TEMPLATE """{{ if .System }}{{ .System }}<end>{{ end }}<user>{{ .Prompt }}<end><assistant>{{ .Response }}<end>"""'
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["run", *arguments, "--runner", "numpy", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_created_model_is_run_by_its_name(
    light_demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Modelfile"
    file.write_text(
        f"FROM {light_demo}\nSYSTEM be brief\nPARAMETER stop never\nPARAMETER stop ,\nPARAMETER num_predict 12\n"
        f"MESSAGE user what is 1 + 1?\nMESSAGE assistant 1 + 1 = 2\n{TEMPLATE}\n"
    )
    assert main(["create", "calc", "-f", str(file)]) == 0
    assert "created calc" in capsys.readouterr().out
    assert main(["show", "calc"]) == 0
    shown = capsys.readouterr().out
    assert "stop never" in shown
    assert "stop ," in shown
    found = run(capsys, "calc", PROMPT)
    assert found["text"] == "27 + 58 = 85"
    # The prompt that the base's own template writes for the same messages.
    from nearfar.compiler.bundle.folder import open_any
    from nearfar.compiler.runtime.text.tokenizer import Tokenizer

    system = {"role": "system", "content": "be brief"}
    said = [{"role": "user", "content": "what is 1 + 1?"}, {"role": "assistant", "content": "1 + 1 = 2"}]
    messages = [system, *said, {"role": "user", "content": PROMPT}]
    assert found["prompt_token_ids"] == Tokenizer(open_any(light_demo).tokenizer_files()).encode_chat(messages)
    # What a model has, another inherits, and options count more.
    file.write_text("FROM calc\nPARAMETER num_predict 3\n")
    assert main(["create", "short", "-f", str(file)]) == 0
    capsys.readouterr()
    short = run(capsys, "short", PROMPT)
    assert short["prompt_token_ids"] == found["prompt_token_ids"]
    assert short["token_ids"] == found["token_ids"][:3]
    assert run(capsys, "short", PROMPT, "--max-tokens", "2")["token_ids"] == found["token_ids"][:2]
    assert run(capsys, "short", PROMPT, "--stop", " = ", "--max-tokens", "12")["text"] == "27 + 58"
    assert run(capsys, "short", PROMPT, "--system", "no")["prompt_token_ids"] != found["prompt_token_ids"]


# PEFT still reads names that transformers will remove.
# server_fallback/engine and targets have adapters and their logits, compiler/formats PEFT's files, and the other test
# here the command.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")
def test_a_pulled_model_with_an_adapter_answers_as_peft(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    import transformers

    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    checkpoint = tiny_checkpoints["llama"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    settings = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(plain, settings).eval()
    model.save_pretrained(tmp_path / "adapter")
    (tmp_path / "Modelfile").write_text("FROM tiny\nADAPTER ./adapter\nPARAMETER num_predict 12\n")
    assert main(["pull", f"{checkpoint}:f32", "--name", "tiny", "--no-compile"]) == 0
    assert main(["create", "tuned", "-f", str(tmp_path / "Modelfile")]) == 0
    capsys.readouterr()
    with few_kernels():
        found = run(capsys, "tuned", PROMPT, "--raw")
    prompt = torch.tensor([found["prompt_token_ids"]])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :].tolist()
    with model.disable_adapter():
        without = plain.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :].tolist()
    assert found["token_ids"] == expected != without


def test_a_wrong_modelfile_creates_nothing(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Modelfile"
    file.write_text("FROM demo\nPARAMETER top_k 0.5\n")
    assert main(["create", "calc", "-f", str(file)]) == 2
    assert f"{file}: line 2: PARAMETER top_k" in " ".join(capsys.readouterr().err.split())
    assert main(["create", "bad name!", "-f", str(file)]) == 2
    assert not (store / "models").exists()
