"""The Go templates of Ollama's Modelfiles, translated to Jinja."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ...runtime.errors import RequestError
from .lexer import Source
from .to_jinja import to_jinja
from .tree import parse

# The longest template of Ollama's library, that of gpt-oss, has 8,000 characters.
MAX_TEMPLATE_CHARACTERS = 256 * 1024
_JINJA = re.compile(r"\{%[-+]?\s*[a-z]")
NO_MARKS: Mapping[str, str] = MappingProxyType({})


def chat_template(text: str, line: int = 1, marks: Mapping[str, str] = NO_MARKS, *, begins: bool = False) -> str:
    """The Jinja source of a TEMPLATE: a Go template is translated, and a text with a tag ``{% for`` is Jinja already.

    ``line`` is that of its first character, for errors. ``marks`` are what stands for an "image", a "video" and an
    "audio" in a prompt of the model. ``begins``: a prompt begins with the model's bos token, which Go templates leave
    to the tokenizer. Raises RequestError, which names the place, for what is not supported.
    """
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise RequestError(
            f"TEMPLATE has {len(text):,} characters; at most {MAX_TEMPLATE_CHARACTERS:,} are supported",
            code="invalid_template",
        )
    if _JINJA.search(text) is not None:
        return text
    source = Source(text, line)
    jinja = to_jinja(source, parse(source), marks)
    return f"{{{{ bos_token }}}}{jinja}" if begins else jinja
