"""Mistakes in a pipeline's file are errors when it is loaded, not at its first request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pipeline_models import RAG, make_store, registry_of, steps, write

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.pipelines.plan import make_plan
from nearfar.server_fallback.retrieval.store import StoreModel, VectorStore
from nearfar.server_fallback.schema.models import LoadRequest

CHAT = {"kind": "chat", "output": "answer", "model": "chat"}


def test_a_step_comes_after_those_that_it_needs(tmp_path: Path) -> None:
    more = {"kind": "chat", "output": "short", "model": "chat", "prompt": "Shorten: {question}"}
    changed = steps(answer={"system": "{best} {short}"})
    plan = make_plan(write(tmp_path, steps=[changed[3], more, *changed[:3]]))
    assert [step.output for step in plan.order] == ["short", "vector", "found", "best"]
    assert plan.last.output == "answer"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"steps": steps(vector={"input": "nothing"})},
            "unknown input 'nothing'; there are messages, question",
        ),
        ({"steps": steps(vector={"input": "best"})}, "input 'best' is of the kind passages, not text"),
        ({"steps": steps(best={"query": "vector"})}, "kind vector, not text"),
        ({"steps": steps(found={"store": "other"})}, "unknown store 'other'; the file's stores: docs"),
        ({"steps": steps(found={"output": "vector"})}, "'vector' is given twice"),
        ({"steps": steps(vector={"kind": "guess"})}, "steps.0: .*'guess'"),
        ({"steps": steps(vector={"inputs": "x"})}, "steps.0.embed.inputs: Extra inputs"),
        ({"steps": steps(answer={"system": "{nothing}"})}, "unknown input 'nothing'"),
        ({"steps": steps(answer={"system": "x"})}, "'vector' is not used"),
        ({"output": "best"}, "must be that of a step of the kind chat or pipeline"),
        ({"steps": []}, "steps: List should have at least 1"),
        (
            {
                "steps": [
                    {**CHAT, "output": "a", "prompt": "{b}"},
                    {**CHAT, "output": "b", "prompt": "{a}"},
                    {**CHAT, "system": "{a}"},
                ]
            },
            "steps wait for each other: a, b, answer",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(RequestError, match=match) as error:
        make_plan(path)
    assert str(path) in error.value.message


def test_files_that_are_missing_or_contain_each_other_are_refused(tmp_path: Path) -> None:
    def other(name: str, inner: str) -> Path:
        step = {"kind": "pipeline", "output": "answer", "pipeline": inner}
        return write(tmp_path, {"name": name, "steps": [step], "output": "answer"}, f"{name}.json")

    other("x", "y.json")
    with pytest.raises(RequestError, match=r"contain each other: .*y\.json -> .*x\.json -> .*y\.json") as error:
        make_plan(other("y", "x.json"))
    assert error.value.details["code"] == "pipeline_cycle"
    with pytest.raises(RequestError, match=r"none.json: cannot be read"):
        make_plan(other("z", "none.json"))
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(RequestError, match="is not JSON"):
        make_plan(tmp_path / "text.json")


def load(folder: Path, path: Path, *names: str) -> None:
    async def work() -> None:
        async with registry_of(folder, *names) as (registry, _):
            await registry.load(LoadRequest(model=str(path)))

    asyncio.run(work())


def test_models_and_stores_are_checked_when_a_pipeline_is_loaded(tmp_path: Path) -> None:
    make_store(tmp_path)
    load(tmp_path, write(tmp_path))
    for changed, match in (
        ({"vector": {"model": "none"}}, "vector: the model 'none' is not loaded"),
        ({"vector": {"model": "chat"}}, "vector: the model chat is not an embedding model"),
        ({"vector": {"model": "rank"}}, "makes no embeddings"),
        ({"best": {"model": "classify"}}, "best: the model classify labels texts"),
        ({"best": {"model": "chat"}}, "best: the model chat does not score texts"),
        ({"answer": {"model": "embed"}}, "answer: the model embed generates no text"),
    ):
        with pytest.raises(RequestError, match=match):
            load(tmp_path, write(tmp_path, steps=steps(**changed)))
    with pytest.raises(RequestError, match="there is no store here"):
        load(tmp_path, write(tmp_path, stores={"docs": "none.store"}))
    VectorStore.create(tmp_path / "other.store", StoreModel("other", "b" * 64, 3)).close()
    with pytest.raises(RequestError, match=r"made by other .*not by fake") as error:
        load(tmp_path, write(tmp_path, stores={"docs": "other.store"}))
    assert error.value.details["code"] == "store_of_another_model"
    assert RAG["stores"] == {"docs": "docs.store"}
