"""A tiny Gemma 4 that was trained to give a few answers: reasoning, then text, JSON or a tool call, as Gemma 4 writes
them. Another one gives those of a coding agent's turns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coding_agent import Step, chat_turns, functions
from decoder_families import FAMILIES, new_family

from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

TEMPLATE = (Path(__file__).parent / "conformance/chat_templates/gemma4.jinja").read_text()
MARKERS = (
    *("<bos>", "<turn|>", "<|turn>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
)
END = MARKERS[1]
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
# Of the agent's model: the tokens that a layer sees, and the number of such layers.
WINDOW, WINDOWS, AGENT_LEARNING_RATE = 24, 2, 1.5e-2


def make_gemma(folder: Path) -> None:
    """Write the checkpoint, whose tokens are bytes and MARKERS."""
    tokenizer, vocab_size = write_gemma_tokenizer(folder)
    layer_types = FAMILIES["gemma4_text"][1]["layer_types"][:4]
    model = new_gemma(tokenizer, vocab_size, layer_types=layer_types, max_position_embeddings=1024)
    rows = list[tuple[list[int], list[int]]]()
    for message, thinks, has_tool, answer in ANSWERS:
        variables = {"enable_thinking": True} if thinks else {}
        prompt = tokenizer.encode_chat(
            [{"role": "user", "content": message}], tools=[ADD] if has_tool else None, variables=variables
        )
        rows.append((prompt, tokenizer.encode(answer + END, add_special_tokens=False, split_special_tokens=False)))
    train(model, rows)
    model.save_pretrained(folder)


def make_agent_gemma(folder: Path, failed: str, context: int) -> None:
    """Write a checkpoint that makes the steps of `coding_agent`, whose prompts have thousands of tokens.

    Its layers see WINDOW tokens each, and the last one, which Gemma 4 wants to see all, adds nothing. So an answer
    depends on the prompt's last tokens alone, and training needs no more of it.
    """
    import torch

    turns = chat_turns(failed)
    tools, variables = functions(), {"enable_thinking": True}
    texts = [*(json.dumps(tool) for tool in tools), *(str(message["content"]) for message in turns[-1][0])]
    tokenizer, vocab_size = write_gemma_tokenizer(folder, texts)
    layer_types = [*["sliding_attention"] * WINDOWS, "full_attention"]
    model = new_gemma(
        tokenizer,
        vocab_size,
        layer_types=layer_types,
        num_hidden_layers=len(layer_types),
        num_kv_shared_layers=0,
        sliding_window=WINDOW,
        max_position_embeddings=context,
    )
    silent = model.model.layers[-1].self_attn.o_proj.weight
    with torch.no_grad():
        silent.zero_()
    silent.requires_grad_(False)
    rows = list[tuple[list[int], list[int]]]()
    for messages, step in turns:
        prompt = tokenizer.encode_chat(messages, tools=tools, variables=variables)
        spoken = tokenizer.encode(written(step) + END, add_special_tokens=False, split_special_tokens=False)
        rows.append((prompt[-WINDOWS * WINDOW :], spoken))
    train(model, rows, AGENT_LEARNING_RATE)
    model.save_pretrained(folder)


def written(step: Step) -> str:
    """As Gemma 4 writes it. After calls, the results end the turn."""
    calls = [f"<|tool_call>call:{name}{argument(given)}<tool_call|>" for name, given in step.calls]
    return THOUGHT.format(step.thought) + "".join(calls) + step.text


def argument(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case Mapping():
            return "{" + ",".join(f"{name}:{argument(each)}" for name, each in sorted(value.items())) + "}"
        case _:
            return json.dumps(value)


def new_gemma(tokenizer: Tokenizer, vocab_size: int, **sizes: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return new_family(
        "gemma4_text",
        **{
            "vocab_size": vocab_size,
            "vocab_size_per_layer_input": vocab_size,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "final_logit_softcapping": 30.0,
            "bos_token_id": tokenizer.token_id("<bos>"),
            "eos_token_id": tokenizer.token_id(END),
            **sizes,
        },
    )


def train(
    model: Any, rows: Sequence[tuple[Sequence[int], Sequence[int]]], learning_rate: float = LEARNING_RATE
) -> None:
    """Until the model writes the second part of each row after the first."""
    import torch

    longest = max(len(prompt) + len(spoken) for prompt, spoken in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for index, (prompt, spoken) in enumerate(rows):
        end = len(prompt) + len(spoken)
        ids[index, :end] = torch.tensor([*prompt, *spoken])
        labels[index, len(prompt) : end] = torch.tensor(spoken)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=learning_rate)
    model.train()
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=labels).loss
        if loss.item() < SMALL_LOSS:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"the model has not learnt its answers: {loss.item()}")


def write_gemma_tokenizer(folder: Path, texts: Sequence[str] = ()) -> tuple[Tokenizer, int]:
    """The tokenizer and its number of tokens: bytes, MARKERS, and frequent pieces of the texts."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if texts:
        trainer = trainers.BpeTrainer(vocab_size=1024, initial_alphabet=list(alphabet), show_progress=False)
        backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens(list(MARKERS))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config: dict[str, Any] = {"bos_token": "<bos>", "eos_token": END, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    files = TokenizerFiles.at(folder / "tokenizer.json", chat_template=TEMPLATE, bos_token="<bos>")
    return Tokenizer(files), backend.get_vocab_size()
