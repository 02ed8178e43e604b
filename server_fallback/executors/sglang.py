"""SGLang's dialect: its names for our extensions of OpenAI's requests, its own forms of other requests and answers, and
the routing key by which its router, or any other that reads the header, sends a conversation to one worker.

Read from sglang 0.5.23 and smg 1.13; `tests/server_fallback/executors/other_engines` has what was read. SGLang drops
unknown fields of a request silently, so whatever it does not know is an error here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydantic import BaseModel

from nearfar.compiler.runtime.errors import DeviceError, RequestError

from ..schema.chat import ChatCompletionRequest, GrammarFormat, RegexFormat
from ..schema.common import GenerationRequest
from ..schema.completions import AnswerRequest, CompletionRequest
from ..schema.rerank import RerankRequest
from ..schema.score import ScoreRequest
from ..schema.tokenize import DetokenizeRequest
from ..text.grammar.source import EbnfSource, JsonSource, RegexSource
from ..text.response_format import requested_grammar, structured_outputs

# SGLang's workers read this header, and so do its routers: sglang-router, and smg with --routing-key-override or one of
# the policies manual, consistent_hashing and prefix_hash. Others ignore it.
ROUTING_KEY = "x-smg-routing-key"
# Longer values are ignored by smg.
ROUTING_KEY_BYTES = 128
SERVER_INFO = "/server_info"
# The names of the switch in the chat templates of DeepSeek and Kimi, and of Qwen, GLM and Nemotron.
THINKING = ("thinking", "enable_thinking")


def to_sglang(request: GenerationRequest, body: dict[str, Any]) -> None:
    """Rename our extensions in the body of a chat or completion. Raises RequestError for those without a name."""
    _refuse_unknown(request)
    assert isinstance(request, ChatCompletionRequest | CompletionRequest)
    source, param = requested_grammar(request)
    for name, _ in structured_outputs(request):
        body.pop(name, None)
    if isinstance(request.response_format, RegexFormat | GrammarFormat):
        del body["response_format"]
    match source:
        case RegexSource(pattern):
            body["regex"] = pattern
        case EbnfSource(text):
            body["ebnf"] = text
        case JsonSource(schema) if param != "response_format":
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": json.loads(schema)},
            }
    if body.pop("include_stop_str_in_output", False):
        body["no_stop_trim"] = True
    if isinstance(request, CompletionRequest):
        body.pop("split_special_tokens", None)
        return
    for message in body["messages"]:
        if "reasoning" in message:
            # vLLM's newer name.
            message.setdefault("reasoning_content", message.pop("reasoning"))
    if request.enable_thinking is not None:
        del body["enable_thinking"]
        switch = dict.fromkeys(THINKING, request.enable_thinking)
        body["chat_template_kwargs"] = body.get("chat_template_kwargs", {}) | switch


def _refuse_unknown(request: GenerationRequest) -> None:
    if request.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs: SGLang has none in OpenAI's API; leave it out, or use echo with logprobs on "
            "/v1/completions",
            param="prompt_logprobs",
        )
    if isinstance(request, ChatCompletionRequest):
        if request.return_token_ids:
            raise RequestError(
                "return_token_ids: SGLang has none in streamed chats, and all answers of this server are requested as "
                "streams; leave it out, or use /v1/completions",
                param="return_token_ids",
            )
        if request.thinking_token_budget is not None:
            raise RequestError(
                "thinking_token_budget: SGLang has no such parameter; use reasoning_effort",
                param="thinking_token_budget",
            )
    elif isinstance(request, CompletionRequest):
        if request.has_gap:
            raise RequestError(
                "suffix: SGLang fills gaps only with a template that its server was started with; write the model's "
                "own tokens for them into the prompt",
                param="suffix",
            )
        if request.split_special_tokens:
            raise RequestError(
                "split_special_tokens: SGLang cannot split control tokens of a prompt; leave it out",
                param="split_special_tokens",
            )


def other_sglang_body(request: BaseModel, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a request that generates nothing. Raises RequestError for what SGLang would ignore."""
    for param in ("truncate", "truncate_prompt_tokens", "max_tokens_per_doc"):
        if body.get(param):
            raise RequestError(f"{param}: SGLang shortens no texts; shorten them before they are sent", param=param)
    if isinstance(request, ScoreRequest):
        raise RequestError(
            "SGLang's /v1/score rates tokens that follow a text, not pairs of texts; use /v1/rerank", param="model"
        )
    if isinstance(request, RerankRequest) and request.top_n == 0:
        # It rejects 0, which here means all documents.
        del body["top_n"]
    if isinstance(request, RerankRequest):
        # It reads texts alone. `reranked` adds the documents as they were sent.
        body["documents"] = [each if isinstance(each, str) else each.text for each in request.documents]
        body["return_documents"] = False
    if isinstance(request, DetokenizeRequest):
        # As vLLM, which leaves no token out.
        body["skip_special_tokens"] = False
    return body


def reranked(answer: object, request: RerankRequest, name: str) -> dict[str, Any]:
    """Jina's form of SGLang's list of results."""
    if not isinstance(answer, list) or not all(isinstance(each, dict) for each in answer):
        raise DeviceError(f"{name}: the upstream's answer to /v1/rerank is not a list of objects")
    results = [{"index": each.get("index"), "relevance_score": each.get("score")} for each in answer]
    for result in results:
        index = result["index"]
        if isinstance(index, int) and 0 <= index < len(request.documents):
            result["document"] = request.returned(index)
    used = [each["meta_info"].get("prompt_tokens") for each in answer if isinstance(each.get("meta_info"), dict)]
    return {
        "results": results,
        "usage": {"total_tokens": sum(tokens for tokens in used if isinstance(tokens, int))},
    }


def priorities_of(info: Mapping[str, Any]) -> int:
    """How a server orders requests, from its `SERVER_INFO`: 1 if the highest priority runs first, -1 for the lowest, 0
    if it ignores them.
    """
    if info.get("enable_priority_scheduling") is not True:
        return 0
    return -1 if info.get("schedule_low_priority_values_first") is True else 1


def conversation_key(request: AnswerRequest, *, named: bool = True) -> str:
    """The same for each turn of a conversation, and another one for each conversation: a hash of the client's
    ``prompt_cache_key`` (if ``named``), or else of the tools and the messages up to the first of the user; of a
    completion, the beginning of its prompt.
    """
    if isinstance(request, CompletionRequest):
        prompt = request.prompt if isinstance(request.prompt, str) else json.dumps(request.prompt)
        return _hash(prompt[:BEGINNING_CHARACTERS])
    if named and request.prompt_cache_key:
        return _hash(request.prompt_cache_key)
    parts = [tool.model_dump_json() for tool in request.tools or ()]
    for message in request.messages:
        parts.append(message.model_dump_json(exclude_none=True))
        if message.role == "user":
            break
    return _hash("\n".join(parts))


# Of a completion's prompt, which has no turns: about what a shared system prompt takes.
BEGINNING_CHARACTERS = 2048


def routing_headers(request: AnswerRequest, headers: Mapping[str, str], *, named: bool = True) -> dict[str, str]:
    """``headers`` with the routing key: the client's own if it sends one that a router reads."""
    given = headers.get(ROUTING_KEY, "")
    if named and 0 < len(given.encode()) <= ROUTING_KEY_BYTES:
        return dict(headers)
    return {**headers, ROUTING_KEY: conversation_key(request, named=named)}


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
