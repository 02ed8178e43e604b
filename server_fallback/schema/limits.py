"""The largest lists of a request."""

from __future__ import annotations

MAX_STOPS = 16
MAX_STOP_TOKENS = 1024
MAX_CHOICES = 128
MAX_GUIDED_CHOICES = 1024
MAX_LOGIT_BIASES = 1024
# OpenAI's limit for embeddings.
MAX_TEXTS = 2048
