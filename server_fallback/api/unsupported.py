"""Parameters of completions of OpenAI and vLLM that we do not know, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

_SAMPLED = "answers are sampled, never searched; leave it out"
_OF_TEMPLATE = "the chat template of the model decides; use chat_template_kwargs, or send the prompt to /v1/completions"

ADVICE: Mapping[str, str] = {
    "add_generation_prompt": _OF_TEMPLATE,
    "add_special_tokens": "send token ids as the prompt; /tokenize makes them with and without special tokens",
    "allowed_token_ids": "use structured_outputs with choice, regex or grammar",
    "bad_words": "set logit_bias of their tokens to -100",
    "cache_salt": "leave it out",
    "chat_template": _OF_TEMPLATE,
    "documents": "write the documents into a message",
    "echo": "in chats, use continue_final_message; /v1/completions has echo",
    "include_reasoning": "the reasoning is reasoning_content, apart from the content; leave it out",
    "length_penalty": _SAMPLED,
    "logprob_token_ids": "use logprobs, which lists up to 20 tokens",
    "prompt_embeds": "send a text or token ids as the prompt",
    "repetition_detection": "use repetition_penalty or frequency_penalty",
    "request_id": "send the header X-Request-Id",
    "return_tokens_as_token_ids": "use return_token_ids",
    "spaces_between_special_tokens": "special tokens are written without spaces; leave it out",
    "thinking_token_budget": "only chats have a budget of reasoning; use /v1/chat/completions",
    "truncate_prompt_tokens": "shorten the prompt; /tokenize counts its tokens",
    "truncation_side": "shorten the prompt; /tokenize counts its tokens",
    "use_beam_search": _SAMPLED,
}
