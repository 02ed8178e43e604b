"""The order of a pipeline's steps, from their inputs. A mistake in the file is found here, before the first request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nearfar.compiler.runtime.errors import RequestError

from .schema import (
    ChatStep,
    EmbedStep,
    PipelineFile,
    PipelineStep,
    RerankStep,
    SearchStep,
    Step,
    read_pipeline,
    relative_to,
)

Kind = Literal["messages", "text", "vector", "passages"]
REQUEST: Mapping[str, Kind] = {"messages": "messages", "question": "text"}
OUTPUTS: Mapping[str, Kind] = {
    "embed": "vector",
    "search": "passages",
    "rerank": "passages",
    "chat": "text",
    "pipeline": "text",
}
PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Plan:
    """``order``: each step comes after those whose values it needs. ``last`` is the step whose answer is streamed; it
    is not in it. ``inner`` are the plans of other pipelines, by their paths in the file.
    """

    path: Path
    file: PipelineFile
    order: tuple[Step, ...]
    last: ChatStep | PipelineStep
    inner: Mapping[str, Plan]

    def store_path(self, name: str) -> Path:
        return relative_to(self.path, self.file.stores[name])

    def models(self) -> list[tuple[str, str]]:
        """The models to serve, by the names that steps use: those of this file and of the pipelines in it."""
        own = [
            (name, str(path) if (path := relative_to(self.path, model)).exists() else model)
            for name, model in self.file.models.items()
        ]
        return [*own, *(each for plan in self.inner.values() for each in plan.models())]

    def searches(self) -> list[tuple[SearchStep, EmbedStep]]:
        """Each search with the step that makes its vector."""
        steps = {step.output: step for step in self.file.steps}
        found = []
        for step in self.file.steps:
            if isinstance(step, SearchStep):
                embedding = steps[step.input]
                assert isinstance(embedding, EmbedStep)
                found.append((step, embedding))
        return found


def make_plan(path: Path, outer: Sequence[Path] = ()) -> Plan:
    """Read a pipeline and the pipelines that it contains. Raises RequestError for a cycle, an unknown or unused value,
    a value of the wrong kind, or a store that the file does not name.
    """
    own = path.resolve()
    if own in outer:
        chain = " -> ".join(str(each) for each in [*outer[outer.index(own) :], own])
        raise RequestError(f"{path}: the pipelines contain each other: {chain}", code="pipeline_cycle")
    file = read_pipeline(path)
    by_output: dict[str, Step] = {}
    for step in file.steps:
        if step.output in REQUEST or step.output in by_output:
            raise RequestError(f"{path}: the output {step.output!r} is given twice; choose another name")
        by_output[step.output] = step
    for step in file.steps:
        for name, kinds in inputs_of(step).items():
            _check_input(path, step, name, kinds, by_output)
        if isinstance(step, SearchStep) and step.store not in file.stores:
            known = ", ".join(file.stores) or "none"
            raise RequestError(f"{path}: {step.output}: unknown store {step.store!r}; the file's stores: {known}")
    last = by_output.get(file.output)
    if not isinstance(last, ChatStep | PipelineStep):
        raise RequestError(f"{path}: the output {file.output!r} must be that of a step of the kind chat or pipeline")
    needed = _needed(last, by_output)
    if unused := [name for name in by_output if name not in needed]:
        raise RequestError(f"{path}: the output {unused[0]!r} is not used; remove its step")
    inner = {
        step.pipeline: make_plan(relative_to(path, step.pipeline), [*outer, own])
        for step in file.steps
        if isinstance(step, PipelineStep)
    }
    return Plan(path, file, _ordered(path, last, by_output), last, inner)


def inputs_of(step: Step) -> dict[str, tuple[Kind, ...]]:
    """The values that a step reads, and the kinds that it accepts."""
    match step:
        case EmbedStep():
            return {step.input: ("text",)}
        case SearchStep():
            return {step.input: ("vector",)}
        case RerankStep():
            return {step.query: ("text",), step.input: ("passages",)}
        case ChatStep() | PipelineStep():
            texts = [step.prompt, step.system if isinstance(step, ChatStep) else None]
            names = [name for text in texts if text is not None for name in PLACEHOLDER.findall(text)]
            return dict.fromkeys(names, ("text", "passages"))


def _check_input(path: Path, step: Step, name: str, kinds: Sequence[Kind], by_output: Mapping[str, Step]) -> None:
    if name not in REQUEST and name not in by_output:
        known = ", ".join([*REQUEST, *by_output])
        raise RequestError(f"{path}: {step.output}: unknown input {name!r}; there are {known}")
    kind = REQUEST[name] if name in REQUEST else OUTPUTS[by_output[name].kind]
    if kind not in kinds:
        raise RequestError(f"{path}: {step.output}: the input {name!r} is of the kind {kind}, not {' or '.join(kinds)}")


def _needed(last: Step, by_output: Mapping[str, Step]) -> set[str]:
    found, pending = set[str](), [last.output]
    while pending:
        name = pending.pop()
        if name not in found and name in by_output:
            found.add(name)
            pending += inputs_of(by_output[name])
    return found


def _ordered(path: Path, last: Step, by_output: Mapping[str, Step]) -> tuple[Step, ...]:
    """All steps but the last one. Raises RequestError for a cycle."""
    done, order, waiting = set(REQUEST), list[Step](), list(by_output.values())
    while waiting:
        ready = [step for step in waiting if inputs_of(step).keys() <= done]
        if not ready:
            names = ", ".join(step.output for step in waiting)
            raise RequestError(f"{path}: steps wait for each other: {names}", code="pipeline_cycle")
        order += [step for step in ready if step is not last]
        done |= {step.output for step in ready}
        waiting = [step for step in waiting if step not in ready]
    return tuple(order)
