"""The commands of a conversation on the terminal, which begin with a slash. Their names are those of Ollama."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..given_file import read_given
from ..measure.report import quantization_of
from ..nearest import did_you_mean, with_advice
from ..publish.licenses import license_of, stated
from ..runtime.errors import NearfarError, RequestError, reason_of
from ..runtime.images.decode import decode_image
from ..runtime.images.patches import prepare_image
from ..store.model import StoredModel
from ..store.modelfile import write_modelfile
from ..store.parameters import Parameters
from .conversation import Conversation
from .line_reader import LineReader
from .output import shown
from .saved_conversation import SavedConversation, read_saved

MAX_IMAGE_BYTES = 100 << 20


@dataclass(slots=True)
class Chat:
    """``stored`` is the model of the store that was started, if one was. ``images`` go with the next message: the URL
    and the file of each. ``shows_speed``: behind each answer.
    """

    conversation: Conversation
    notes: Console
    stored: StoredModel | None = None
    images: list[tuple[str, Path]] = field(default_factory=list)
    shows_speed: bool = True
    ended: bool = False
    reader: LineReader = field(default_factory=lambda: LineReader(completions))

    def note(self, text: str) -> None:
        self.notes.print(shown(text, lines=True), style="dim")

    def content(self, text: str) -> Any:
        """A message with the pictures that wait for it, in OpenAI's form."""
        if not self.images:
            return text
        parts = [{"type": "image_url", "image_url": {"url": url}} for url, _ in self.images]
        return [*parts, {"type": "text", "text": text}]


@dataclass(frozen=True, slots=True)
class Command:
    """``run`` gets what follows the name. ``kinds`` are the words that may follow."""

    usage: str
    text: str
    run: Callable[[Chat, str], None]
    kinds: Sequence[str] = ()


def run_command(chat: Chat, line: str) -> None:
    """Run a line that begins with a slash. Its errors are shown."""
    name, _, argument = line.partition(" ")
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        known = did_you_mean(name, list(COMMANDS)).replace("'", "")
        chat.notes.print(f"unknown command {shown(name[:40])}{known} (/help shows the commands)", style="yellow")
        return
    try:
        COMMANDS[name].run(chat, argument.strip())
    except NearfarError as error:
        chat.notes.print(f"[bold red]error:[/] {shown(error.message, lines=True)}")


def completions(typed: str) -> Sequence[str]:
    """The lines that continue what was typed: names of commands, what may follow them, and files."""
    name, space, argument = typed.partition(" ")
    if not typed.startswith("/") or "\n" in typed:
        return []
    if not space:
        return [each for each in COMMANDS if each.startswith(name)]
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        return []
    if name in ("/save", "/load", "/image"):
        return [f"{name} {each}" for each in _files(argument)]
    parameter = argument.removeprefix("parameter ")
    if name == "/set" and parameter != argument:
        return [f"/set parameter {each} " for each in Parameters.model_fields if each.startswith(parameter)]
    return [f"{name} {each}" for each in command.kinds if each.startswith(argument)]


def _files(typed: str) -> list[str]:
    """The paths that begin with what was typed; folders end in a slash."""
    folder, _, start = typed.rpartition("/")
    folder = f"{folder}/" if "/" in typed else ""
    try:
        found = sorted(Path(folder or ".").expanduser().iterdir())
    except OSError:
        return []
    return [f"{folder}{each.name}{'/' if each.is_dir() else ''}" for each in found if each.name.startswith(start)]


# --- the commands ---


def show_help(chat: Chat, argument: str) -> None:
    name = f"/{argument.removeprefix('/')}"
    chosen = {name: COMMANDS[name]} if name in COMMANDS else COMMANDS
    table = Table.grid(padding=(0, 3))
    for command in chosen.values():
        table.add_row(Text(command.usage, style="cyan"), Text(command.text))
    if chosen is COMMANDS:
        table.add_row()
        for keys, text in KEYS.items():
            table.add_row(Text(keys, style="cyan"), Text(text))
    elif COMMANDS[name].kinds:
        for usage, text in KINDS[name].items():
            table.add_row(Text(f"  {usage}", style="cyan"), Text(text))
    chat.notes.print(table)


def end(chat: Chat, argument: str) -> None:  # noqa: ARG001
    chat.ended = True


def clear(chat: Chat, argument: str) -> None:  # noqa: ARG001
    chat.conversation.clear()
    chat.images.clear()
    chat.note("new conversation; the system prompt and the parameters stay")


def system(chat: Chat, argument: str) -> None:
    if argument:
        chat.conversation.system = argument
    text = chat.conversation.system
    chat.note(f"system prompt: {text}" if text else "no system prompt; /system TEXT sets one")


