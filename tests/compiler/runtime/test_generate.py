"""Generating and scoring with one sequence: against transformers, and at every limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CHECKPOINTS
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.batch import Batch
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.generate import Timings, generate, score
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Output

CompileTiny = Callable[..., Path]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_greedy_answers_are_those_of_transformers(
    checkpoint: str, compile_numpy: CompileTiny, tiny_checkpoints: Mapping[str, Path], prompt_token_ids: list[int]
) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoints[checkpoint], dtype=torch.float32).eval()
    prompt = torch.tensor([prompt_token_ids])
    answer = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, pad_token_id=0
    )
    runner = ReferenceRunner(open_bundle(compile_numpy(checkpoint, "f32")))
    assert list(generate(runner, prompt_token_ids, 30, Sampler())) == answer[0, len(prompt_token_ids) :].tolist()


@pytest.mark.parametrize("rows_at_once", [1, 10, 75, 100])
def test_scores_are_the_logits_of_every_token_in_blocks(
    rows_at_once: int,
    compile_numpy: CompileTiny,
    transformers_logits: Callable[[str], np.ndarray],
    prompt_token_ids: list[int],
) -> None:
    runner = ReferenceRunner(open_bundle(compile_numpy("llama", "f32")))
    blocks = list(score(runner, prompt_token_ids, rows_at_once))
    assert [len(block) for block in blocks[:-1]] == [rows_at_once] * (len(blocks) - 1)
    assert relative_error(np.concatenate(blocks), transformers_logits("llama")) < F32


@pytest.fixture
def runner(tiny_bundle: Path) -> ReferenceRunner:
    return ReferenceRunner(open_bundle(tiny_bundle))


def ending_at(path: Path, *token_ids: int) -> ReferenceRunner:
    """A runner of a bundle whose model ends at these tokens."""
    bundle = open_bundle(path)
    spec = replace(bundle.manifest.spec, eos_token_ids=token_ids)
    return ReferenceRunner(Bundle(path, bundle.manifest.model_copy(update={"spec": spec})))


def test_an_answer_stops_before_the_first_end_token(tiny_bundle: Path, runner: ReferenceRunner) -> None:
    whole = list(generate(runner, [1, 2, 3], 12, Sampler()))
    end = next(token for i, token in enumerate(whole) if i >= 3)
    found = list(generate(ending_at(tiny_bundle, 508 if end != 508 else 507, end), [1, 2, 3], 12, Sampler()))
    assert found == whole[: whole.index(end)]


def test_an_answer_may_be_empty(tiny_bundle: Path, runner: ReferenceRunner) -> None:
    (first,) = generate(runner, [1, 2, 3], 1, Sampler())
    timings = Timings()
    assert list(generate(ending_at(tiny_bundle, first), [1, 2, 3], 12, Sampler(), timings)) == []
    assert (timings.prompt_tokens, timings.completion_tokens, timings.tokens_per_second) == (3, 0, 0)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_an_answer_has_at_most_max_tokens(max_tokens: int, runner: ReferenceRunner) -> None:
    timings = Timings()
    assert len(list(generate(runner, [1, 2, 3], max_tokens, Sampler(), timings))) == max_tokens
    assert timings.completion_tokens == max_tokens
    assert 0 <= timings.time_to_first_token_seconds <= timings.total_seconds


def test_a_prompt_and_an_answer_may_fill_the_context(runner: ReferenceRunner) -> None:
    # The last token of an answer is never computed.
    assert len(list(generate(runner, [5] * 250, 7, Sampler()))) == 7
    assert len(list(generate(runner, [5] * 256, 1, Sampler()))) == 1


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "the prompt is empty"),
        ([1, 509], 1, r"token id 509 is not in the vocabulary \(0 to 508\)"),
        ([-1], 1, "token id -1 is not in the vocabulary"),
        ([1], -1, "max_tokens is -1"),
        ([1] * 250, 8, "maximum context length is 256 tokens. However, there are 250 prompt tokens and 8 new ones"),
        ([1] * 257, 0, "maximum context length"),
    ],
)
def test_a_request_out_of_range_is_refused(
    prompt: list[int], max_tokens: int, message: str, runner: ReferenceRunner
) -> None:
    with pytest.raises(RequestError, match=message):
        next(generate(runner, prompt, max_tokens, Sampler()))


def test_logits_that_are_not_numbers_are_a_device_error_and_never_a_token(tiny_bundle: Path) -> None:
    class Broken(ReferenceRunner):
        def forward(self, batch: Batch) -> Output:
            return replace(super().forward(batch), next_token_ids=np.full(len(batch.sample_rows), -1, np.int32))

    with pytest.raises(DeviceError, match="computed logits that are not finite; try --runner numpy"):
        next(generate(Broken(open_bundle(tiny_bundle)), [1, 2], 1, Sampler()))


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(runner: ReferenceRunner) -> None:
    answers = [tuple(generate(runner, [1, 2, 3], 20, Sampler(temperature=1.0, state=seed))) for seed in (7, 7, 8)]
    assert answers[0] == answers[1] != answers[2]
