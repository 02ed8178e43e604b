"""Folders of transformers open. Folders with missing, broken or foreign files are refused, with advice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.compiler.formats import load
from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

WORDS = ["<s>", "</s>", "<unk>", "hello", "world", "the", "sky", "is", "blue"]


def save_tokenizer(folder: Path, **options: Any) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **options
    )
    tokenizer.save_pretrained(folder)


def tiny_model(model_type: str, dtype: str = "float32") -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "head_dim": 8,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if model_type == "qwen2":
        del sizes["head_dim"]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).to(getattr(torch, dtype))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tiny_model("llama").save_pretrained(folder)
    save_tokenizer(folder, chat_template="{{ messages[0].content }}")
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    tiny_model("llama").save_pretrained(folder, max_shard_size="6KB")
    save_tokenizer(folder)
    return folder


@pytest.fixture
def broken(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def broken_shards(shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shards, tmp_path / "model"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_tensor_of_a_saved_model_reads_back(model_type: str, dtype: str, saved: Path, tmp_path: Path) -> None:
    model = tiny_model(model_type, dtype)
    model.save_pretrained(tmp_path)
    shutil.copy(saved / "tokenizer.json", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    spec = checkpoint.spec
    assert (spec.model_type, spec.vocab_size, spec.num_layers, spec.qk_norm, spec.qkv_bias) == (
        model_type,
        40,
        2,
        model_type == "qwen3",
        model_type == "qwen2",
    )
    state = model.state_dict()
    assert checkpoint.tensors.keys() == state.keys()
    for name, tensor in checkpoint.tensors.items():
        assert tensor.shape == tuple(state[name].shape)
        np.testing.assert_array_equal(tensor.rows(0, tensor.shape[0]), state[name].float().numpy())


def test_shards_hold_the_same_tensors_as_one_file(saved: Path, shards: Path) -> None:
    one, many = open_checkpoint(saved), open_checkpoint(shards)
    assert len(list(shards.glob("*.safetensors"))) > 2
    assert one.spec == many.spec
    assert one.tensors.keys() == many.tensors.keys()
    for name, tensor in one.tensors.items():
        np.testing.assert_array_equal(tensor.rows(0, tensor.shape[0]), many.tensors[name].rows(0, tensor.shape[0]))


def test_load_opens_a_local_folder(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(str(saved)).path == saved
    monkeypatch.chdir(saved.parent)
    assert load(saved.name).spec == load(str(saved)).spec
    monkeypatch.setenv("HOME", str(saved.parent))
    assert load(f"~/{saved.name}").path == saved


def test_the_tokenizer_files_of_transformers_5_are_read(saved: Path) -> None:
    assert (saved / "chat_template.jinja").is_file()
    assert open_checkpoint(saved).tokenizer == TokenizerFiles.at(
        saved / "tokenizer.json", "{{ messages[0].content }}", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def test_the_older_tokenizer_config_is_read(broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    old = {
        "add_bos_token": True,
        "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "special": True},
        "chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}],
        "eos_token": "</s>",
        "pad_token": None,
    }
    (broken / "tokenizer_config.json").write_text(json.dumps(old))
    # transformers reads it after tokenizer_config.json, so it takes precedence.
    (broken / "special_tokens_map.json").write_text(json.dumps({"bos_token": "the", "unk_token": {"content": "<unk>"}}))
    files = open_checkpoint(broken).tokenizer
    assert files.chat_template is not None
    assert "tools" in files.chat_template
    expected = TokenizerFiles(
        broken / "tokenizer.json", files.content, files.chat_template, "the", "</s>", None, "<unk>", True
    )
    assert files == expected
    (broken / "chat_template.jinja").write_text("newer")
    assert open_checkpoint(broken).tokenizer.chat_template == "newer"


BY_TOOLS = {"default": "  plain {{ messages[0].content }}\n", "tool_use": "\n  {{ tools | length }} tools\n"}


def tools_written(broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    named = [{"name": name, "template": text} for name, text in BY_TOOLS.items()]
    edit(broken / "tokenizer_config.json", lambda config: config.update(chat_template=named))


def templates_in_files(broken: Path) -> None:
    (broken / "chat_template.jinja").write_text(BY_TOOLS["default"])
    (broken / "additional_chat_templates").mkdir()
    (broken / "additional_chat_templates/tool_use.jinja").write_text(BY_TOOLS["tool_use"])
    (broken / "additional_chat_templates/rag.jinja").write_text("documents")
    edit(broken / "tokenizer_config.json", lambda config: config.update(chat_template="of the config"))


def a_file_and_a_config(broken: Path) -> None:
    edit(broken / "tokenizer_config.json", lambda config: config.update(chat_template="of the config"))
    (broken / "chat_template.json").write_text('{"chat_template": "of a processor"}')


def a_config_and_a_processor(broken: Path) -> None:
    a_file_and_a_config(broken)
    (broken / "chat_template.jinja").unlink()


@pytest.mark.parametrize("write", [tools_written, templates_in_files, a_file_and_a_config, a_config_and_a_processor])
def test_the_chat_template_is_the_one_that_transformers_uses(write: Callable[[Path], None], broken: Path) -> None:
    from transformers import AutoTokenizer

    from nearfar.compiler.runtime.text.tokenizer import Tokenizer

    write(broken)
    theirs, mine = AutoTokenizer.from_pretrained(broken), Tokenizer(open_checkpoint(broken).tokenizer)
    messages = [{"role": "user", "content": "hello"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for tools in (None, [tool], [tool, tool]):
        expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert mine.apply_chat_template(messages, tools=tools) == expected


def test_a_chat_template_that_only_processors_read_is_read_last(broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    (broken / "chat_template.json").write_text('{"chat_template": "of a processor"}')
    assert open_checkpoint(broken).tokenizer.chat_template == "of a processor"
    (broken / "chat_template.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"chat_template\.json: 'chat_template' must be a string, or a list"):
        open_checkpoint(broken)


def test_a_tokenizer_without_a_config_has_no_template(broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    (broken / "tokenizer_config.json").unlink()
    assert open_checkpoint(broken).tokenizer == TokenizerFiles.at(broken / "tokenizer.json")


def test_code_of_the_repository_is_not_used_and_a_note_says_so(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    for code, is_noted in (
        ({"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}, True),
        ({"AutoConfig": "configuration_own.OwnConfig"}, False),
    ):
        (broken / "config.json").write_text(json.dumps({**config, "auto_map": code}))
        notes = [note for note in open_checkpoint(broken).notes if "'auto_map'" in note]
        assert len(notes) == is_noted
        assert not notes or notes[0].endswith("what transformers computes for model_type 'llama' without it")


def test_ends_of_the_tokenizers_config_and_of_the_template_are_added(broken: Path) -> None:
    """A finetune whose config.json still has the token of its base model."""
    edit(broken / "config.json", lambda config: config.update(eos_token_id=7))
    edit(broken / "generation_config.json", lambda config: config.pop("eos_token_id"))
    assert open_checkpoint(broken).spec.eos_token_ids == (7,)
    assert load(str(broken)).spec.eos_token_ids == (7, WORDS.index("</s>"))
    (broken / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<s>{% endfor %}")
    assert load(str(broken)).spec.eos_token_ids == (7, WORDS.index("</s>"), WORDS.index("<s>"))


def test_ends_of_generation_config_are_added(broken: Path) -> None:
    edit(broken / "generation_config.json", lambda config: config.update(eos_token_id=[5, 1, 7]))
    assert open_checkpoint(broken).spec.eos_token_ids == (1, 5, 7)
    (broken / "generation_config.json").unlink()
    assert open_checkpoint(broken).spec.eos_token_ids == (1,)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(("content", "message"), [('{"a": 1,', "line 1 column 9"), ("[]", "contains a JSON array")])
def test_corrupt_json_is_refused_with_file_and_position(name: str, content: str, message: str, broken: Path) -> None:
    (broken / name).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{name}: {message}"):
        open_checkpoint(broken)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "config.json",
            {"model_type": "rwkv"},
            r"config\.json: model_type 'rwkv' is not supported; supported: apertus, cohere2",
        ),
        ("config.json", {"model_type": None}, "'model_type' is null"),
        ("config.json", {"hidden_size": "16"}, r"config\.json: 'hidden_size' is '16' \(string\)"),
        (
            "generation_config.json",
            {"eos_token_id": [40]},
            r"generation_config\.json: .*outside of the vocabulary of 40",
        ),
        ("generation_config.json", {"eos_token_id": "x"}, r"generation_config\.json: 'eos_token_id' is 'x'"),
        ("tokenizer_config.json", {"bos_token": 1}, r"'bos_token' is 1, expected a string or an object with 'content'"),
        ("tokenizer_config.json", {"bos_token": {"text": "x"}}, r"'bos_token' is \{'text': 'x'\}"),
        (
            "tokenizer_config.json",
            {"add_bos_token": "yes"},
            r"'add_bos_token' is 'yes' \(string\), expected true or false",
        ),
        ("tokenizer_config.json", {"chat_template": 5}, "'chat_template' must be a string, or a list"),
        (
            "tokenizer_config.json",
            {"chat_template": [{"name": "rag", "template": ""}]},
            "'chat_template' has rag, but no 'default'",
        ),
    ],
)
def test_wrong_values_are_refused(name: str, change: dict[str, Any], message: str, broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    edit(broken / name, lambda values: values.update(change))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(broken)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", r"has no config\.json; pass a folder that transformers' save_pretrained wrote"),
        ("tokenizer.json", r"has neither tokenizer\.json nor tokenizer\.model, nor vocab.* download the tokenizer too"),
        (
            "model.safetensors",
            r"has neither model\.safetensors nor model\.safetensors\.index\.json; download the weights too",
        ),
    ],
)
def test_a_missing_file_is_named_with_what_to_do(missing: str, message: str, broken: Path) -> None:
    (broken / missing).unlink()
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(broken)


def test_weights_of_another_layout_must_be_converted(broken: Path) -> None:
    (broken / "model.safetensors").rename(broken / "consolidated.00.pth")
    with pytest.raises(CheckpointError, match=r"only as \.pth files of another layout; .*save_pretrained\(folder\)"):
        open_checkpoint(broken)


def test_an_adapter_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="contains a LoRA adapter"):
        open_checkpoint(tmp_path)


def test_a_template_that_is_not_utf8_is_refused(broken: Path) -> None:
    (broken / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read"):
        open_checkpoint(broken)


def test_a_tokenizer_that_the_library_cannot_load_is_refused(broken: Path) -> None:
    edit(broken / "tokenizer.json", lambda values: values["model"].update(type="Nonsense"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be loaded as a tokenizer"):
        open_checkpoint(broken)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(broken: Path) -> None:
    edit(broken / "tokenizer.json", lambda values: values["model"]["vocab"].update(extra=40))
    with pytest.raises(CheckpointError, match="has token ids up to 40, but the model's vocabulary has 40"):
        open_checkpoint(broken)


def test_a_missing_shard_is_named(broken_shards: Path) -> None:
    victim = sorted(broken_shards.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(CheckpointError, match=rf"shard {victim.name} is missing"):
        open_checkpoint(broken_shards)


def test_a_truncated_shard_is_named(broken_shards: Path) -> None:
    victim = sorted(broken_shards.glob("*.safetensors"))[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{victim.name}: the file is truncated"):
        open_checkpoint(broken_shards)


def test_an_index_and_its_shards_must_agree(broken_shards: Path) -> None:
    index = broken_shards / "model.safetensors.index.json"
    original = index.read_text()
    first, second = sorted(path.name for path in broken_shards.glob("*.safetensors"))[:2]

    edit(index, lambda values: values["weight_map"].update({"model.ghost.weight": first}))
    with pytest.raises(
        CheckpointError, match=f"lists tensor 'model.ghost.weight' in {first}, which does not contain it"
    ):
        open_checkpoint(broken_shards)

    index.write_text(original)
    edit(index, lambda values: values["weight_map"].pop("model.norm.weight"))
    with pytest.raises(
        CheckpointError, match=r"tensor 'model\.norm\.weight' of .* is not in model\.safetensors\.index\.json"
    ):
        open_checkpoint(broken_shards)

    index.write_text(original)
    shutil.copy(broken_shards / first, broken_shards / second)
    with pytest.raises(CheckpointError, match=f"is in both {first} and {second}"):
        open_checkpoint(broken_shards)


@pytest.mark.parametrize(
    "weight_map", [None, {}, [], {"x": 1}, {"x": "../x.safetensors"}, {"x": "/x.safetensors"}, {"x": "x.bin"}]
)
def test_an_index_names_only_files_beside_it(weight_map: object, broken_shards: Path) -> None:
    edit(broken_shards / "model.safetensors.index.json", lambda values: values.update(weight_map=weight_map))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors\.index\.json: .*(must map tensor names|expected the name)"
    ):
        open_checkpoint(broken_shards)


def test_a_missing_key_in_a_known_model_is_a_checkpoint_error_and_an_unknown_one_unsupported(broken: Path) -> None:
    edit(broken / "config.json", lambda values: values.update(attention_sink_size=4))
    with pytest.raises(UnsupportedModel, match=r"config\.json: unknown key 'attention_sink_size' = 4"):
        open_checkpoint(broken)
    edit(broken / "config.json", lambda values: (values.pop("attention_sink_size"), values.pop("vocab_size")))
    with pytest.raises(CheckpointError, match=r"config\.json: 'vocab_size' is missing"):
        open_checkpoint(broken)
