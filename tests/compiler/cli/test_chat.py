"""The conversation of `nearfar run`: on a pseudo-terminal, and turn by turn in this process."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from terminal import on_a_terminal

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import answer as answer_module
from nearfar.compiler.cli.answer import Answer, Answerer, AnswerWriter
from nearfar.compiler.cli.chat_commands import Chat, completions, run_command
from nearfar.compiler.cli.conversation import Conversation
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.batch import Batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.compiler.runtime.text.stop_strings import StopAutomaton
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.compiler.store.model import Demo, StoredModel
from nearfar.compiler.store.parameters import Parameters

NEARFAR = [sys.executable, "-m", "nearfar.compiler.cli"]
# A conversation whose answers last until Ctrl-C, after some reasoning.
ENDLESS = """
import time
from nearfar.compiler.cli.answer import Answer
from nearfar.compiler.cli.chat import converse
from nearfar.compiler.runtime.generate import Timings
from nearfar.compiler.runtime.text.reasoning import Parts

class Endless:
    model, system, context, cached_tokens = "endless", None, 100, 3
    def send(self, text, write, cancelled):
        write(Parts("hm\\x1b[2J", ""))
        write(Parts("", "once \\x1b[2Jupon "))
        while not cancelled():
            time.sleep(0.01)
        return Answer("once upon ", [1, 2], "cancelled", Timings(3, 2)), 0

converse(Endless(), "on nothing")
"""
# Shows what was read, so that only the reading of lines is tested.
ECHO = """
from nearfar.compiler.cli.line_reader import LineReader
from nearfar.compiler.cli.chat_commands import completions

reader = LineReader(completions)
while True:
    try:
        print("read", repr(reader.read()))
    except EOFError:
        break
