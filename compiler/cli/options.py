"""The options of the compiler's commands: a dataclass for each, whose docstring is the example of its help."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from ..names import ACTIVATIONS, EXPORTS, QUANTIZATIONS, RUNNERS, TARGETS
from ..options import CatalogUrl, Count, File, Flag, Json, ModelName, Name, SizeBytes, Text, Trust, Url, options
from ..pipeline.options import CompileOptions, IgnoredKeys

BundlePlace = Annotated[Path, Flag(metavar="BUNDLE", place=True)]
Output = Flag(("-o", "--output"))
Runner = Annotated[str, Flag(choices=RUNNERS, text="the runner that computes (default: the bundle's target)")]


@options
class Compile:
    """example: nearfar compile ./Qwen3-0.6B --target webgpu --quantization q4f16 -o qwen3-web"""

    model: Annotated[ModelName, Flag(place=True)]
    """a Hugging Face folder, a GGUF file, a repository on the hub such as Qwen/Qwen3-0.6B or
    Qwen/Qwen3-0.6B-GGUF:Q8_0, or demo"""
    output: Annotated[Path | None, Output, Flag(metavar="BUNDLE")] = None
    """the folder to create; --dry-run does not need it"""
    bundle: CompileOptions = field(default_factory=CompileOptions)
    """the bundle"""
    dry_run: bool = False
    """show sizes, memory, dispatches and an estimate of the time; write nothing"""
    json: bool = False
    """print one JSON object instead of progress"""


@options
class Run:
    """example: nearfar run qwen3-web 'Why is the sky blue?' --max-tokens 100"""

    bundle: BundlePlace
    """a folder that nearfar compile made, or the name of a pulled or created model; a checkpoint's folder or demo is
    compiled once into a cache"""
    prompt: Annotated[str | None, Flag(metavar="PROMPT", place=True)] = None
    """the message; - or a pipe reads standard input; without a prompt, a conversation starts"""
    passage: Text | None = None
    """for a reranker: the text whose relevance to the prompt is scored"""
    truncate: bool = False
    """for embeddings and scores: shorten a text that is longer than the context, of a pair the passage"""
    labels: Annotated[tuple[Text, ...], Flag(several=True)] = ()
    """for a model of natural language inference: which of these labels the prompt has"""
    hypothesis_template: Text | None = None
    """with --labels: what a text with a label entails; the label replaces {} (default: This example is {}.)"""
    multi_label: bool = False
    """with --labels: the prompt may have several labels, so that probabilities do not add up to 1"""
    dimensions: int | None = None
    """for embeddings: the length of the vector (default: all numbers)"""
    image: Annotated[tuple[Path, ...], Flag(metavar="FILE")] = ()
    """for a model that sees pictures: one before the message (PNG, JPEG, WebP, GIF, BMP or AVIF); may be repeated"""
    video: Annotated[tuple[Path, ...], Flag(metavar="FILE")] = ()
    """for a model that reads videos: one before the message, after pictures (MP4 or WebM); may be repeated; needs pip
    install 'nearfar[video]'"""
    audio: Annotated[tuple[Path, ...], Flag(metavar="FILE")] = ()
    """a recording before the message, for a model that hears; for others, --transcriber writes down what is said; may
    be repeated"""
    transcriber: Annotated[Path | None, Flag(metavar="BUNDLE")] = None
    """for --audio: the bundle of a Whisper, Moonshine or Parakeet CTC; a checkpoint's folder is compiled once into a
    cache"""
    system: Text | None = None
    """the system prompt: instructions on how to answer"""
    max_tokens: int | None = None
    """at most N tokens per answer (default: that of a created model, else 256, or the rest of the context if that is
    less; in a conversation, the rest of the context)"""
    temperature: Annotated[float | None, Flag(metavar="T")] = None
    """0 always chooses the likeliest token (default, as below, unless a created model has another); 1 samples from the
    model's own distribution"""
    top_p: Annotated[float | None, Flag(metavar="P")] = None
    """sample from the likeliest tokens whose probabilities add up to P (default: 1, all tokens)"""
    top_k: Annotated[int | None, Flag(metavar="K")] = None
    """sample from the K likeliest tokens (default: 0, all tokens)"""
    min_p: Annotated[float | None, Flag(metavar="P")] = None
    """sample from tokens with at least P times the probability of the likeliest one (default: 0, all tokens)"""
    repetition_penalty: Annotated[float | None, Flag(metavar="R")] = None
    """make tokens of the prompt and the answer less likely (default: 1, as likely as before)"""
    frequency_penalty: Annotated[float | None, Flag(metavar="F")] = None
    """make a token less likely each time that the answer has it (default: 0)"""
    presence_penalty: Annotated[float | None, Flag(metavar="F")] = None
    """make a token less likely once the answer has it (default: 0)"""
    stop: tuple[Text, ...] = ()
    """end the answer before this text; may be repeated"""
    seed: int | None = None
    """the same seed gives the same text (default: 0)"""
    runner: Runner | None = None
    catalog: CatalogUrl = None
    raw: bool = False
    """continue the prompt as plain text, without the chat template"""
    split_special_tokens: bool = True
    """with --raw: turn control tokens that the prompt spells out into single tokens"""
    ignore_keys: IgnoredKeys = ()
    trust: Trust = ()
    json: bool = False
    """print one JSON object at the end instead of streaming"""


