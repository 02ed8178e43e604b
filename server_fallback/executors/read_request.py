"""Reads a request: all that it asks of a model, before its chat is rendered and its grammar is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nearfar.compiler.ir.sampling import ALTERNATIVES, Sampling
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.stop_strings import StopAutomaton

from ..engine.request import TokenRequest
from ..schema.chat import ChatCompletionRequest
from ..schema.common import GenerationRequest
from ..schema.completions import AnswerRequest, CompletionRequest
from ..text.answers import ChunkSender
from ..text.chat import ChatAnswer, ChatForm
from ..text.chat_prompt import Chat, ChatPrompt, read_chat
from ..text.choice import AnswerText
from ..text.completion import CompletionAnswer, CompletionForm, Prompt, read_prompts
from ..text.fill_in_middle import FillInMiddle, Gap
from ..text.grammar.source import GrammarSource
from ..text.output import Output
from ..text.requests import check_length
from ..text.response_format import answer_format, requested_grammar
from ..text.thinking import read_thinking
from ..text.tools import text_parameters
from ..text.vocabulary import Vocabulary
from .executor import Call
from .text_model import TextModel

MAX_ANSWERS = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """``prompt`` is a chat for the model's template, or the prompts of completions. ``param`` is the parameter that
    requests the ``grammar``, and ``budget`` the limit of the reasoning. ``logprobs`` and ``prompt_alternatives`` are
    how many alternatives each token of the answer and of the prompt gets, None for no log-probabilities. ``end_ids``
    end the answer besides the request's own.
    """

    request: AnswerRequest
    prompt: Chat | Sequence[Prompt]
    form: ChatForm | CompletionForm
    text: AnswerText
    max_tokens: int | None
    logprobs: int | None
    prompt_alternatives: int | None
    grammar: GrammarSource | None
    param: str
    budget: int | None = None
    end_ids: frozenset[int] = frozenset()

    @property
    def needs_vocabulary(self) -> bool:
        return self.logprobs is not None or self.prompt_alternatives is not None

    def with_vocabulary(self, vocabulary: Vocabulary) -> Asked:
        form, text = replace(self.form, vocabulary=vocabulary), self.text
        return replace(self, form=form, text=text if self.logprobs is None else replace(text, vocabulary=vocabulary))

    def token_requests(self, prompt: ChatPrompt, call: Call, adapter: str | None) -> list[TokenRequest]:
        """One request for each of the ``n`` answers to a prompt. Each answer's seed is 1 above that of the last."""
        request, alternatives = self.request, self.prompt_alternatives
        first = TokenRequest(
            prompt.ids,
            images=prompt.images,
            max_tokens=self.max_tokens,
            logprobs=self.logprobs,
            last_token_ids=self.end_ids.union(request.stop_token_ids or ()),
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
            watermark=bool(request.watermark),
            priority=call.priority,
            deadline=call.deadline,
            adapter=adapter,
            client=call.client,
            prompt_logprobs=0 if alternatives is None else len(prompt.ids),
            prompt_alternatives=alternatives or 0,
            prefill_from=call.prefill_from,
        )
        # All answers to a chat have the same prompt, so only the first of them reports its log-probabilities.
        others = replace(first, prompt_logprobs=0) if isinstance(self.prompt, Chat) else first
        return [
            replace(others if index else first, sampling=_sampling(request, index)) for index in range(request.n or 1)
        ]

    def answer(self, requests: Sequence[TokenRequest], output: Output[Any]) -> ChunkSender:
        form = self.form
        if isinstance(form, ChatForm):
            return ChatAnswer(requests, form, output)
        return CompletionAnswer(requests, form, output)


def read_request(
    request: AnswerRequest, model: TextModel, context: int, ignore_param: Callable[[str], None] | None = None
) -> Asked:
    """Raises RequestError. For ``ignore_param`` see `Call`."""
    if isinstance(request, CompletionRequest):
        return read_completion_request(request, model, context)
    return read_chat_request(request, model, ignore_param)


