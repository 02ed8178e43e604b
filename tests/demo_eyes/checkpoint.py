"""The model as transformers' SmolVLM, its tokenizer and its folder.

One tile of 64 pixels has 8 x 8 patches, of which 2 x 2 become one feature, so that a picture takes the place of 16
tokens. A conversation is ``<bos>`` and then, for each turn, ``<user>question<end><assistant>answer<end>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from demo_model.saved_model import write_json, write_tokenizer
from demo_model.tokenizer import train_bpe
from tokenizers import Tokenizer
from transformers import GenerationConfig, SmolVLMConfig, SmolVLMForConditionalGeneration

from .pictures import draw_picture

TILE, PATCH, BLOCK = 64, 8, 2
FEATURES = (TILE // PATCH // BLOCK) ** 2
IMAGE = "<image>"
SPECIAL_TOKENS = (
    "<bos>", "<user>", "<assistant>", "<end>", "<pad>", IMAGE, "<fake_token_around_image>", "<global-img>",
)  # fmt: skip
BOS, USER, ASSISTANT, END, PAD, IMAGE_ID, FAKE, GLOBAL = range(len(SPECIAL_TOKENS))
# What stands for a picture of one tile, which SmolVLM's processor writes for <image>.
PICTURE = [FAKE, GLOBAL, *[IMAGE_ID] * FEATURES, FAKE]
VOCABULARY = 384
# Their weights begin otherwise than those of other products: tables, and what is added to the rows of a layer.
EMBEDDINGS = ("embed_tokens.weight", "position_embedding.weight")
ADDED = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('the roles are user and assistant, not ' + message['role']) }}{% endif %}"
    "{{ '<' + message['role'] + '>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def new_model() -> Any:
    """With random weights."""
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "bos_token_id": BOS,
            "eos_token_id": END,
            "pad_token_id": PAD,
            "tie_word_embeddings": True,
        },
        vision_config={
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "image_size": TILE,
            "patch_size": PATCH,
        },
        scale_factor=BLOCK,
        image_token_id=IMAGE_ID,
        pad_token_id=PAD,
        tie_word_embeddings=True,
    )
    model = SmolVLMForConditionalGeneration(config)
    # In bfloat16 on CPUs, the products of eager attention are faster than the fused kernel.
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                inputs = parameter[0].numel()
                deviation = 0.05 if name.endswith(EMBEDDINGS) else 0.8 / inputs**0.5
                parameter.normal_(0, deviation / 3 if name.endswith(ADDED) else deviation)
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=END, pad_token_id=PAD, do_sample=False)
    return model


def train_tokenizer(seed: int, pictures: int = 2000) -> Tokenizer:
    """Byte-level BPE of the questions and answers, in which each word is a token."""
    found = (draw_picture(f"train {seed} tokenizer {index}").questions for index in range(pictures))
    texts = (text for each in found for one in each for text in (one.text, one.answer))
    return train_bpe(texts, VOCABULARY, SPECIAL_TOKENS)


def encode_prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    return [BOS, USER, *PICTURE, *_ids(tokenizer, question), END, ASSISTANT]


def encode_turns(tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """The tokens of a conversation about a picture, and whether each belongs to an answer."""
    ids, counted = [BOS], [False]
    for number, (question, answer) in enumerate(turns):
        asked = [USER, *(PICTURE if number == 0 else []), *_ids(tokenizer, question), END, ASSISTANT]
        said = [*_ids(tokenizer, answer), END]
        ids += asked + said
        counted += [False] * len(asked) + [True] * len(said)
    return ids, counted


def write_checkpoint(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """A Hugging Face folder with weights in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    model.float()
    write_tokenizer(folder, tokenizer, CHAT_TEMPLATE, model.config.text_config.max_position_embeddings)
    processor = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": TILE},
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": TILE},
    }
    write_json(folder / "preprocessor_config.json", processor)


def read_checkpoint(folder: Path) -> tuple[Any, Tokenizer]:
    """The model in float32."""
    # In bfloat16 on CPUs, the products of eager attention are faster than the fused kernel.
    model = SmolVLMForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
