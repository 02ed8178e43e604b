"""``encrypted_content`` of reasoning items: the reasoning in a form that clients pass back and do not read.

Clients that store nothing here send it back with the next turn, and some of them no other field. It is only encoded:
the client may read the reasoning, which ``content`` or ``summary`` has too.
"""

from __future__ import annotations

import base64
import binascii

from nearfar.compiler.runtime.errors import RequestError

from ..schema.response_items import ReasoningItem

PREFIX = "nearfar-1-"


def encoded_reasoning(text: str) -> str:
    return PREFIX + base64.urlsafe_b64encode(text.encode()).decode()


def reasoning_of(item: ReasoningItem, where: str) -> str:
    """The text of a reasoning item. Raises RequestError for an encrypted one of another server."""
    texts = [part.text for part in item.content or item.summary or ()]
    if texts or item.encrypted_content is None:
        return "\n\n".join(texts)
    param = f"{where}.encrypted_content"
    try:
        if not item.encrypted_content.startswith(PREFIX):
            raise ValueError
        return base64.b64decode(item.encrypted_content.removeprefix(PREFIX), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        message = f"{param} is not of this server, which cannot read it; leave the item out"
        raise RequestError(message, param=param, code="invalid_encrypted_content") from None