def set_value(chat: Chat, argument: str) -> None:
    kind, _, value = argument.partition(" ")
    conversation, value = chat.conversation, value.strip()
    if kind == "parameter":
        set_parameter(chat, value)
    elif kind == "system":
        system(chat, value)
    elif kind in ("think", "nothink"):
        conversation.think(kind == "think")
        chat.note("the model reasons first" if kind == "think" else "the model does not reason")
    elif kind in ("verbose", "quiet"):
        chat.shows_speed = kind == "verbose"
        chat.note("speed is shown" if chat.shows_speed else "speed is not shown")
    elif kind in ("history", "nohistory"):
        chat.reader.remembers = kind == "history"
        chat.note("lines are remembered" if chat.reader.remembers else "lines are not remembered from now on")
    else:
        known = f"/set {' | '.join(COMMANDS['/set'].kinds)}"
        meant = did_you_mean(kind, list(KINDS["/set"]))
        raise RequestError(with_advice(f"unknown setting {kind!r}", meant, known) if kind else known)


def set_parameter(chat: Chat, argument: str) -> None:
    try:
        name, *values = shlex.split(argument)
    except ValueError as error:
        name, values = "", []
        if argument:
            raise RequestError(f"/set parameter {argument}: {error}; close the quotes") from error
    if not name:
        show_parameters(chat)
        return
    if not values:
        raise RequestError(f"/set parameter {name} needs a value")
    if name != "stop" and len(values) > 1:
        raise RequestError(f"/set parameter {name} has {len(values)} values; it needs one")
    changed = Parameters.read_text([(name, value) for value in values])
    chat.conversation.set(changed.over(chat.conversation.parameters))
    chat.note(f"{name} is {', '.join(values)}")


def show(chat: Chat, argument: str) -> None:
    if argument not in SHOWN:
        known = f"/show {' | '.join(SHOWN)}"
        meant = did_you_mean(argument, list(SHOWN))
        raise RequestError(with_advice(f"unknown kind {argument!r}", meant, known) if argument else known)
    SHOWN[argument](chat)


def show_info(chat: Chat) -> None:
    conversation, manifest = chat.conversation, chat.conversation.manifest
    abilities = ["text", *(["pictures"] if manifest.sees else []), *(["sound"] if manifest.hears else [])]
    rows = {
        "model": manifest.model,
        "architecture": manifest.spec.model_type,
        "weights": f"{quantization_of(manifest)}, for {manifest.target}",
        "runs on": conversation.device,
        "context": f"{conversation.context:,} tokens, of which {conversation.cached_tokens:,} are used",
        "reads": ", ".join(abilities),
    }
    _print_rows(chat, rows)


def show_license(chat: Chat) -> None:
    own = () if chat.stored is None else chat.stored.license
    for text in own:
        chat.notes.print(Text(text))
    origin = chat.conversation.manifest.origin
    if origin is None:
        if not own:
            chat.note("the bundle does not say")
        return
    known = license_of(origin)
    chat.note(f"{stated(origin)}{'' if known is None or not known.url else f', {known.url}'}")


def show_modelfile(chat: Chat) -> None:
    if chat.stored is None:
        raise RequestError("the model was not started by a name of the store; nearfar create makes such a model")
    chat.notes.print(Text(write_modelfile(chat.stored).rstrip()))


def show_parameters(chat: Chat) -> None:
    given = chat.conversation.parameters.given()
    if not given:
        chat.note("no parameters; answers are the likeliest ones. /set parameter temperature 0.7 lets them vary")
        return
    shown_values = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    _print_rows(chat, {name: "  ".join(map(str, values)) for name, values in shown_values.items()})


def show_system(chat: Chat) -> None:
    system(chat, "")


def show_template(chat: Chat) -> None:
    own = None if chat.stored is None else chat.stored.template
    chat.notes.print(Text(chat.conversation.template if own is None else own))


def show_messages(chat: Chat) -> None:
    said = chat.conversation.messages
    if not said:
        chat.note("nothing was said yet")
    for message in said:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [part["text"] if part["type"] == "text" else f"[{part['type'].partition('_')[0]}]" for part in parts]
        chat.notes.print(Text(f"{message['role']}: ", style="bold").append(Text(" ".join(texts), style="not bold")))


def save(chat: Chat, argument: str) -> None:
    if not argument:
        raise RequestError("/save FILE writes the conversation; give the name of a file, such as chat.json")
    file, conversation = _path(argument), chat.conversation
    messages = conversation.messages
    SavedConversation.of(conversation.model, conversation.system, conversation.parameters, messages).write(file)
    chat.note(f"saved {len(messages)} messages to {file}")


