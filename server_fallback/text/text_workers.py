"""The worker processes that a model's text and images need. A model and its adapters share them."""

from __future__ import annotations

from dataclasses import dataclass

from ..images.reader import ImageReader
from .grammar.grammars import Grammars
from .template_process import TemplateProcess


@dataclass(frozen=True, slots=True)
class TextWorkers:
    """``template`` is None if the chat template is rendered in this process, or if there is none; ``images`` if the
    model reads text only.
    """

    grammars: Grammars
    template: TemplateProcess | None = None
    images: ImageReader | None = None

    def close(self) -> None:
        self.grammars.close()
        if self.template is not None:
            self.template.close()
        if self.images is not None:
            self.images.close()
