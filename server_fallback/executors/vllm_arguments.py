"""The arguments of `vllm serve` that depend on the model, from the small files of its checkpoint.

Arguments of the user, such as ``--tool-call-parser``, ``--runner`` or ``--no-enable-auto-tool-choice``, replace them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.compiler.formats.chat_template_files import read_chat_template
from nearfar.compiler.formats.json_file import read_json_object
from nearfar.compiler.formats.sentence_transformers import MODULES_FILE
from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.runtime.text.tool_formats import has_tools, tool_format

# Our format of tool calls -> vLLM's parser for it.
PARSER_OF_FORMAT = {
    "gemma4": "gemma4",
    "granite": "granite",
    "hermes": "hermes",
    "llama3": "llama3_json",
    "mistral": "mistral",
    "mistral_named": "mistral",
    "phi4_mini": "phi4_mini_json",
    "qwen3_coder": "qwen3_coder",
}
# Families whose calls vLLM reads and our own engine does not.
PARSER_OF_FAMILY = {
    "apertus": "apertus",
    "deepseek_v32": "deepseek_v32",
    "ernie4_5_moe": "ernie45",
    "glm4_moe": "glm45",
    "gpt_oss": "openai",
    "hunyuan_v1_moe": "hunyuan_a13b",
    "internlm2": "internlm",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama4": "llama4_pythonic",
    "minimax_m2": "minimax_m2",
    "olmo3": "olmo3",
    "seed_oss": "seed_oss",
}
# The small files that `checkpoint_facts` reads.
SMALL_FILES = (
    "config.json",
    "tokenizer_config.json",
    "chat_template.*",
    "additional_chat_templates/*.jinja",
    MODULES_FILE,
)


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """``tool_parser`` is vLLM's name for the format in which the model writes tool calls, None if it writes none or the
    format is unknown. ``embeds``: sentence-transformers made it, so it makes embeddings and no text.
    """

    tool_parser: str | None = None
    embeds: bool = False


def checkpoint_facts(model: str) -> CheckpointFacts | None:
    """The facts about a folder, or a model of the Hugging Face Hub, whose small files are downloaded; None if they
    cannot be read. This takes seconds.
    """
    folder = _small_files(model)
    if folder is None:
        return None
    try:
        config = _read(folder / "config.json")
        template = read_chat_template(folder, _read(folder / "tokenizer_config.json"))
    except NearfarError:
        return None
    return CheckpointFacts(tool_parser(template, config), (folder / MODULES_FILE).is_file())


def tool_parser(template: str | None, config: Mapping[str, Any]) -> str | None:
    """vLLM's parser for the tool calls of a chat template, in a model with this config.json."""
    family = str(config.get("model_type"))
    if template is None or not has_tools(template):
        return None
    if family in PARSER_OF_FAMILY:
        return PARSER_OF_FAMILY[family]
    if family == "deepseek_v3":
        # V3 and R1 write arguments in a block of Markdown, V3.1 does not.
        return "deepseek_v3" if "```json" in template else "deepseek_v31"
    found = tool_format(template)
    return None if found is None else PARSER_OF_FORMAT[found.name]


def model_arguments(facts: CheckpointFacts, arguments: Sequence[str]) -> list[str]:
    """The arguments that `vllm serve` needs for the model in addition to the user's ``arguments``."""
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments if argument.startswith("--")}
    added = list[str]()
    if not given & {"--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details"}:
        added.append("--enable-prompt-tokens-details")
    if facts.embeds:
        return added if "--runner" in given else [*added, "--runner", "pooling"]
    if "--no-enable-auto-tool-choice" in given:
        return added
    names_parser = "--tool-call-parser" in given
    if (names_parser or facts.tool_parser is not None) and "--enable-auto-tool-choice" not in given:
        added.append("--enable-auto-tool-choice")
    if not names_parser and facts.tool_parser is not None:
        added += ["--tool-call-parser", facts.tool_parser]
    return added


def _small_files(model: str) -> Path | None:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=list(SMALL_FILES)))
    except Exception:  # The client raises its own errors, those of its HTTP library, and OSError.
        return None


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
