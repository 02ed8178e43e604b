"""Tokenizer and TextStream, compared with transformers and with decoding all ids at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.compiler.runtime.errors import CheckpointError, RequestError
from nearfar.compiler.runtime.text.text_stream import TextStream
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "Hello world, the sky is blue.",
    "naïve café — 你好,世界 🌍🚀",
    "def f(x):\n    return x  # ok\n",
    "a  b   c",
    "",
    " lead and trail ",
]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception("Unknown role: " + message.role) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim +
       '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
BLOCKS = """{% for message in messages %}
    {% if message.role == 'assistant' %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
{{ bos_token }}{{ message.content }}{{ pad_token }}
    {% endif %}
{% endfor %}
{{ dict(a=1, b='<ü>') | tojson }}{{ messages[0] | tojson(sort_keys=true) }}
"""
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA_3, "blocks": BLOCKS}

CHATS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": "Hi <b>you</b> & 'me' 你好"}],
    "system": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Why?"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "\nb "},
        {"role": "user", "content": "  c\n"},
    ],
    "answered": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Wetter für <Ort>", "parameters": {"type": "object"}},
    }
]


def byte_level() -> Any:
    """A tokenizer like that of GPT-2, Llama 3 and Qwen: a character may consist of several tokens."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def byte_fallback() -> Any:
    """A tokenizer like that of Llama 2: words start with a bar, and unknown characters become tokens of one byte."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, normalizers

    pieces = [
        *SPECIALS[:2],
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdehiklnorstuwxy.,",
        "▁a",
        "▁▁",
        "he",
        "▁he",
        "is",
        "▁is",
    ]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "▁"), ("h", "e"), ("▁", "he"), ("i", "s"), ("▁", "is")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="</s>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


def word_pieces() -> Any:
    """A tokenizer like that of BERT: pieces inside a word start with ##, and the decoder removes spaces before
    punctuation.
    """
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    pieces = ["[UNK]", "hello", "##ing", "sing", ".", ",", "do", "n't", "'s", "it", "你", "##s", "?"]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


def metaspace() -> Any:
    """A tokenizer like that of T5 and newer SentencePiece conversions: the bar of the first word is dropped."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    pieces = [
        ("<unk>", 0.0),
        *((piece, -2.0) for piece in ["▁", "▁hello", "▁the", "▁s", "ky", "ing", "s", "h", "e", "l", "o", "你", "."]),
    ]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


BACKENDS: dict[str, Callable[[], Any]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "word_pieces": word_pieces,
    "metaspace": metaspace,
}


@pytest.fixture(scope="session")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    @cache
    def make(name: str) -> Tokenizer:
        path = tmp_path_factory.mktemp("tokenizers") / f"{name}.json"
        BACKENDS[name]().save(str(path))
        return Tokenizer(TokenizerFiles.at(path))

    return make


@pytest.fixture(scope="session")
def byte_level_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("byte_level") / "tokenizer.json"
    byte_level().save(str(path))
    return path


def reference(tokenizer_json: Path, **options: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_json), bos_token="<s>", eos_token="</s>", **options)


@pytest.mark.parametrize("text", TEXTS)
def test_encode_and_decode_are_those_of_transformers(text: str, byte_level_json: Path) -> None:
    ours, theirs = Tokenizer(TokenizerFiles.at(byte_level_json)), reference(byte_level_json)
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == text


def test_special_tokens_in_a_text_are_single_tokens_and_can_be_left_out_again(byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json))
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>", add_special_tokens=False, split_special_tokens=False)
    assert (ids[0], ids[-1]) == (SPECIALS.index("<|im_start|>"), SPECIALS.index("<|im_end|>"))
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_ids_beyond_the_tokenizer_have_no_text(byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json))
    assert tokenizer.decode([100_000, *tokenizer.encode("hi"), 100_001]) == "hi"


