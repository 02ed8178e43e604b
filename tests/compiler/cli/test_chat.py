"""The conversation of `nearfar run`: on a pseudo-terminal, and turn by turn in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from terminal import on_a_terminal

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli.answer import Answer, Answerer
from nearfar.compiler.cli.chat import Conversation
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.batch import Batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.compiler.runtime.text.stop_strings import StopAutomaton
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

NEARFAR = [sys.executable, "-m", "nearfar.compiler.cli"]
# A conversation whose answers last until Ctrl-C.
ENDLESS = """
import time
from nearfar.compiler.cli.answer import Answer
from nearfar.compiler.cli.chat import converse
from nearfar.compiler.runtime.generate import Timings

class Endless:
    system, context, cached_tokens = None, 100, 3
    def send(self, text, write, cancelled):
        write("once upon ")
        while not cancelled():
            time.sleep(0.01)
        return Answer("once upon ", [1, 2], "cancelled", Timings(3, 2)), 0

converse(Endless(), "endless")
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


def send(conversation: Conversation, text: str) -> Answer:
    answer, _ = conversation.send(text, lambda _: None, lambda: False)
    return answer


def test_a_conversation_on_a_terminal(light_demo: Path, tmp_path: Path) -> None:
    with on_a_terminal([*NEARFAR, "run", str(light_demo), "--runner", "numpy"], tmp_path) as (terminal, process):
        terminal.expect("> ")
        terminal.send("what is 27 + 59\x7f8?\n")
        terminal.expect("27 \\+ 58 = 85\n")
        terminal.expect(r"\d+ tokens, first after \d+ ms, [\d.]+ tokens/s \(23 of 512 tokens of context\)\n> ")
        terminal.send("/nothing\n")
        terminal.expect("unknown command /nothing; /help shows the commands\n> ")
        terminal.send("/system\n")
        terminal.expect("no system prompt\n> ")
        terminal.interrupt("Ctrl-D ends the conversation\n> ")
        # The prompt of the second turn includes the first one, until a reset.
        terminal.send("what is 27 + 58?\n")
        occupied = int(terminal.expect(r"\((\d+) of 512")[1])
        assert occupied > 23
        terminal.send("/reset\n")
        terminal.expect("new conversation\n> ")
        terminal.send("what is 27 + 58?\n")
        terminal.expect(r"\(23 of 512 tokens of context\)\n> ")
        terminal.send("\x04")
        terminal.read_to_the_end()
        assert process.wait() == 0


def test_ctrl_c_stops_an_answer_but_not_the_conversation(tmp_path: Path) -> None:
    with on_a_terminal([sys.executable, "-c", ENDLESS], tmp_path) as (terminal, process):
        terminal.expect("> ")
        for _ in range(2):
            terminal.send("tell a story\n")
            terminal.expect("once upon ")
            terminal.send("\x03")
            terminal.expect("2 tokens, stopped, .*\n> ")
        terminal.send("\x04")
        terminal.read_to_the_end()
        assert process.wait() == 0


def test_a_turn_computes_only_tokens_that_the_runner_has_not_cached(answerer: Answerer, runner: CountingRunner) -> None:
    conversation = Conversation(answerer)
    send(conversation, "what is 27 + 58?")
    cached, before = conversation.cached_tokens, runner.computed
    second = send(conversation, "sort pear apple fig")
    # The first turn is not computed again, except for the last token of its answer.
    assert runner.computed - before <= conversation.cached_tokens - cached + 1
    fresh = Conversation(answerer)
    fresh._turns = conversation._turns[:2]
    fresh_answer = send(fresh, "sort pear apple fig")
    assert fresh_answer.token_ids == second.token_ids, "cached keys and values change nothing"


def test_a_stopped_answer_stays_in_the_conversation(answerer: Answerer) -> None:
    pieces: list[str] = []
    conversation = Conversation(answerer)
    answer, _ = conversation.send("what is 27 + 58?", pieces.append, lambda: len(pieces) >= 2)
    assert answer.finish_reason == "cancelled"
    assert len(answer.token_ids) == 2
    assert conversation._turns == [
        {"role": "user", "content": "what is 27 + 58?"},
        {"role": "assistant", "content": "".join(pieces)},
    ]
    assert send(conversation, "what is 27 + 58?").finish_reason == "stop"


def test_a_full_context_leaves_out_the_oldest_turns_and_keeps_the_system_prompt(answerer: Answerer) -> None:
    conversation = Conversation(answerer, system="be brief", max_tokens=4)
    # Only the newest turns fit.
    conversation._turns = [{"role": role, "content": "pear " * 20} for _ in range(20) for role in ("user", "assistant")]
    answer, dropped = conversation.send("what is 27 + 58?", lambda _: None, lambda: False)
    assert dropped > 0
    assert dropped % 2 == 0
    assert len(conversation._turns) == 42 - dropped
    assert conversation.cached_tokens + 1 <= conversation.context
    prompt = answerer.tokenizer.encode_chat([{"role": "system", "content": "be brief"}, *conversation._turns[:-1]])
    assert conversation._cached_ids == [*prompt, *answer.token_ids[:-1]]


def test_raw_text_needs_a_prompt(light_demo: Path, tmp_path: Path) -> None:
    with on_a_terminal([*NEARFAR, "run", str(light_demo), "--raw"], tmp_path) as (terminal, process):
        terminal.read_to_the_end()
        assert "--raw needs a prompt" in terminal.text
        assert process.wait() == 2
