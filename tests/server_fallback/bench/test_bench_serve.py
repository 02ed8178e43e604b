"""`nearfar bench serve` with a server whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_openai import MODEL, FakeOpenAI, Received, Reply, in_a_thread, text_chunks

from nearfar.compiler.cli import main
from nearfar.server_fallback.bench.client import Outcome
from nearfar.server_fallback.bench.summary import summarize
from nearfar.server_fallback.bench.workload import Lengths, make_workload


def words_of(received: Received) -> int:
    assert received.body is not None
    return sum(len(message["content"].split()) for message in received.body["messages"])


def two_tokens_a_word(received: Received) -> Reply:
    """As many tokens as allowed. A prompt has two tokens per word and 10 more."""
    assert received.body is not None
    count = received.body["max_tokens"]
    usage = {
        "prompt_tokens": 10 + 2 * words_of(received),
        "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    return Reply(chunks=text_chunks(*["x"] * count, usage=usage))


def bench(url: str, *arguments: str) -> int:
    return main(["bench", "serve", url, "--input-tokens", "20", "40", "--output-tokens", "2", "6", *arguments])


@pytest.fixture
def server() -> FakeOpenAI:
    return FakeOpenAI(two_tokens_a_word)


def test_loads_are_measured_printed_written_and_drawn(
    server: FakeOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, drawn = tmp_path / "figures.json", tmp_path / "plot.png"
    with in_a_thread(server) as url:
        code = bench(
            f"{url}/v1", "--concurrency", "1", "3", "--requests", "6", "--json", str(figures), "--plot", str(drawn)
        )
    assert code == 0
    printed = capsys.readouterr().out
    assert f"{MODEL} at {url}/v1" in printed
    assert "first token" in printed
    written = json.loads(figures.read_text())
    assert [load["concurrency"] for load in written["loads"]] == [1, 3]
    # Two earlier requests measure the number of tokens per word.
    received = server.received[2:]
    assert len(received) == 12
    for load, its in zip(written["loads"], (received[:6], received[6:]), strict=True):
        assert (load["requests"], load["failed"], load["errors"]) == (6, 0, {})
        assert load["prompt_tokens"] == sum(10 + 2 * words_of(each) for each in its)
        assert load["completion_tokens"] == sum(each.body["max_tokens"] for each in its if each.body is not None)
        assert load["cached_tokens"] == 24
        first, gaps = load["time_to_first_token_seconds"], load["inter_token_seconds"]
        assert 0 < first["p50"] <= first["p90"] <= first["p99"]
        assert 0 <= gaps["p50"] <= gaps["p99"]
        assert load["completion_tokens_per_second"] == pytest.approx(load["completion_tokens"] / load["seconds"])
    assert all(10 <= words_of(each) <= 20 for each in received)
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_requests_and_all_share_the_prefix(server: FakeOpenAI) -> None:
    def received(*arguments: str) -> list[Any]:
        server.received.clear()
        assert bench(url, "--concurrency", "1", "--requests", "3", "--prefix-tokens", "40", *arguments) == 0
        return [each.body for each in server.received[2:]]

    with in_a_thread(server) as url:
        first = received()
        assert received() == first
        assert received("--seed", "1") != first
        assert received("--body", '{"temperature": 0.5}') == [{**body, "temperature": 0.5} for body in first]
    texts = [body["messages"][0]["content"].split() for body in first]
    # 20 words are its 40 tokens.
    assert len({tuple(text[:20]) for text in texts}) == 1
    assert len({tuple(text[20:]) for text in texts}) == 3


def fails_after_the_probe(reply: Callable[[], Reply]) -> Callable[[Received], Reply]:
    def script(received: Received) -> Reply:
        assert received.body is not None
        return two_tokens_a_word(received) if received.body["max_tokens"] == 1 else reply()

    return script


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(429, {"error": {"message": "too many"}}), "4 x http"),
        (Reply(chunks=text_chunks("a", "b"), breaks_after=2), "4 x RemoteProtocolError"),
        (Reply(chunks=text_chunks()), "4 x the answer had no text"),
        (Reply(chunks=[{"error": {"message": "out of memory"}}]), "out of memory"),
    ],
)
def test_failed_requests_are_counted_and_reported(
    reply: Reply, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_a_thread(FakeOpenAI(fails_after_the_probe(lambda: reply))) as url:
        assert bench(url, "--concurrency", "2", "--requests", "4") == 2
    captured = capsys.readouterr()
    assert "4 of 4 requests failed" in captured.err
    assert message in captured.err
    # The table is printed nevertheless.
    assert "first token" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:9",), "no server answers at this URL"),
        (("URL", "--model", "other"), f"does not serve other; it serves {MODEL}"),
        (("URL", "--input-tokens", "9", "3"), "--input-tokens 9 3: the first number must not be larger"),
    ],
)
def test_a_load_that_cannot_be_measured_states_why(
    arguments: tuple[str, ...], message: str, server: FakeOpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_a_thread(server) as url:
        assert main(["bench", "serve", *(url if argument == "URL" else argument for argument in arguments)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_lengths_are_within_their_ends_and_differ() -> None:
    requests = make_workload(200, Lengths(3, 5), Lengths(7, 7), prefix_tokens=0, tokens_per_word=1.0, seed=(0, 1))
    assert {len(request.prompt.split()) for request in requests} == {3, 4, 5}
    assert {request.max_tokens for request in requests} == {7}
    assert {request.prefix for request in requests} == {""}


def test_a_summary_without_a_good_outcome_has_no_latencies() -> None:
    summary = summarize(2, [Outcome(error="x"), Outcome(error="x"), Outcome(error="y")], 2.0)
    assert (summary.failed, summary.errors) == (3, {"x": 2, "y": 1})
    assert summary.time_to_first_token_seconds.p50 is None
    assert summary.completion_tokens_per_second == 0
