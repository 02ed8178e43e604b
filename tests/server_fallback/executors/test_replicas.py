"""Which replica gets a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.executors import replicas as replicas_module
from nearfar.server_fallback.executors.replicas import BLOCK_BYTES, PREFIX_WORTH, Replicas, prefixes_of
from nearfar.server_fallback.executors.upstream import Upstream
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest


def make(count: int) -> tuple[Replicas, list[Upstream]]:
    upstreams = [Upstream(f"http://{index}", httpx.AsyncClient()) for index in range(count)]
    return Replicas(upstreams), upstreams


def prompt(text: str) -> list[bytes]:
    return prefixes_of(CompletionRequest(model="m", prompt=text))


LONG = prompt("once upon a time " * 400)


def test_replicas_of_equal_load_take_turns() -> None:
    replicas, upstreams = make(3)
    assert [replicas.choose(()) for _ in range(6)] == upstreams * 2


def test_the_least_loaded_is_chosen() -> None:
    replicas, upstreams = make(3)
    for upstream, outstanding in zip(upstreams, (2, 1, 3), strict=True):
        upstream.outstanding = outstanding
    assert replicas.choose(()) is upstreams[1]


def test_the_replica_with_the_prompt_is_chosen_until_it_is_much_busier() -> None:
    replicas, upstreams = make(2)
    first = replicas.choose(LONG)
    other = next(upstream for upstream in upstreams if upstream is not first)
    assert [replicas.choose(LONG) for _ in range(3)] == [first] * 3
    first.outstanding = int(PREFIX_WORTH) - 1
    assert replicas.choose(LONG) is first
    first.outstanding = int(PREFIX_WORTH) + 1
    assert replicas.choose(LONG) is other
    # The other replica has now seen it too.
    first.outstanding = 1
    assert replicas.choose(LONG) is other


def test_a_short_prompt_that_was_seen_weighs_less_than_one_request() -> None:
    replicas, upstreams = make(2)
    short = prompt("x" * BLOCK_BYTES)
    assert len(short) == 1
    upstreams[replicas.all.index(next(r for r in replicas.all if r.upstream is replicas.choose(short)))].outstanding = 1
    assert replicas.choose(short).outstanding == 0


def test_only_the_common_beginning_counts() -> None:
    whole = "a" * BLOCK_BYTES * 4
    changed = "a" * BLOCK_BYTES * 2 + "b" + "a" * (BLOCK_BYTES * 2 - 1)
    one, other = prompt(whole), prompt(changed)
    assert [left == right for left, right in zip(one, other, strict=True)] == [True, True, False, False]
    assert prompt("a" * (BLOCK_BYTES - 1)) == []
    assert len(prompt("a" * BLOCK_BYTES * 10_000)) == replicas_module.MOST_BLOCKS


def test_tools_and_messages_and_token_ids_make_prefixes() -> None:
    def chat(system: str, user: str, **more: Any) -> list[bytes]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return prefixes_of(ChatCompletionRequest.model_validate({"model": "m", "messages": messages, **more}))

    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat("s" * 2000, "a")[:3] == chat("s" * 2000, "b")[:3]
    assert chat("s" * 2000, "a")[0] != chat("s" * 2000, "a", tools=tools)[0]
    assert len(prefixes_of(CompletionRequest(model="m", prompt=list(range(1000))))) > 3


def test_a_tried_replica_is_chosen_again_only_if_no_other_remains() -> None:
    replicas, (one, two) = make(2)
    assert replicas.choose(LONG, [one]) is two
    assert replicas.choose(LONG, [one, two]) in (one, two)
    two.circuit.failed(certain=True)
    assert replicas.choose(LONG, [one]) is one


def test_a_failed_replica_gets_no_requests_and_its_prefixes_are_forgotten() -> None:
    replicas, (one, two) = make(2)
    assert replicas.choose(LONG) is one
    one.circuit.failed(certain=True)
    assert replicas.choose(LONG) is two
    one.circuit.succeeded()
    assert replicas.choose(LONG) is two


def test_without_a_usable_server_the_error_states_when_to_retry() -> None:
    replicas, upstreams = make(2)
    for upstream in upstreams:
        upstream.circuit.failed(certain=True)
    with pytest.raises(Unavailable, match=r"http://0, http://1") as raised:
        replicas.choose(())
    assert raised.value.details["retry_after_seconds"] == 1.0


def test_the_memory_of_prefixes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "REMEMBERED_BLOCKS", 10)
    replicas, _ = make(1)
    common = "c" * BLOCK_BYTES
    for index in range(20):
        replicas.choose(prompt(common + f"{index:04}" * BLOCK_BYTES))
    assert len(replicas.all[0].seen) == 10
    # Their common prefix is still cached.
    assert prompt(common)[0] in replicas.all[0].seen
