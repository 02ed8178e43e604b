"""RoBERTa: BERT whose positions are counted from the row after that of padding. Liu et al. 2019."""

from __future__ import annotations

import re
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import bert
from .encoder import HeadLayout
from .encoder_config import read_encoder_config

PREFIX = "roberta."
OTHER_HEADS = re.compile(r"(?:pooler|lm_head|classifier)\..*")

encode = partial(bert.encode, head=HeadLayout(classifier="classifier.out_proj", dense=[("classifier.dense", "tanh")]))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "roberta" or "xlm-roberta"."""
    return read_encoder_config(
        config,
        first_position=config.integer("pad_token_id", minimum=0, default=1) + 1,
        num_token_types=config.integer("type_vocab_size", default=2),
    )
