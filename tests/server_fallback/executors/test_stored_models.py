"""Models of the store: loaded when a request needs them, shared, and unloaded when nobody uses them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
from answers import whole
from fake_executor import FakeExecutor
from fake_source import FakeSource, executor
from stored_on_use import MODEL_BYTES, Opener, run, used
from waiting import pass_seconds, until

from nearfar.compiler.runtime.errors import DeviceError, RequestError, Unavailable
from nearfar.compiler.store.model import Changes, StoredMessage
from nearfar.compiler.store.parameters import Parameters
from nearfar.compiler.store.store import Store
from nearfar.server_fallback.executors.executor import Call, Executor, UnknownModel
from nearfar.server_fallback.executors.inherited import inherited
from nearfar.server_fallback.executors.stored_models import FIRST_SECONDS, StoredModels
from nearfar.server_fallback.schema.chat import ChatCompletionRequest, Message
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.models import LoadRequest, UnloadRequest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.pull("demo", "base")
    made.create("chef", "base", Changes(system="Cook.", parameters=Parameters(temperature=0.0, num_predict=3)))
    made.create("wide", "base", Changes(parameters=Parameters(num_ctx=128)))
    made.create("wider", "base", Changes(parameters=Parameters(num_ctx=256)))
    return made


def test_a_model_is_loaded_once_by_its_first_requests(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        assert [card.id for card in models.cards()] == ["wider", "wide", "chef", "base"]
        with pytest.raises(UnknownModel):
            await models.executor("base")

        async def use() -> None:
            async with models.using("base"):
                await asyncio.sleep(0)

        await asyncio.gather(use(), use(), use())
        assert opener.opened == ["base"]
        assert next((card.id, card.root) for card in models.cards()) == ("base", "base")
        assert await models.executor("BASE:latest") is opener.executors[0]
        with pytest.raises(UnknownModel, match=r"'chief' is not in the store; did you mean 'chef'\? available: wider"):
            async with models.using("chief"):
                pass

    run(store, test)


def test_an_error_of_a_request_reaches_its_sender(store: Store) -> None:
    async def test(models: StoredModels, _: Opener) -> None:
        for name in ("base", "given"):
            await models.change(LoadRequest(model="x", name="given")) if name == "given" else None
            with pytest.raises(UnknownModel, match="of the answer"):
                async with models.using(name):
                    raise UnknownModel("of the answer")

    run(store, test)


def test_a_model_is_unloaded_after_its_time_and_not_while_it_is_used(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            models.keep("base", 50.0)
            assert models.loaded()[0].expires is None
            models.keep("base", 0.0)
            await asyncio.sleep(0.01)
            assert models.loaded()[0].expires is None
            assert not opener.executors[0].closed
        assert models.loaded() == []
        await until(lambda: opener.executors[0].closed)
        # A new request loads it again.
        async with models.using("base"):
            assert opener.opened == ["base", "base"]
            models.keep("base", math.inf)
        assert [each.expires for each in models.loaded()] == [None]
        models.keep("base", 0.02)
        assert models.loaded()[0].expires is not None
        await until(lambda: opener.executors[1].closed)
        assert models.states() == {}

    run(store, test)


def test_idle_models_make_room_and_busy_ones_are_waited_for(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            pass
        async with models.using("wide"):
            pass
        # The one that was not used for the longest time leaves.
        async with models.using("wider"):
            assert sorted(each.name for each in models.loaded()) == ["wide", "wider"]
            async with models.using("wide"):
                waiting = asyncio.create_task(models.using("base").__aenter__())
                await until(lambda: bool(models._loads))
                assert not waiting.done()
            assert await waiting is opener.executors[-1]
        assert opener.opened == ["base", "wide", "wider", "base"]

    run(store, test, budget=2 * MODEL_BYTES)


def test_a_model_that_never_fits_is_refused_without_unloading_for_ever(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        with pytest.raises(Unavailable, match="needs"):
            async with models.using("base"):
                pass
        assert opener.opened == []

    run(store, test, budget=MODEL_BYTES - 1)


def test_a_request_waits_for_a_model_that_is_loaded_for_another_one(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        opener.may_open = asyncio.Event()
        first = asyncio.ensure_future(used(models, "base"))
        await until(lambda: opener.preparing == ["base"])
        others = [asyncio.ensure_future(used(models, name)) for name in ("base", "Base:latest", "chef")]
        await asyncio.sleep(0.02)
        opener.may_open.set()
        await asyncio.gather(first, *others)
        assert opener.opened == ["base"]

    run(store, test)


def test_requests_that_wait_for_an_engine_share_its_load(store: Store) -> None:
    """With a keep_alive of 0, and other engines' requests between them. The first request decides on the order."""

    async def test(models: StoredModels, opener: Opener) -> None:
        async def use(name: str) -> str:
            async with models.using(name):
                models.keep(name, 0.0)
            return name

        names = ["base", "wide", "wider"] * 4 + ["chef"]
        opener.may_open = asyncio.Event()
        uses = []
        for name in names:
            uses.append(asyncio.ensure_future(use(name)))
            await until(lambda: sum(load.waiting for load in models._loads.values()) == len(uses))
        opener.may_open.set()
        assert await asyncio.gather(*uses) == names
        assert opener.opened == ["base", "wide", "wider"]
        assert models.loaded() == []

    run(store, test, budget=MODEL_BYTES)


