"""ELECTRA: BERT, of which small ones have short rows in their tables, which a projection widens. Clark et al. 2020."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import bert
from .encoder import HeadLayout
from .encoder_config import read_encoder_config

PREFIX = "electra."
OTHER_HEADS = re.compile(r"(?:discriminator_predictions|generator_predictions|generator_lm_head|classifier)\..*")

encode = partial(bert.encode, head=HeadLayout(classifier="classifier.out_proj", dense=[("classifier.dense", "gelu")]))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "electra"."""
    size = config.integer("embedding_size", default=128)
    spec = read_encoder_config(config, num_token_types=config.integer("type_vocab_size", default=2))
    return spec if size == spec.hidden_size else replace(spec, embedding_size=size)
