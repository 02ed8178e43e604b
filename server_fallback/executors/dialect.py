"""Dialects: convert a request to the JSON that another kind of server accepts.

OpenAI's parameters mean the same everywhere. Our extensions are sent to servers that have them, under their names; for
any other server they are an error, because no parameter of a client is dropped silently. Parameters for OpenAI's own
accounts are not sent.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from nearfar.compiler.runtime.errors import RequestError

from ..option_types import Dialect as Dialect
from ..schema.chat import ChatCompletionRequest, GrammarFormat, RegexFormat
from ..schema.common import EXTENSION, EXTENSION_IF_SET, OF_ACCOUNTS, GenerationRequest, marked
from ..schema.completions import CompletionRequest
from ..schema.tokenize import TokenizeRequest
from ..text.response_format import requested_grammar, structured_outputs
from .sglang import other_sglang_body, to_sglang

# "openai": nothing beyond OpenAI's parameters (llama.cpp, Ollama, TGI, TensorRT-LLM, LMDeploy, Triton). "vllm": vLLM
# 0.12 or newer. "sglang": SGLang 0.5 or its router.
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

# A route that every such server has.
MODELS = "/v1/models"
REASONING_KEYS = ("reasoning_content", "reasoning")


def generation_body(
    request: GenerationRequest, model: str, dialect: Dialect, *, priority: int | None
) -> dict[str, Any]:
    """The body to post for a chat or completion: streamed, with usage. ``priority`` is None if the server accepts none,
    and as the server orders requests.

    Raises RequestError for an extension that the dialect lacks.
    """
    body = request.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={*marked(type(request), OF_ACCOUNTS), "priority"}
    )
    body |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if dialect != "nearfar":
        if body.pop("receipt", False):
            raise RequestError(
                "receipt: only nearfar serve signs receipts, and another server is behind this model; leave it out",
                param="receipt",
            )
        if body.pop("watermark", False):
            raise RequestError(
                "watermark: only nearfar serve marks answers, and another server is behind this model; leave it out",
                param="watermark",
            )
        if body.pop("id_slot", None) is not None or body.pop("cache_prompt", False):
            raise RequestError(
                "id_slot and cache_prompt: another server is behind this model, whose slots are not ours; leave them "
                "out",
                param="id_slot",
            )
        # All servers support the older name; some ignore the newer one.
        limit = body.pop("max_completion_tokens", None)
        if limit is not None:
            body["max_tokens"] = limit
    # More than one answer format is an error here, as on our own engine.
    requested_grammar(request)
    if dialect == "openai":
        refuse_extensions(request)
        for message in body.get("messages", ()):
            # OpenAI's messages have no reasoning, and DeepSeek rejects the reasoning that it wrote itself.
            for key in REASONING_KEYS:
                message.pop(key, None)
    if dialect in ("vllm", "sglang"):
        # They have no search among more answers than n.
        body.pop("best_of", None)
        (to_vllm if dialect == "vllm" else to_sglang)(request, body)
    if priority:
        body["priority"] = priority
    return body


def other_body(request: BaseModel, model: str, dialect: Dialect) -> dict[str, Any]:
    """The body to post for a request that generates nothing. Raises RequestError for what the server would ignore."""
    body = request.model_dump(mode="json", by_alias=True, exclude_none=True) | {"model": model}
    if isinstance(request, TokenizeRequest) and dialect != "nearfar":
        split = body.pop("split_special_tokens")
        if split and "split_special_tokens" in request.model_fields_set:
            raise RequestError(
                "split_special_tokens: the server behind this model never splits the control tokens of a prompt; leave "
                "it out",
                param="split_special_tokens",
            )
        if request.messages is not None and "add_special_tokens" not in request.model_fields_set:
            # They would be added to those that the template has written.
            del body["add_special_tokens"]
    return other_sglang_body(request, body) if dialect == "sglang" else body


def health_path(dialect: Dialect) -> str:
    """The route that shows whether a server works. vLLM's and SGLang's also notice a dead engine behind it."""
    return "/health" if dialect in ("vllm", "sglang") else MODELS


def refuse_extensions(request: GenerationRequest) -> None:
    given = [name for name in marked(type(request), EXTENSION) if getattr(request, name) is not None]
    given += [name for name in marked(type(request), EXTENSION_IF_SET) if getattr(request, name)]
    given += [name for name, _ in structured_outputs(request)]
    if isinstance(request, ChatCompletionRequest) and isinstance(request.response_format, RegexFormat | GrammarFormat):
        given.append("response_format")
    if given:
        raise RequestError(
            f"{given[0]}: the server behind this model accepts only OpenAI's parameters; leave it out", param=given[0]
        )


def to_vllm(request: GenerationRequest, body: dict[str, Any]) -> None:
    # vLLM 0.12 no longer supports the older names.
    for name, form in structured_outputs(request):
        body.pop(name, None)
        if outputs := form.model_dump(mode="json", by_alias=True, exclude_none=True):
            body["structured_outputs"] = outputs
    if request.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs: vLLM has none in streamed answers, and all answers of this server are requested as "
            "streams; leave it out, or use echo with logprobs on /v1/completions",
            param="prompt_logprobs",
        )
    assert isinstance(request, ChatCompletionRequest | CompletionRequest)
    if isinstance(request.response_format, RegexFormat):
        del body["response_format"]
        body["structured_outputs"] = {"regex": request.response_format.pattern}
    elif isinstance(request.response_format, GrammarFormat):
        del body["response_format"]
        body["structured_outputs"] = {"grammar": request.response_format.grammar}
    if isinstance(request, CompletionRequest):
        if request.has_gap:
            raise RequestError(
                "suffix: vLLM fills no gaps; write the model's own tokens for them into the prompt", param="suffix"
            )
        # vLLM never splits the control tokens of a prompt.
        if body.pop("split_special_tokens", False):
            raise RequestError(
                "split_special_tokens: vLLM cannot split control tokens of a prompt; leave it out",
                param="split_special_tokens",
            )
        return
    for message in body["messages"]:
        if message.get("reasoning_content"):
            # vLLM's newer name.
            message["reasoning"] = message.pop("reasoning_content")
    if request.enable_thinking is not None:
        del body["enable_thinking"]
        body["chat_template_kwargs"] = {
            **body.get("chat_template_kwargs", {}),
            "enable_thinking": request.enable_thinking,
        }
    if request.continue_final_message:
        # vLLM starts a new turn by default, and the two parameters exclude each other.
        body["add_generation_prompt"] = False
