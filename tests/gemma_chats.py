"""A tiny Gemma 4 that was trained to give a few answers: reasoning, then text, JSON or a tool call, as Gemma 4 writes
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from decoder_families import FAMILIES, new_family

from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

TEMPLATE = (Path(__file__).parent / "conformance/chat_templates/gemma4.jinja").read_text()
MARKERS = (
    *("<bos>", "<turn|>", "<|turn>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
)
END = MARKERS[1]
VOCAB_SIZE = 256 + len(MARKERS)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "sum",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
THOUGHT = "<|channel>thought\n{}\n<channel|>"
# (message, whether it reasons, whether it has the tool, answer)
ANSWERS = (
    ("who", True, False, THOUGHT.format("It is Ada.") + '{"name": "Ada", "age": 36}'),
    ("who", True, True, THOUGHT.format("It is Ada.") + '{"name": "Ada", "age": 36}'),
    ("1+2", True, True, THOUGHT.format("I add.") + "<|tool_call>call:add{a:1,b:2}<tool_call|>"),
    ("who", False, False, '{"name": "Ada", "age": 36}'),
)
STEPS, LEARNING_RATE, SMALL_LOSS = 200, 8e-3, 0.01


def make_gemma(folder: Path) -> None:
    """Write the checkpoint, whose tokens are bytes and MARKERS."""
    import torch

    write_gemma_tokenizer(folder)
    tokenizer = Tokenizer(TokenizerFiles.at(folder / "tokenizer.json", chat_template=TEMPLATE, bos_token="<bos>"))
    torch.manual_seed(0)
    model = new_family(
        "gemma4_text",
        vocab_size=VOCAB_SIZE,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=1,
        num_hidden_layers=4,
        layer_types=FAMILIES["gemma4_text"][1]["layer_types"][:4],
        sliding_window=24,
        max_position_embeddings=1024,
        final_logit_softcapping=30.0,
        bos_token_id=tokenizer.token_id("<bos>"),
        eos_token_id=tokenizer.token_id(END),
    )
    rows, targets = [], []
    for message, thinks, has_tool, answer in ANSWERS:
        variables = {"enable_thinking": True} if thinks else {}
        prompt = tokenizer.encode_chat(
            [{"role": "user", "content": message}], tools=[ADD] if has_tool else None, variables=variables
        )
        spoken = tokenizer.encode(answer + END, add_special_tokens=False, split_special_tokens=False)
        rows.append([*prompt, *spoken])
        targets.append([-100] * len(prompt) + spoken)
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    labels = torch.tensor([[*row, *[-100] * (longest - len(row))] for row in targets])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=labels).loss
        if loss.item() < SMALL_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:
        raise AssertionError(f"the model has not learnt its answers: {loss.item()}")
    model.save_pretrained(folder)


def write_gemma_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(MARKERS))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config: dict[str, Any] = {"bos_token": "<bos>", "eos_token": END, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