@options
class Create:
    """example: nearfar create chef -f Modelfile && nearfar run chef"""

    name: Annotated[Name, Flag(place=True)]
    """the name of the model, such as chef or chef:small; a model of that name is replaced"""
    file: Annotated[File, Flag(("-f", "--file"))] = Path("Modelfile")
    """the Modelfile"""
    quantization: Annotated[str | None, Flag(choices=QUANTIZATIONS, metavar="FORMAT")] = None
    """for a checkpoint: the weight format (default: that of the model that it begins with, or of nearfar compile)"""


@options
class Transcribe:
    """example: nearfar transcribe meeting.wav whisper-cpu --format srt -o meeting.srt"""

    sound: Annotated[Path, Flag(metavar="SOUND", place=True)]
    """a WAV file; with pip install 'nearfar[audio]' also FLAC, MP3, Ogg and more"""
    bundle: BundlePlace
    """the bundle of a Whisper, Moonshine or Parakeet CTC, or of a model that hears (Gemma 4); a checkpoint's folder is
    compiled once into a cache"""
    language: Text | None = None
    """the language that is spoken, such as en (default: the model detects it)"""
    translate: bool = False
    """write English, whatever is spoken"""
    timestamps: bool = False
    """write a line for each segment, after its start and end in seconds"""
    format: Literal["text", "json", "verbose_json", "srt", "vtt"] = "text"
    """verbose_json: with all segments; srt, vtt: subtitles (default: text)"""
    output: Annotated[Path | None, Output, Flag(metavar="FILE")] = None
    """the file to write (default: standard output)"""
    prompt: Text | None = None
    """a text that precedes, such as names that occur"""
    continue_text: bool = False
    """each window of 30 s continues the text of those before: more consistent names, but errors may repeat"""
    temperature: Annotated[float | None, Flag(metavar="T")] = None
    """the only temperature (default: 0, then up to 1 while a window's text repeats itself or is unlikely)"""
    seed: int = 0
    """the same seed gives the same text"""
    runner: Runner | None = None
    quiet: bool = False
    """show no progress"""
    ignore_keys: IgnoredKeys = ()
    trust: Trust = ()