"""


class CountingRunner(ReferenceRunner):
    """Counts the tokens that are computed."""

    computed = 0

    def forward(self, batch: Batch) -> Output:
        self.computed += len(batch.token_ids)
        return super().forward(batch)


@pytest.fixture(scope="module")
def runner(light_demo: Path) -> CountingRunner:
    return CountingRunner(open_bundle(light_demo), limits=Limits())


@pytest.fixture
def answerer(runner: CountingRunner, light_demo: Path) -> Answerer:
    tokenizer = Tokenizer(open_bundle(light_demo).tokenizer_files())
    return Answerer(runner, tokenizer, Sampler(), StopAutomaton([]))


@pytest.fixture
def chat(answerer: Answerer) -> Chat:
    return Chat(Conversation(answerer, "demo"), Console(stderr=True, soft_wrap=True, highlight=False))


def send(conversation: Conversation, text: str) -> Answer:
    answer, _ = conversation.send(text, lambda _: None, lambda: False)
    return answer


def said(chat: Chat, capsys: pytest.CaptureFixture[str], *lines: str) -> str:
    """What commands print."""
    capsys.readouterr()
    for line in lines:
        run_command(chat, line)
    return capsys.readouterr().err


def test_a_conversation_on_a_terminal(light_demo: Path, tmp_path: Path) -> None:
    with on_a_terminal([*NEARFAR, "run", str(light_demo), "--runner", "numpy"], tmp_path) as (terminal, process):
        terminal.expect("› ")
        terminal.send("what is 27 + 59\x7f8?\r")
        terminal.expect("27 \\+ 58 = 85\n")
        terminal.expect(r"10 tokens · first after \d+ ms · [\d.]+ tokens/s · context 23 of 512\n")
        terminal.send("/nothing\r")
        terminal.expect(r"unknown command /nothing \(/help shows the commands\)\n")
        terminal.expect("› ")
        terminal.interrupt("Ctrl-D ends the conversation\n")
        terminal.expect("› ")
        terminal.send("/save chat.json\r")
        terminal.expect("saved 2 messages to chat.json\n")
        terminal.expect("› ")
        terminal.send("\x04")
        terminal.read_to_the_end()
        assert process.wait() == 0
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert saved["messages"][1] == {"role": "assistant", "content": "27 + 58 = 85"}


def test_ctrl_c_stops_an_answer_but_not_the_conversation(tmp_path: Path) -> None:
    with on_a_terminal([sys.executable, "-c", ENDLESS], tmp_path) as (terminal, process):
        for _ in range(2):
            terminal.expect("› ")
            terminal.send("tell a story\r")
            # Escape sequences of a model do not reach the terminal.
            terminal.expect("thinking\nhm\ufffd\\[2J\n\nonce \ufffd\\[2Jupon ")
            terminal.send("\x03")
            terminal.expect("2 tokens, stopped · .*context 3 of 100\n")
        terminal.send("/bye\r")
        terminal.read_to_the_end()
        assert process.wait() == 0


def test_lines_are_read_with_quotes_pastes_completions_and_a_history(tmp_path: Path) -> None:
    with on_a_terminal([sys.executable, "-c", ECHO], tmp_path) as (terminal, process):
        for typed, read in (
            ('"""one\rtwo"""\r', "one\\ntwo"),
            ("\x1b[200~three\nfour\x1b[201~!\r", "three\\nfour!"),
            ('/system """be\rbrief"""\r', "/system be\\nbrief"),
            ("five\x1b\rsix\r", "five\\nsix"),
            # From the history.
            ("\x1b[A\r", "five\\nsix"),
        ):
            terminal.expect("› ")
            terminal.send(typed)
            terminal.expect(re.escape(f"read '{read}'\n"))
        terminal.expect("› ")
        terminal.send("/he\t")
        terminal.expect(r"commands\)(?:› )?/help")
        terminal.send("\r")
        terminal.expect("read '/help'\n")
        terminal.expect("› ")
        terminal.send("\x04")
        terminal.read_to_the_end()
        assert process.wait() == 0
    history = tmp_path / "cache/history"
    assert "+three\n+four!\n" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_turn_computes_only_tokens_that_the_runner_has_not_cached(answerer: Answerer, runner: CountingRunner) -> None:
    conversation = Conversation(answerer, "demo")
    send(conversation, "what is 27 + 58?")
    cached, before = conversation.cached_tokens, runner.computed
    second = send(conversation, "sort pear apple fig")
    # The first turn is not computed again, except for the last token of its answer.
    assert runner.computed - before <= conversation.cached_tokens - cached + 1
    fresh = Conversation(answerer, "demo")
    fresh._turns = conversation._turns[:2]
    fresh_answer = send(fresh, "sort pear apple fig")
    assert fresh_answer.token_ids == second.token_ids, "cached keys and values change nothing"


def test_states_that_cannot_go_back_are_computed_again(
    answerer: Answerer, runner: CountingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(answerer, "demo")
    send(conversation, "what is 27 + 58?")
    conversation.clear()
    monkeypatch.setattr(type(runner.manifest), "keeps_states", True)
    before = runner.computed
    answer = send(conversation, "what is 27 + 59?")
    assert runner.computed - before == answer.timings.prompt_tokens + len(answer.token_ids)


def test_a_stopped_answer_stays_in_the_conversation(answerer: Answerer) -> None:
    pieces: list[Any] = []
    conversation = Conversation(answerer, "demo")
    answer, _ = conversation.send("what is 27 + 58?", pieces.append, lambda: len(pieces) >= 2)
    assert answer.finish_reason == "cancelled"
    assert len(answer.token_ids) == 2
    assert conversation.messages == [
        {"role": "user", "content": "what is 27 + 58?"},
        {"role": "assistant", "content": "".join(each.content for each in pieces)},
    ]
    assert send(conversation, "what is 27 + 58?").finish_reason == "stop"


def test_a_full_context_leaves_out_the_oldest_turns_and_keeps_the_system_prompt(answerer: Answerer) -> None:
    conversation = Conversation(answerer, "demo", system="be brief", parameters=Parameters(num_predict=4))
    # Only the newest turns fit.
    turns = [{"role": role, "content": "pear " * 20} for _ in range(20) for role in ("user", "assistant")]
    conversation.load(turns, "", Path())
    answer, dropped = conversation.send("what is 27 + 58?", lambda _: None, lambda: False)
    assert dropped > 0
    assert dropped % 2 == 0
    assert len(conversation.messages) == 42 - dropped
    assert conversation.cached_tokens + 1 <= conversation.context
    messages = [{"role": "system", "content": "be brief"}, *conversation.messages[:-1]]
    assert conversation._cached == [*answerer.tokenizer.encode_chat(messages), *answer.token_ids[:-1]]


def test_messages_of_a_created_model_always_precede_the_conversation(answerer: Answerer) -> None:
    examples = [{"role": "user", "content": "what is 1 + 1?"}, {"role": "assistant", "content": "1 + 1 = 2"}]
    conversation = Conversation(answerer, "demo", system="be brief", messages=examples)
    for _ in range(2):
        send(conversation, "what is 27 + 58?")
        expected = [
            {"role": "system", "content": "be brief"},
            *examples,
            {"role": "user", "content": "what is 27 + 58?"},
        ]
        prompt = answerer.tokenizer.encode_chat(expected)
        assert conversation._cached[: len(prompt)] == prompt
        conversation.clear()
        assert conversation.messages == []


def test_parameters_are_set_and_shown(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = chat.conversation
    assert "no parameters" in said(chat, capsys, "/show parameters")
    assert "temperature is 0.5" in said(chat, capsys, "/set parameter temperature 0.5")
    assert conversation._answerer.sampler.temperature == 0.5
    assert said(chat, capsys, '/set parameter stop " = " never') == "stop is  = , never\n"
    assert send(conversation, "what is 27 + 58?").text == "27 + 58"
    run_command(chat, "/set parameter num_predict 2")
    assert len(send(conversation, "hello").token_ids) <= 2
    shown = said(chat, capsys, "/show parameters")
    assert "num_predict" in shown
    assert "never" in shown
    before = conversation.parameters
    for wrong, message in (
        ("parameter colour 3", "colour is not a parameter here"),
        ("parameter temperature hot", "temperature: input should be a valid number"),
        ("parameter temperature 1 2", "temperature has 2 values"),
        ("parameter temperature", "temperature needs a value"),
        ("parameter num_ctx 100000", "the bundle's context is 512 tokens"),
        ('parameter stop "a', "close the quotes"),
        ("colour", "unknown setting 'colour'"),
        ("", "/set parameter | system"),
        ("think", "has no switch for reasoning"),
    ):
        assert message in " ".join(said(chat, capsys, f"/set {wrong}").split()), wrong
    assert conversation.parameters == before


def test_a_penalty_changes_what_is_sampled_as_on_the_server(chat: Chat) -> None:
    from nearfar.compiler.ir.sampling import IN_PROMPT, Settings, adjust_logits, choose_token, token_counts

    conversation = chat.conversation
    plain = send(conversation, "sort pear apple fig").token_ids
    conversation.clear()
    run_command(chat, "/set parameter repeat_penalty 6")
    run_command(chat, "/set parameter num_predict 6")
    found = send(conversation, "sort pear apple fig").token_ids
    assert found != plain[:6]
    # The definition, on logits of the same runner.
    runner, tokenizer = conversation._answerer.runner, conversation._answerer.tokenizer
    prompt = tokenizer.encode_chat([{"role": "user", "content": "sort pear apple fig"}])
    from nearfar.compiler.runtime.generate import score

    expected: list[int] = []
    for _ in range(6):
        logits = list(score(runner, [*prompt, *expected], 64))[-1][-1]
        counts = token_counts(len(logits), prompt, expected)
        assert counts.max() >= IN_PROMPT
        adjusted = adjust_logits(logits, Settings(repetition_penalty=6.0), 1, counts, logits, counts)
        expected.append(choose_token(adjusted, Settings()))
    assert found == expected


def test_reasoning_is_apart_from_the_answer_and_never_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<think>", "</think>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(TokenizerFiles.at(tmp_path / "tokenizer.json", "{{ messages[0].content }}{# </think> #}"))
    written = [256, *tokenizer.encode("\nhm yes\n"), 257, *tokenizer.encode("\n\nyes, 4")]
    monkeypatch.setattr(answer_module, "generate", lambda *_, **__: iter(written))
    runner: Any = None
    answerer = Answerer(runner, tokenizer, Sampler(), StopAutomaton([", "]))
    writer = AnswerWriter()
    answer = answerer.answer(tokenizer.encode("hi"), 99, writer)
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("hm yes", "yes", "stop")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("yes", "thinking\nhm yes\n\n")


def test_what_is_shown(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    source = Demo(name="demo", size_bytes=1)
    chat.stored = StoredModel.model_construct(name="chef", source=source, license=("Be kind.",))
    send(chat.conversation, "what is 27 + 58?")
    info = said(chat, capsys, "/show info")
    assert "nearfar-demo" in info
    assert "512 tokens, of which 23 are used" in info
    assert "Be kind." in said(chat, capsys, "/show license")
    assert "FROM demo" in said(chat, capsys, "/show modelfile")
    assert "user: what is 27 + 58?\nassistant: 27 + 58 = 85" in said(chat, capsys, "/show messages")
    assert "messages" in said(chat, capsys, "/show template")
    assert "no system prompt" in said(chat, capsys, "/show system")
    assert "system prompt: be brief" in said(chat, capsys, "/system be brief")
    assert "did you mean 'parameters'" in said(chat, capsys, "/show parameter")
    assert "/set parameter NAME VALUE" in said(chat, capsys, "/help")
    assert "let the model reason" in said(chat, capsys, "/help set")
    assert "did you mean /show?" in said(chat, capsys, "/shwo")
    run_command(chat, "/set quiet")
    run_command(chat, "/set nohistory")
    assert (chat.shows_speed, chat.reader.remembers) == (False, False)


def test_a_saved_conversation_continues(
    chat: Chat, answerer: Answerer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my chat.json"
    run_command(chat, "/system be brief")
    run_command(chat, "/set parameter seed 3")
    send(chat.conversation, "what is 27 + 58?")
    assert "saved 2 messages" in said(chat, capsys, f"/save {file}")
    content = json.loads(file.read_text())
    assert content.pop("saved").endswith("+00:00")
    assert content == {
        "format": "nearfar-conversation-1",
        "model": "demo",
        "system": "be brief",
        "parameters": {"seed": 3},
        "messages": chat.conversation.messages,
    }
    other = Chat(Conversation(answerer, "other"), chat.notes)
    assert "loaded 2 messages, from a conversation with demo" in said(other, capsys, f"/load '{file}'")
    assert other.conversation.messages == chat.conversation.messages
    assert (other.conversation.system, other.conversation.parameters.seed) == ("be brief", 3)
    assert send(other.conversation, "hello").token_ids == send(chat.conversation, "hello").token_ids
    assert "saved 4" in said(other, capsys, f"/save {file}"), "a saved conversation may be replaced"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is no saved conversation"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"parameters": {"top_k": "x"}}, "parameters.top_k"),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, r"messages\[0\].content\[0\] must be"),
        ({"messages": [[]]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/x.png"}}]}]},
            "data:",
        ),
    ],
)
def test_what_is_no_saved_conversation_changes_nothing(
    change: dict[str, Any], message: str, chat: Chat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.json"
    valid = {
        "format": "nearfar-conversation-1",
        "model": "m",
        "saved": "",
        "messages": [{"role": "user", "content": "x"}],
    }
    file.write_text(json.dumps({**valid, "parameters": {"seed": 5}, **change}))
    assert re.search(message, said(chat, capsys, f"/load {file}"))
    assert (chat.conversation.messages, chat.conversation.parameters.seed) == ([], None)


def test_files_that_are_something_else_are_not_replaced(
    chat: Chat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "exists and is no saved conversation" in said(chat, capsys, f"/save {tmp_path}/notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "cannot be read" in said(chat, capsys, f"/load {tmp_path}/missing.json")
    assert "cannot be written" in said(chat, capsys, f"/save {tmp_path}/missing/chat.json")
    chat.conversation.system = "\ud800"
    assert "cannot be written" in said(chat, capsys, f"/save {tmp_path}/chat.json")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_completions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").touch()
    (tmp_path / "old").mkdir()
    assert completions("/s") == ["/set", "/system", "/show", "/save"]
    assert completions("/set parameter top") == ["/set parameter top_k ", "/set parameter top_p "]
    assert completions("/show m") == ["/show messages", "/show modelfile"]
    assert completions("/load o") == ["/load old/", "/load one.json"]
    assert completions("/load none/") == completions("hello") == completions("/nothing x") == []


def test_a_text_model_sees_no_pictures(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nearfar-demo sees no pictures" in said(chat, capsys, "/image cat.png")
    with pytest.raises(RequestError, match="is a picture, and nearfar-demo sees none"):
        chat.conversation.send([{"type": "image_url", "image_url": {"url": "data:,"}}], lambda _: None, lambda: False)


def test_raw_text_needs_a_prompt(light_demo: Path, tmp_path: Path) -> None:
    with on_a_terminal([*NEARFAR, "run", str(light_demo), "--raw"], tmp_path) as (terminal, process):
        terminal.read_to_the_end()
        assert "--raw needs a prompt" in terminal.text
        assert process.wait() == 2