@pytest.mark.parametrize("json_adds_bos", [True, False])
@pytest.mark.parametrize("flag", [True, False, None])
def test_add_bos_token_overrides_tokenizer_json(json_adds_bos: bool, flag: bool | None, tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    backend = byte_level()
    if json_adds_bos:
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(TokenizerFiles.at(tmp_path / "tokenizer.json", bos_token="<s>", add_bos_token=flag))
    plain = tokenizer.encode("Hello world", add_special_tokens=False)
    assert tokenizer.decode(plain) == "Hello world"
    starts_with_bos = json_adds_bos if flag is None else flag
    assert tokenizer.encode("Hello world") == ([0, *plain] if starts_with_bos else plain)
    # A bos token that the text spells out belongs to the text.
    assert tokenizer.encode("<s>Hello world", split_special_tokens=False)[:1] == [0]
    assert tokenizer.encode("<s>Hello world").count(0) == starts_with_bos
    assert tokenizer.decode(tokenizer.encode("<s>Hello world")) == "<s>Hello world"


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_chat_templates_render_as_in_transformers(
    template: str, chat: str, add_generation_prompt: bool, tools: list[dict[str, Any]] | None, byte_level_json: Path
) -> None:
    source = TEMPLATES[template]
    ours = Tokenizer(TokenizerFiles.at(byte_level_json, source, bos_token="<s>", eos_token="</s>"))
    theirs = reference(byte_level_json, chat_template=source)
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "tools": tools}
    expected = theirs.apply_chat_template(CHATS[chat], tokenize=False, **options)
    assert ours.apply_chat_template(CHATS[chat], add_generation_prompt, tools) == expected
    expected_ids = theirs.apply_chat_template(CHATS[chat], tokenize=True, return_dict=True, **options)["input_ids"]
    assert ours.encode_chat(CHATS[chat], add_generation_prompt, tools) == expected_ids


def test_a_chat_has_one_bos_token_though_the_tokenizer_adds_one_to_texts(byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json, LLAMA_3, bos_token="<s>", add_bos_token=True))
    assert tokenizer.encode("x")[0] == 0
    assert tokenizer.encode_chat(CHATS["question"]).count(0) == 1


def test_a_model_without_a_template_cannot_chat(byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json))
    assert tokenizer.chat_template is None
    with pytest.raises(RequestError, match="no chat template, so it cannot chat; use --raw"):
        tokenizer.encode_chat(CHATS["question"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}\n{{ m.content }}", r"chat template: line 2: Unexpected end of template"),
        ("ok\n{{ messages | nonsense }}", r"chat template: line 2: No filter named 'nonsense'"),
        ("{% unknown %}", r"chat template: line 1: Encountered unknown tag 'unknown'"),
        ("{% generation %}", r"chat template: line 1: Unexpected end of template"),
    ],
)
def test_a_template_that_is_not_valid_jinja_is_refused_with_its_line(
    source: str, message: str, byte_level_json: Path
) -> None:
    template = Tokenizer(TokenizerFiles.at(byte_level_json, source)).chat_template
    assert template is not None
    with pytest.raises(CheckpointError, match=message):
        template.check()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n\n{{ messages[0].absent.deeper }}", r"chat template: line 3: UndefinedError: .*has no attribute 'absent'"),
        ("\n{{ 1 / 0 }}", r"chat template: line 2: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", r"chat template: line 1: TypeError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__[1] }}", "(SecurityError|UndefinedError)"),
        ("{% set ns = namespace(_x=1) %}", "SecurityError: a namespace cannot hold '_x'"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "SecurityError: a namespace cannot hold '__class__'"),
        ("{{ dict.__init__.__globals__ }}", "(SecurityError|UndefinedError)"),
        ("{% for i in range(1000000) %}x{% endfor %}", "OverflowError"),
        ("{% for i in range(200) %}{{ 'long text ' * 10000 }}{% endfor %}", "writes more than 16,777,216 characters"),
    ],
)
def test_a_template_that_fails_or_leaves_its_sandbox_is_a_checkpoint_error(
    source: str, message: str, byte_level_json: Path
) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json, source))
    with pytest.raises(CheckpointError, match=message):
        tokenizer.apply_chat_template(CHATS["question"])