@options
class Demo:
    """example: nearfar demo --prompt 'what is 27 + 58?'"""

    bundle: BundlePlace | None = None
    """a webgpu bundle, or a demo model, which is compiled now (default: demo)"""
    prompt: tuple[Text, ...] = ()
    """the prompt to send; may be repeated"""
    screenshot: File = Path("nearfar-demo.png")
    """the file of the screenshot"""
    serve: bool = False
    """serve the page for your own browser until Ctrl-C"""
    encoder: Annotated[Path | None, Flag(metavar="BUNDLE")] = None
    """a webgpu bundle of an embedding model, with which the documents page searches (default: demo-encoder, compiled
    now)"""
    transcriber: Annotated[Path | None, Flag(metavar="BUNDLE")] = None
    """a webgpu bundle of a model that transcribes, or demo-ears, with which the pages for transcripts and voice and the
    chat's microphone write down what is said"""
    finder: Annotated[Path | None, Flag(metavar="BUNDLE")] = None
    """with --serve and --far: a webgpu bundle of a classifier of tokens, or demo-finder; the chat page replaces what it
    finds by placeholders for the server"""
    document: tuple[File, ...] = ()
    """a text, Markdown or HTML file for the documents page; may be repeated"""
    question: Text | None = None
    """with --document: what to ask the documents page (default: can the cloud see my confidential messages?)"""
    far: Url | None = None
    """a server that may answer too, if the policy chooses it: nearfar serve, or a gateway"""
    policy: File | None = None
    """with --far: the policy that chooses the side (default: the page's own)"""
    port: int = 0
    """the port of the page's server on 127.0.0.1 (default: a free one)"""
    list: bool = False
    """list the demo models, which commands accept by name, and their sizes"""


@options
class Models:
    """example: nearfar models gemma3_text"""

    family: Annotated[str | None, Flag(metavar="MODEL_TYPE", place=True)] = None
    """show only this family"""
    markdown: bool = False
    """print the table of the README"""
    json: bool = False
    """print one JSON object per line, instead of a table"""


@options
class Inspect:
    """example: nearfar inspect qwen3-web --context 2048"""

    bundle: BundlePlace
    """a bundle, or a model's config.json or folder (weights may be missing)"""
    target: Annotated[str | None, Flag(choices=TARGETS)] = None
    """for a model: the target (default: webgpu)"""
    quantization: Annotated[str | None, Flag(choices=QUANTIZATIONS, metavar="FORMAT")] = None
    """for a model: the weight format (default: q4f16)"""
    context: int | None = None
    """count memory for sequences of N tokens (default: the bundle's context)"""
    activation: Annotated[str | None, Flag(choices=ACTIVATIONS)] = None
    """count memory for this dtype (default: the bundle's first choice)"""
    verify: bool = False
    """compare every file with its hash first"""
    kernels: bool = False
    """list every kernel that a device may choose, and what tells it from the others"""
    ignore_keys: IgnoredKeys = ()
    trust: Trust = ()
    json: Json = False


@options
class Devices:
    """example: nearfar devices reports --plot devices.svg"""

    folder: Annotated[Path, Flag(metavar="FOLDER", place=True)]
    """a folder of JSON files, each with what probe() of @nearfar/web/probe returned"""
    plot: File | None = None
    """an SVG to write: tokens per second of each device"""
    force: bool = False
    """replace the SVG if it exists"""
    json: Json = False


@options
class Score:
    """example: nearfar score qwen3-web --tokens 1,2,3 -o logits.npy --runner numpy"""

    bundle: BundlePlace
    """a bundle"""
    output: Annotated[File, Output]
    """a .npy file: float32 (n, V), row i predicts token i + 1"""
    tokens: Annotated[str | None, Flag(metavar="IDS")] = None
    """token ids, separated by commas"""
    messages: File | None = None
    """a conversation instead of tokens: JSON with OpenAI's messages; an image_url or video_url has a data: URL, or a
    file's path, an input_audio base64"""
    runner: Runner | None = None
    trust: Trust = ()
    json: Json = False