def read_chat_request(
    request: ChatCompletionRequest, model: TextModel, ignore_param: Callable[[str], None] | None = None
) -> Asked:
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise RequestError("max_tokens and max_completion_tokens mean the same; use one of them", param="max_tokens")
    max_tokens = request.max_completion_tokens if request.max_tokens is None else request.max_tokens
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    form = answer_format(request, model.tools)
    template = model.tokenizer.chat_template
    thinking = read_thinking(
        request, "" if template is None else template.source, reasons=model.reasoning is not None, ignore=ignore_param
    )
    chat = read_chat(
        request.messages,
        tools=form.tools,
        continue_final_message=bool(request.continue_final_message),
        variables=thinking.variables,
        images=model.images,
        hears=model.sounds is not None,
    )
    return Asked(
        request,
        chat,
        ChatForm(
            model.name,
            form.calls,
            one_call=request.parallel_tool_calls is False,
            lists_tokens=bool(request.logprobs),
            call_begins=form.call_begins,
            call_texts=text_parameters(form.tools or ()),
            prompt_logprobs=request.prompt_logprobs,
            lists_ids=bool(request.return_token_ids),
        ),
        replace(_answer_text(request, model, max_tokens), reasoning=model.reasoning),
        max_tokens,
        (request.top_logprobs or 0) if request.logprobs else None,
        # A rank needs all alternatives that the device lists.
        None if request.prompt_logprobs is None else ALTERNATIVES,
        form.grammar,
        form.param,
        thinking.budget,
    )


def read_completion_request(request: CompletionRequest, model: TextModel, context: int) -> Asked:
    n = request.n or 1
    if request.best_of not in (None, n):
        raise RequestError("best_of is not supported; leave it out, or set it to n", param="best_of")
    if request.has_gap and request.echo:
        raise RequestError("echo and suffix do not fit each other; leave one of them out", param="echo")
    filling = FillInMiddle.of(model.tokenizer) if request.has_gap else None
    gap = Gap(request.suffix or "", request.middle or "", request.input_extra or ())
    check_length(model.tokenizer, gap.text, context, "suffix")
    grammar, param = requested_grammar(request)
    splits = request.split_special_tokens is not False
    fill = None if filling is None else partial(filling.prompt, gap=gap)
    prompts = read_prompts(
        model.tokenizer, request.prompt, model.vocab_size, context, "prompt", split_special_tokens=splits, fill=fill
    )
    if len(prompts) * n > MAX_ANSWERS:
        raise RequestError(
            f"prompt and n request {len(prompts) * n:,} answers; request at most {MAX_ANSWERS:,} at once",
            param="prompt",
        )
    form = CompletionForm(
        model.name,
        model.tokenizer,
        n,
        echoes=[prompt.text(model.tokenizer) for prompt in prompts for _ in range(n)] if request.echo else [],
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        lists_ids=bool(request.return_token_ids),
    )
    echoed = request.logprobs if form.echoes_tokens else None
    ends = () if filling is None else filling.ends
    return Asked(
        request,
        prompts,
        form,
        replace(_answer_text(request, model, request.max_tokens, ends), lists_end=form.echoes_tokens),
        request.max_tokens,
        request.logprobs,
        echoed if request.prompt_logprobs is None else ALTERNATIVES,
        grammar,
        param,
        end_ids=frozenset() if filling is None else filling.end_ids,
    )


def _answer_text(
    request: GenerationRequest, model: TextModel, max_tokens: int | None, silent_stops: Sequence[str] = ()
) -> AnswerText:
    if max_tokens is not None and (request.min_tokens or 0) > max_tokens:
        raise RequestError(
            f"min_tokens is {request.min_tokens}, more than max_tokens, {max_tokens}; lower min_tokens",
            param="min_tokens",
        )
    last = model.vocab_size - 1
    for token_id in request.stop_token_ids or ():
        if token_id > last:
            message = f"stop_token_ids has token id {token_id}; ids of this model are 0 to {last}"
            raise RequestError(message, param="stop_token_ids")
    for token_id in request.logit_bias or ():
        if not 0 <= token_id <= last:
            message = f"logit_bias has token id {token_id}; ids of this model are 0 to {last}"
            raise RequestError(message, param="logit_bias")
    return AnswerText(
        StopAutomaton([*([request.stop] if isinstance(request.stop, str) else request.stop or []), *silent_stops]),
        silent_stops=frozenset(silent_stops),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        lists_ids=bool(request.return_token_ids),
    )


def _sampling(request: GenerationRequest, index: int) -> Sampling:
    """Missing parameters have OpenAI's defaults, so the temperature is 1."""
    return request.sampling(None if request.seed is None else request.seed + index, 1.0, request.logit_bias)
