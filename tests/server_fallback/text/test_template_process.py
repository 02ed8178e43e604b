"""Chat templates in a separate process: their output, and hostile templates, which delay nobody else."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from limit_of_time import limit_only
from waiting import WAIT_SECONDS, until

from nearfar.compiler.runtime.errors import CheckpointError, RequestError, Unavailable
from nearfar.compiler.runtime.text.chat_template import ChatTemplate
from nearfar.server_fallback.processes.worker import NICENESS
from nearfar.server_fallback.text.template_process import RenderLimits, TemplateProcess
from nearfar.server_fallback.text.template_worker import RenderJob

HI = [{"role": "user", "content": "hi \ud800 \u4e2d"}]
LOOP = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% "
    "endfor %}"
)
# Hangs for the one message only.
SOMETIMES = "{% if messages[0].content == 'hang' %}" + LOOP + "{% endif %}{{ bos_token }}{{ messages[0].content }}"
HANGS_WHEN_COMPILED = "{{ 9 ** 99999999 }}"
Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def only_what_hangs_has_limits_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(request: object) -> bool:
        assert isinstance(request, RenderJob)
        content = str(request.messages[0]["content"]) if request.messages else ""
        return request.source in (LOOP, HANGS_WHEN_COMPILED) or content == "hang" or len(content) > 99

    limit_only(hangs, monkeypatch)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def render(process: TemplateProcess, content: str = "hi", client: str = "c") -> Coroutine[Any, Any, str]:
    return process.render([{"role": "user", "content": content}], {}, client)


def test_a_chat_is_rendered_and_refused_as_in_this_process() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ 1 / (m.role | length - 1) }}{% endfor %}{{ tools }}"
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ add_generation_prompt }}",
        {"bos_token": "<s>"},
    )

    async def work() -> None:
        process = TemplateProcess(template)
        text = await process.render(HI, {"add_generation_prompt": False}, "")
        assert text == template.render(HI, add_generation_prompt=False)
        with pytest.raises(RequestError, match="the chat template refuses these messages: no tools"):
            await process.render(HI, {"tools": [{"type": "function"}]}, "")
        with pytest.raises(CheckpointError, match="line 1: ZeroDivisionError") as error:
            await process.render([{"role": "u", "content": ""}], {}, "")
        assert error.value.details == {"line": 1}
        process.close()

    run(work())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no niceness")
def test_rendering_yields_the_processor_to_the_models() -> None:
    async def work() -> None:
        process = TemplateProcess(ChatTemplate("ok", {}))
        assert await render(process) == "ok"
        assert process.pid is not None
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, process.pid))
        assert its == min(own + NICENESS, 19)
        process.close()

    run(work())


def test_a_template_that_hangs_is_ended_and_soon_fails_at_once() -> None:
    async def work() -> None:
        process, other = (
            TemplateProcess(ChatTemplate(LOOP, {}), RenderLimits(seconds=0.4)),
            TemplateProcess(ChatTemplate("ok", {})),
        )
        assert await render(other) == "ok"
        hanging = [asyncio.create_task(render(process)) for _ in range(6)]
        await until(lambda: process.pid is not None)
        # Other models and the event loop go on meanwhile.
        assert await render(other) == "ok"
        assert not hanging[2].done()
        failures = [
            failure
            for failure in await asyncio.gather(*hanging, return_exceptions=True)
            if isinstance(failure, Unavailable)
        ]
        assert len(failures) == 6
        assert ["more than 0.4 seconds" in failure.message for failure in failures] == [True] * 3 + [False] * 3
        assert failures[5].details["code"] == "chat_template"
        assert failures[5].details["retry_after_seconds"] == 1.0
        process.close()
        other.close()

    run(work())


def test_a_process_that_hangs_is_replaced() -> None:
    async def work() -> None:
        process = TemplateProcess(ChatTemplate("ok", {}), RenderLimits(seconds=0.5))
        assert await render(process) == "ok"
        hung = process.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        with pytest.raises(Unavailable, match=r"takes more than 0\.5 seconds"):
            await render(process, "hang")
        assert await render(process) == "ok"
        assert process.pid != hung
        process.close()

    run(work())


def test_a_request_that_hangs_costs_others_only_its_time() -> None:
    async def work() -> None:
        process = TemplateProcess(ChatTemplate(SOMETIMES, {"bos_token": "<s>"}), RenderLimits(seconds=0.5))
        hangs, waits = (
            asyncio.create_task(render(process, "hang", "a")),
            asyncio.create_task(render(process, "hi", "b")),
        )
        assert await waits == "<s>hi"
        with pytest.raises(Unavailable, match=r"takes more than 0\.5 seconds"):
            await hangs
        # A client that leaves while the template hangs does not delay the next one for long either.
        leaves = asyncio.create_task(render(process, "hang", "a"))
        await asyncio.sleep(0.05)
        leaves.cancel()
        assert await render(process, "again") == "<s>again"
        process.close()

    run(work())


def test_a_template_that_takes_too_much_memory_fails() -> None:
    source = (
        "{% set ns = namespace(a='ab') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}"
    )

    async def work() -> None:
        limits = RenderLimits(memory_bytes=64 * 2**20, failures=2)
        process = TemplateProcess(ChatTemplate(source, {}), limits)
        for _ in range(limits.failures):
            with pytest.raises(Unavailable, match="it takes too much memory"):
                await render(process)
        with pytest.raises(Unavailable, match="its last prompts took too much time or memory"):
            await render(process)
        process.close()

    run(work())


async def killed(process: TemplateProcess) -> int:
    """Kill the process, and wait for another one. Returns its id."""
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: process.pid != pid)
    assert process.pid is not None
    return process.pid


def test_a_process_killed_from_outside_is_replaced() -> None:
    async def work() -> None:
        process = TemplateProcess(ChatTemplate(SOMETIMES, {"bos_token": ""}))
        assert await render(process) == "hi"
        first = process.pid
        assert first is not None
        hangs = asyncio.create_task(render(process, "hang"))
        await asyncio.sleep(0.05)
        second = await killed(process)
        # The chat is rendered again, once.
        os.kill(second, signal.SIGKILL)
        with pytest.raises(Unavailable, match="its process was ended"):
            await hangs
        assert await render(process) == "hi"
        assert process.pid not in (first, second)
        process.close()
        # So is the template that is read when its model is loaded, and no mistake is found in it.
        for times, source in ((1, "ok"), (2, HANGS_WHEN_COMPILED)):
            process = TemplateProcess(ChatTemplate(source, {}))
            checks = asyncio.create_task(process.check())
            await until(lambda: process.pid is not None)  # noqa: B023
            for _ in range(times - 1):
                await killed(process)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            if times == 1:
                await checks
            else:
                with pytest.raises(Unavailable, match="its process was ended"):
                    await checks
            process.close()

    run(work())


def test_a_client_that_leaves_while_the_process_starts_leaves_no_reply_to_the_next() -> None:
    async def work() -> None:
        for delay in (0.0, 0.002, 0.01, 0.03):
            process = TemplateProcess(ChatTemplate(SOMETIMES, {"bos_token": ""}))
            leaves = asyncio.create_task(render(process, "first"))
            await asyncio.sleep(delay)
            leaves.cancel()
            assert await render(process, "second") == "second"
            process.close()

    run(work())


def test_tools_that_are_nested_too_deep_are_the_requests_fault() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"deeper": deep}

    async def work() -> None:
        process = TemplateProcess(ChatTemplate("ok", {}))
        with pytest.raises(RequestError, match="plain JSON values"):
            await process.render(HI, {"tools": [deep]}, "")
        assert await render(process) == "ok"
        process.close()

    run(work())


def test_a_process_that_keeps_too_much_memory_is_replaced() -> None:
    async def work() -> None:
        process = TemplateProcess(ChatTemplate("{{ messages[0].content }}", {}), RenderLimits(keeps_bytes=1))
        pids = []
        for text in ("a", "b", "c"):
            assert await render(process, text) == text
            pids.append(process.pid)
        assert len(set(pids)) == 3
        process.close()

    run(work())


def test_closing_ends_a_template_that_hangs() -> None:
    async def work() -> None:
        process = TemplateProcess(ChatTemplate(LOOP, {}), RenderLimits(seconds=2 * WAIT_SECONDS))
        hangs = asyncio.create_task(render(process))
        await asyncio.sleep(0.1)
        process.close()
        async with asyncio.timeout(WAIT_SECONDS):
            for received in (hangs, render(process)):
                with pytest.raises(Unavailable, match="its process was ended"):
                    await received

    run(work())


def test_long_chats_that_hang_do_not_close_the_model_to_others() -> None:
    async def work() -> None:
        source = SOMETIMES.replace("== 'hang'", "| length > 99")
        limits = RenderLimits(long_seconds=0.2, small_characters=99)
        process = TemplateProcess(ChatTemplate(source, {"bos_token": ""}), limits)
        for _ in range(4):
            with pytest.raises(RequestError, match=r"the chat is too long .* it takes more than 0\.2 seconds"):
                await render(process, "long " * 20)
        assert await render(process) == "hi"
        process.close()

    run(work())


def test_a_template_that_is_wrong_or_hangs_is_found_when_it_is_checked() -> None:
    async def work() -> None:
        for source, message in (
            ("{% for %}", "chat template: line 1"),
            (HANGS_WHEN_COMPILED, r"more than 0\.5 seconds to compile"),
        ):
            process = TemplateProcess(ChatTemplate(source, {}), RenderLimits(seconds=0.5))
            with pytest.raises(CheckpointError, match=message):
                await process.check()
            process.close()

    run(work())