@options
class Quality:
    """example: nearfar quality qwen3-web qwen3-cpu --reference ./Qwen3-0.6B --text wiki.txt"""

    bundles: Annotated[tuple[str, ...], Flag(metavar="BUNDLE", place=True)]
    """bundles, or models such as a GGUF file or a quantized checkpoint"""
    reference: ModelName
    """the checkpoint, which is computed with numpy in float32"""
    text: File
    """a UTF-8 text; special tokens that it spells out count as special tokens. For embeddings: paragraphs, separated by
    empty lines"""
    window: int | None = None
    """tokens per window (default: 512, or the shortest context); for embeddings, the most tokens of a text (default:
    the context)"""
    windows: int | None = None
    """read only the text's first N windows or paragraphs (default: all)"""
    between: Annotated[tuple[str, str] | None, Flag(metavar=("START", "END"))] = None
    """count only the tokens after START up to END, such as a chat's answers: '<|im_start|>assistant' '<|im_end|>'
    (default: all tokens)"""
    fail_above: float | None = None
    """end with an error if a bundle's mean divergence is more nats than this; for embeddings, if 1 less its mean cosine
    is more (default: only measure)"""
    runner: Runner | None = None
    ignore_keys: IgnoredKeys = ()
    trust: Trust = ()
    json: Json = False


@options
class Export:
    """example: nearfar export qwen3-web --format gguf -o qwen3.gguf"""

    bundle: BundlePlace
    """a bundle for webgpu, cpu or cuda"""
    format: Literal["gguf", "safetensors"]
    """gguf: one file for llama.cpp with the bundle's own integers; safetensors: a folder for transformers with
    floats"""
    output: Annotated[Path, Output, Flag(metavar="PATH")]
    """the file or folder to create"""
    fallback: Literal["f16", "f32"] | None = None
    """for gguf: the type of matrices that no type of GGUF holds exactly: f16 rounds, f32 is exact but large (default:
    such a matrix is an error)"""
    pre: Name | None = None
    """for gguf: llama.cpp's name of the split of words, such as qwen2 (default: the tokenizer's)"""
    tokenizer: bool = True
    """for gguf: leave out the tokenizer; llama.cpp then reads only token ids"""
    dtype: Literal["float16", "float32"] | None = None
    """for safetensors: the dtype of weights (default: float16)"""
    trust: Trust = ()
    force: bool = False
    """replace what an earlier export wrote"""
    json: bool = False
    """print one JSON object instead of progress"""


@options
class Sign:
    """example: nearfar sign --new-key me.pem && nearfar sign qwen3-cpu --key me.pem &&
    nearfar run qwen3-cpu hello --trust me.pem.pub"""

    bundle: BundlePlace | None = None
    """the bundle to sign"""
    key: File | None = None
    """the private key: Ed25519 in PEM, without a password"""
    new_key: File | None = None
    """create a private key; FILE.pub is the public key for --trust"""
    json: Json = False


@options
class Publish:
    """example: nearfar publish ./Qwen3-0.6B --target webgpu --target cpu -o site"""

    models: Annotated[tuple[str, ...], Flag(metavar="MODEL", place=True)]
    """a model, which is compiled now (a folder, a GGUF file, a repository on the hub, or demo), or bundles of one
    model"""
    output: Annotated[Path | None, Output, Flag(metavar="FOLDER")] = None
    """the folder of the site to create, or to add the model to"""
    to: Annotated[str | None, Flag(metavar="PLACE")] = None
    """upload the site: hf:OWNER/NAME, a repository on the Hugging Face Hub; or s3://BUCKET/PREFIX (pip install
    'nearfar[s3]')"""
    name: Name | None = None
    """the name under which the model is loaded (default: the model's, in lower case)"""
    target: Annotated[tuple[str, ...], Flag(choices=(*TARGETS, *EXPORTS))] = ()
    """for a model: a device or framework; may be repeated (default: webgpu)"""
    quantization: Annotated[str | None, Flag(choices=QUANTIZATIONS, metavar="FORMAT")] = None
    """for a model: the weights' format (default: that of nearfar compile)"""
    context: int | None = None
    """for a model: the longest sequence in tokens (default: that of nearfar compile)"""
    quality: Literal["best"] | None = None
    """for a model: best fits the weights to a calibration text; takes longer"""
    reference: ModelName | None = None
    """for bundles: their checkpoint, to measure their quality against and to take its license files from"""
    text: File | None = None
    """the UTF-8 text on which quality is measured (default: one that comes with nearfar)"""
    windows: Count = 4
    """measure quality on the text's first N windows of 512 tokens"""
    measure: bool = True
    """do not measure quality; the card says so"""
    key: File | None = None
    """sign the bundles with this private key (see nearfar sign)"""
    accept_license: Annotated[bool, Flag(("--accept-license", "--accept-licence"))] = False
    """consent to the license's terms, which are shown, or to publishing a model whose license is unknown"""
    base: Url | None = None
    """the address that the site will have, for the snippet (default: relative addresses, or that of --to hf:)"""
    web: bool = True
    """leave out the web library and the chat page"""
    json: bool = False
    """print one JSON object instead of progress"""