def test_a_failed_load_fails_all_that_wait_for_it_and_the_next_request_tries_again(store: Store) -> None:
    failures = [DeviceError("out of order")]

    def make() -> Executor:
        if failures:
            raise failures.pop()
        return FakeExecutor()

    async def test(models: StoredModels, opener: Opener) -> None:
        opener.may_open = asyncio.Event()
        uses = [asyncio.ensure_future(used(models, name)) for name in ("base", "base", "chef")]
        await until(lambda: [load.waiting for load in models._loads.values()] == [3])
        opener.may_open.set()
        found = await asyncio.gather(*uses, return_exceptions=True)
        assert [(type(each), str(each)) for each in found] == [(DeviceError, "out of order")] * 3
        assert opener.preparing == ["base"]
        await used(models, "base")
        assert opener.opened == ["base"]

    run(store, test, make=make)


def test_a_request_that_leaves_takes_nothing_from_those_that_wait_with_it(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        models.keep_seconds, opener.may_open = 0.0, asyncio.Event()
        held = asyncio.Event()

        async def use() -> None:
            async with models.using("base"):
                await held.wait()

        early, stays, late = (asyncio.ensure_future(use()) for _ in range(3))
        await until(lambda: [load.waiting for load in models._loads.values()] == [3])
        early.cancel()
        # In the moment of the arrival, when it has become a user already.
        next(iter(models._loads.values())).task.add_done_callback(lambda _: late.cancel())
        opener.may_open.set()
        await asyncio.wait([early, late])
        assert (early.cancelled(), late.cancelled()) == (True, True)
        assert [each.users for each in models.loaded()] == [1]
        held.set()
        await stays
        assert models.loaded() == []
        assert opener.opened == ["base"]

    run(store, test)


def test_models_in_use_answer_while_another_one_waits_for_their_memory_but_not_for_ever(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            waiting = asyncio.ensure_future(used(models, "wide"))
            await until(lambda: any(load.goes_first < math.inf for load in models._loads.values()))
            await used(models, "base")
            pass_seconds(FIRST_SECONDS)
            late = [asyncio.ensure_future(used(models, name)) for name in ("base", "base")]
            await asyncio.sleep(0.02)
            assert not any(each.done() for each in late)
        await asyncio.gather(waiting, *late)
        assert opener.opened == ["base", "wide", "base"]

    run(store, test, budget=MODEL_BYTES)


def test_models_in_use_do_not_wait_for_a_load_that_has_its_memory(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            opener.may_open = asyncio.Event()
            loading = asyncio.ensure_future(used(models, "wide"))
            await until(lambda: opener.preparing == ["base", "wide"])
            pass_seconds(FIRST_SECONDS)
            await used(models, "base")
            assert not loading.done()
            opener.may_open.set()
            await loading

    run(store, test)


def test_a_request_that_ends_while_its_model_loads_leaves_no_model_behind(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        models.keep_seconds, opener.may_open = 0.0, asyncio.Event()

        async def use() -> None:
            async with models.using("base"):
                raise AssertionError("it was cancelled before")

        waiting = asyncio.ensure_future(use())
        await until(lambda: opener.preparing == ["base"])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        opener.may_open.set()
        await until(lambda: opener.released == ["base"])
        assert (models.loaded(), models.states()) == ([], {})

    run(store, test)


def test_an_answer_goes_on_if_who_asked_for_its_models_end_leaves(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            opener.executors[0].now = replace(opener.executors[0].now, running=1)
            leaving = asyncio.ensure_future(models.change(UnloadRequest(model="base")))
            await until(lambda: models.loaded() == [])
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await asyncio.sleep(0.05)
            assert not opener.executors[0].closed
            opener.executors[0].now = replace(opener.executors[0].now, running=0)
            # A request may have several answers after each other.
            await asyncio.sleep(0.05)
            assert not opener.executors[0].closed
        await until(lambda: opener.executors[0].closed)

    run(store, test)


def test_a_request_waits_for_the_memory_of_a_model_that_leaves(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            opener.executors[0].now = replace(opener.executors[0].now, running=1)
            leaving = asyncio.ensure_future(models.change(UnloadRequest(model="base")))
            await until(lambda: models.loaded() == [])
            second = asyncio.ensure_future(used(models, "wide"))
            await asyncio.sleep(0.05)
            assert not second.done()
            opener.executors[0].now = replace(opener.executors[0].now, running=0)
        await second
        await leaving
        assert opener.opened == ["base", "wide"]

    run(store, test, budget=MODEL_BYTES)


def test_other_models_load_while_answers_of_a_replaced_one_run(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("wide"):
            opener.executors[0].now = replace(opener.executors[0].now, running=1)
            models.store.create("wide", "base", Changes(parameters=Parameters(num_ctx=200)))
            for name in ("wide", "wider"):
                await used(models, name)
            assert (opener.opened, opener.executors[0].closed) == (["wide", "wide", "wider"], False)
            opener.executors[0].now = replace(opener.executors[0].now, running=0)
        await until(lambda: opener.executors[0].closed)

    run(store, test)


def test_a_request_that_ends_after_the_server_unloads_nothing(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            models.keep("base", 0.0)
            await models.close(0.0)
            assert opener.executors[0].closed
        assert models.loaded() == []

    run(store, test)


def test_a_model_that_was_loaded_by_hand_stays_and_a_removed_one_leaves(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        await models.change(LoadRequest(model="x", name="pinned"))
        async with models.using("pinned") as given:
            assert given is opener.executors[0]
        assert [each.name for each in models.loaded()] == []
        async with models.using("base"):
            pass
        await models.forget("chef")
        assert [each.name for each in models.loaded()] == ["base"]
        store.remove("base")
        await models.forget("base")
        assert models.loaded() == []
        async with models.using("chef"):
            pass
        await models.change(UnloadRequest(model="chef"))
        assert models.states().keys() == {"pinned"}

    run(store, test)


def test_a_changed_record_counts_from_the_next_request_on(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("wide"):
            pass
        store.create("wide", "base", Changes(parameters=Parameters(num_ctx=64)))
        async with models.using("wide"):
            assert opener.opened == ["wide", "wide"]
        await until(lambda: opener.executors[0].closed)

    run(store, test)


def test_models_that_differ_in_what_requests_inherit_share_an_engine(store: Store, tmp_path: Path) -> None:
    sources = list[FakeSource]()

    def make() -> Executor:
        made, source = executor(tmp_path, "Hello")
        sources.append(source)
        return made

    async def test(models: StoredModels, opener: Opener) -> None:
        request = ChatCompletionRequest(model="chef", messages=[Message(role="user", content="hi")])
        async with models.using("base"), models.using("chef") as chef:
            answer = await whole(chef, request, Call("1"))
        assert (answer.model, answer.choices[0].message.content) == ("chef", "Hel")
        (source,) = sources
        (asked,) = source.requests
        assert bytes(asked.prompt_ids).decode() == "[system]Cook.[user]hi[assistant]"
        assert (asked.sampling.temperature, asked.max_tokens) == (0.0, 3)
        assert models.answers_at_once("chef") is None
        assert opener.opened == ["base"]
        models.keep("chef", 0.0)
        await until(lambda: source.closed)

    run(store, test, make=make)


def test_requests_keep_what_they_set_themselves(store: Store) -> None:
    store.create("talker", "chef", Changes(messages=(StoredMessage(role="user", content="a"),)))
    talker = store.get("talker")
    user = Message(role="user", content="hi")
    request = ChatCompletionRequest(model="x", messages=[user], temperature=1.0, max_completion_tokens=9)
    found = inherited(request, talker)
    assert isinstance(found, ChatCompletionRequest)
    assert [(each.role, each.content) for each in found.messages] == [
        ("system", "Cook."),
        ("user", "a"),
        ("user", "hi"),
    ]
    assert (found.temperature, found.max_tokens, found.max_completion_tokens) == (1.0, None, 9)
    own = request.model_copy(update={"messages": [Message(role="developer", content="Bake."), user]})
    found = inherited(own, talker)
    assert isinstance(found, ChatCompletionRequest)
    assert [each.content for each in found.messages] == ["Bake.", "a", "hi"]
    plain = CompletionRequest(model="x", prompt="a", max_tokens=7)
    assert inherited(plain, talker) == plain.model_copy(update={"temperature": 0.0})
    assert inherited(plain, store.get("base")) is plain
    with pytest.raises(RequestError, match="ask chef"):
        inherited(plain.model_copy(update={"receipt": True}), talker)