def test_messages_that_a_template_refuses_are_a_request_error(byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json, LLAMA_3, bos_token="<s>"))
    with pytest.raises(RequestError, match="the chat template refuses these messages: Unknown role: robot"):
        tokenizer.apply_chat_template([*CHATS["question"], {"role": "robot", "content": ""}])


@pytest.mark.parametrize(
    "message", ["hi", {"content": "hi"}, {"role": 1, "content": "hi"}, {"role": "user", "content": b"hi"}]
)
def test_messages_must_be_plain_json_with_a_role(message: Any, byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json, CHATML))
    with pytest.raises(
        RequestError, match=r"messages\[0\] must be an object with a string 'role'|must be plain JSON values"
    ):
        tokenizer.apply_chat_template([message])


def test_a_tokenizer_file_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be loaded"):
        Tokenizer(TokenizerFiles.at(tmp_path / "tokenizer.json"))


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    stream = TextStream(tokenizer, skip_special_tokens)
    pieces = [stream.feed(token_id) for token_id in ids]
    return [*pieces, stream.finish()]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=250)
@given(ids=st.lists(st.integers(0, 345), max_size=24), skip=st.booleans())
def test_any_ids_stream_to_the_text_of_decoding_all_of_them(
    backend: str, ids: list[int], skip: bool, wrapped: Callable[[str], Tokenizer]
) -> None:
    tokenizer = wrapped(backend)
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("backend", ["word_pieces", "metaspace"])
@settings(max_examples=250)
@given(ids=st.lists(st.integers(0, 18), max_size=24), skip=st.booleans())
def test_ids_of_small_vocabularies_stream_to_the_text_of_decoding_all_of_them(
    backend: str, ids: list[int], skip: bool, wrapped: Callable[[str], Tokenizer]
) -> None:
    tokenizer = wrapped(backend)
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("backend", ["byte_level", "byte_fallback"])
@settings(max_examples=150)
@given(text=st.text(max_size=12))
def test_any_text_streams_completely_and_without_broken_characters(
    backend: str, text: str, wrapped: Callable[[str], Tokenizer]
) -> None:
    tokenizer = wrapped(backend)
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_plain_words_are_emitted_token_by_token(wrapped: Callable[[str], Tokenizer]) -> None:
    tokenizer = wrapped("byte_level")
    ids = tokenizer.encode("Hello world")
    assert all(streamed(tokenizer, ids)[: len(ids)])
    spaced = wrapped("byte_fallback")
    assert streamed(spaced, spaced.encode("he is")) == ["he", " is", ""]


def test_a_character_of_several_tokens_waits_for_its_last_one(wrapped: Callable[[str], Tokenizer]) -> None:
    tokenizer = wrapped("byte_level")
    ids = tokenizer.encode("ỳ!")
    assert len(ids) == 4
    assert streamed(tokenizer, ids) == ["", "", "ỳ", "!", ""]
    assert streamed(tokenizer, ids[:2]) == ["", "", "\ufffd"]


def test_bytes_of_a_fallback_run_wait_for_its_end_because_one_bad_byte_invalidates_all(
    wrapped: Callable[[str], Tokenizer],
) -> None:
    tokenizer = wrapped("byte_fallback")
    run = tokenizer.encode("é")[1:]
    assert len(run) == 2
    letter = tokenizer.encode("x")[-1]
    assert streamed(tokenizer, [*run, letter]) == ["", "", "éx", ""]
    bad = run[0] - 0xC3 + 0xFF
    assert "".join(streamed(tokenizer, [*run, bad, letter])) == "\ufffd\ufffd\ufffdx"
    # A token without text, such as a special one, does not end the run.
    assert "".join(streamed(tokenizer, [*run, 0, bad])) == tokenizer.decode([*run, bad]) == "\ufffd\ufffd\ufffd"


def test_the_date_of_a_template_is_today(byte_level_json: Path) -> None:
    tokenizer = Tokenizer(TokenizerFiles.at(byte_level_json, "{{ strftime_now('%Y-%m-%d') }}"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", tokenizer.apply_chat_template([]))