@options
class Pull:
    """example: nearfar pull Qwen/Qwen3-0.6B:q8f16 && nearfar run Qwen/Qwen3-0.6B:q8f16"""

    model: Annotated[ModelName, Flag(place=True)]
    """a name on the Hugging Face Hub, such as Qwen/Qwen3-0.6B or Qwen/Qwen3-0.6B-GGUF:Q8_0, the address of a GGUF file,
    a folder, a GGUF file, a bundle, demo, or with --catalog a name in it; a checkpoint may have a colon and the format
    to compile it with, such as :q8f16"""
    name: Name | None = None
    """its name in the store (default: the name on the hub or in the catalog, or that of the folder or file)"""
    catalog: CatalogUrl = None
    """the address or the file of a published site's catalog.json, or hf:OWNER/NAME"""
    output: Annotated[Path | None, Output, Flag(metavar="BUNDLE")] = None
    """with --catalog: a folder for the bundle instead of the store; an older version in it is replaced, and its equal
    files are kept"""
    target: Annotated[str | None, Flag(choices=(*TARGETS, *EXPORTS))] = None
    """with --catalog: the device or framework (default: the one whose bundle fits this machine best)"""
    compile: bool = True
    """do not compile a checkpoint now, but when it is used"""
    ignore_keys: IgnoredKeys = ()
    trust: Trust = ()
    json: Json = False


@options
class List:
    """example: nearfar list"""

    json: Json = False


@options
class Show:
    """example: nearfar show Qwen/Qwen3-0.6B"""

    model: Annotated[Name, Flag(place=True)]
    """a model of the store"""
    verify: bool = False
    """compare every stored file with its hash first"""
    json: Json = False


@options
class Cp:
    """example: nearfar cp Qwen/Qwen3-0.6B qwen"""

    model: Annotated[Name, Flag(place=True)]
    """a model of the store"""
    to: Annotated[Name, Flag(place=True)]
    """the other name, or MODEL:TAG"""


@options
class Rm:
    """example: nearfar rm Qwen/Qwen3-0.6B:q8f16"""

    models: Annotated[tuple[Name, ...], Flag(metavar="MODEL", place=True)]
    """models of the store"""
    json: Json = False


@options
class Prune:
    """example: nearfar prune --max-size 20GB"""

    max_size: SizeBytes | None = None
    """remove compiled bundles, the longest unused first, until the others take this much (default: NEARFAR_CACHE_LIMIT,
    or 50GB)"""
    json: Json = False


@options
class Ps:
    """example: nearfar ps --server http://127.0.0.1:8000"""

    server: Url = "http://127.0.0.1:8000"
    """a server that was started with nearfar serve, or another one with Ollama's API"""
    api_key_env: Annotated[str, Flag(metavar="NAME")] = "NEARFAR_API_KEY"
    """the environment variable that holds the API key, if the server has keys"""
    json: Json = False