def load(chat: Chat, argument: str) -> None:
    if not argument:
        raise RequestError("/load FILE continues a conversation that /save wrote; give its name")
    file, conversation = _path(argument), chat.conversation
    saved = read_saved(file)
    before = conversation.parameters
    conversation.set(saved.parameters)
    try:
        conversation.load(saved.messages, f"{file}: ", file.parent)
    except NearfarError:
        conversation.set(before)
        raise
    conversation.system = saved.system
    chat.images.clear()
    other = f", from a conversation with {saved.model}" if saved.model != conversation.model else ""
    chat.note(f"loaded {len(saved.messages)} messages{other}; /show messages lists them")


def image(chat: Chat, argument: str) -> None:
    if not argument:
        names = ", ".join(str(file) for _, file in chat.images)
        chat.note(
            f"pictures of the next message: {names}" if names else "/image FILE adds a picture to the next message"
        )
        return
    file, manifest = _path(argument), chat.conversation.manifest
    if manifest.images is None or not manifest.sees:
        raise RequestError(f"{manifest.model} sees no pictures; use the bundle of a model that does")
    try:
        data = read_given(file, MAX_IMAGE_BYTES)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {reason_of(error)}") from error
    try:
        pixels = decode_image(data)
        prepare_image(manifest.images, pixels)
    except RequestError as error:
        raise RequestError(f"{file}: {error.message}", **error.details) from error
    chat.images.append((f"data:{_media_type(data)};base64,{base64.b64encode(data).decode()}", file))
    height, width = pixels.shape[:2]
    chat.note(f"{file.name} ({width} × {height}) goes with your next message")


# --- helpers ---


def _print_rows(chat: Chat, rows: Mapping[str, str]) -> None:
    table = Table.grid(padding=(0, 3))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value))
    chat.notes.print(table)


def _path(argument: str) -> Path:
    """The path that was typed, dropped or completed, which may have quotes and backslashes of a shell."""
    typed = Path(argument).expanduser()
    if typed.exists():
        return typed
    try:
        words = shlex.split(argument)
    except ValueError:
        return typed
    return Path(words[0]).expanduser() if len(words) == 1 else typed


def _media_type(data: bytes) -> str:
    starts = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"BM": "bmp", b"RIFF": "webp"}
    return f"image/{next((name for start, name in starts.items() if data.startswith(start)), 'avif')}"


KEYS = {
    '"""': "begins and ends a message of several lines",
    "Alt-Enter": "begins a new line",
    "Ctrl-C": "stops the answer; the conversation goes on",
    "Ctrl-D": "ends the conversation",
    "//": "begins a message with a slash",
}
SHOWN: Mapping[str, Callable[[Chat], None]] = MappingProxyType(
    {
        "info": show_info,
        "license": show_license,
        "messages": show_messages,
        "modelfile": show_modelfile,
        "parameters": show_parameters,
        "system": show_system,
        "template": show_template,
    }
)
KINDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "/set": {
            "parameter NAME VALUE": "such as temperature 0.7; stop takes several",
            "system TEXT": "the system prompt",
            "think, nothink": "let the model reason before it answers, or not",
            "verbose, quiet": "show the speed of answers, or not",
            "history, nohistory": "remember what is typed in a file, or not",
        },
        "/show": {
            "info": "the model, its context and the device",
            "license": "the license of the model",
            "messages": "what was said",
            "modelfile": "the Modelfile of a created model",
            "parameters": "the parameters",
            "system": "the system prompt",
            "template": "the chat template",
        },
    }
)
_SETTINGS = ("parameter", "system", "think", "nothink", "verbose", "quiet", "history", "nohistory")
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "/set": Command(
            "/set parameter NAME VALUE", "change a parameter; /help set lists other settings", set_value, _SETTINGS
        ),
        "/system": Command("/system [TEXT]", "set or show the system prompt", system),
        "/image": Command("/image FILE", "add a picture to the next message", image),
        "/show": Command("/show KIND", f"show {', '.join(SHOWN)}", show, tuple(SHOWN)),
        "/save": Command("/save FILE", "write the conversation to a file", save),
        "/load": Command("/load FILE", "continue a conversation that was saved", load),
        "/clear": Command("/clear", "forget what was said", clear),
        "/help": Command("/help [COMMAND]", "show this help", show_help),
        "/bye": Command("/bye", "end the conversation", end),
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"/?": "/help", "/exit": "/bye", "/quit": "/bye"})
