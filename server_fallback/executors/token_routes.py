"""/tokenize and /detokenize for the tokenizer of a model on this machine."""

from __future__ import annotations

from nearfar.compiler.errors import RequestError

from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest
from ..text.requests import check_length
from .text_model import TextModel


async def tokens_of_text(model: TextModel, context: int, text: str, request: TokenizeRequest) -> list[int]:
    """A text that is many times too long for the model is refused, because its tokens would need much memory and could
    not be used. Raises RequestError.
    """

    def encode() -> list[int]:
        check_length(model.tokenizer, text, context, "prompt")
        return model.tokenizer.encode(text, request.add_special_tokens, request.split_special_tokens)

    return await model.long_texts.run(text, "", encode)


async def text_of_tokens(model: TextModel, request: DetokenizeRequest) -> DetokenizeResponse:
    """Raises RequestError."""
    wrong = next((token_id for token_id in request.tokens if not 0 <= token_id < model.vocab_size), None)
    if wrong is not None:
        raise RequestError(
            f"tokens contains id {wrong}; this model's ids are 0 to {model.vocab_size - 1}", param="tokens"
        )
    text = await model.long_texts.run(
        request.tokens, "", lambda: model.tokenizer.decode(request.tokens, skip_special_tokens=False)
    )
    return DetokenizeResponse(prompt=text)
