"""The options of the commands of the far side: a dataclass for each, whose docstring is the example of its help."""

from __future__ import annotations

import json
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from nearfar.compiler.cli.option_file import beside_file
from nearfar.compiler.names import RUNNERS, WATERMARK_SHARE
from nearfar.compiler.options import (
    ConfigFile,
    Count,
    CountOrNone,
    File,
    Flag,
    Json,
    ModelName,
    Name,
    SizeBytes,
    Trust,
    Url,
    options,
)

from ..api.config import ApiConfig
from ..api.keys import ApiKey
from ..executors.local_options import LocalOptions
from ..option_types import (
    Dialect,
    NodeAddress,
    Port,
    ShareOrNone,
    WatermarkShare,
    check_between_0_and_1,
    read_duration,
)

Output = Flag(("-o", "--output"))
# An environment variable that holds a key.
Variable = Annotated[str, Flag(metavar="NAME")]
Pairs = Annotated[Path, Flag(metavar="PAIRS")]


def json_object(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        made = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(made, dict):
        raise ValueError(f"{text!r} must be a JSON object")
    return made


def above_zero(value: float) -> None:
    """Raises ValueError."""
    if not value > 0:
        raise ValueError(f"must be above 0, not {value:g}")


def read_api_keys(tables: Any, folder: Path) -> tuple[ApiKey, ...]:  # noqa: ARG001
    """The [[keys]] of a file. Raises ValueError, and RequestError for a wrong key, which it does not quote."""
    from ..api.key_file import keys_of

    return keys_of(tables)


def read_aliases(table: Any, folder: Path) -> tuple[str, ...]:
    """The table [aliases], as --alias has them."""
    if not isinstance(table, dict) or not all(isinstance(model, str) for model in table.values()):
        raise ValueError("must be a table of models by their other names; options come before the first table")
    return tuple(f"{name}={beside_file(model, folder)}" for name, model in table.items())


@options
class Listening:
    """What every server has. The API's keys are read when it starts."""

    config: ConfigFile = None
    """TOML file with these options, their names with underscores, and [[keys]] and [aliases]; SIGHUP reads it again"""
    host: Annotated[str, Flag(metavar="HOST")] = "127.0.0.1"
    """the address to listen on (default: 127.0.0.1, this machine only)"""
    port: Port = 8000
    api_keys: Annotated[File | None, Flag(reloads=True)] = None
    """TOML file with the API keys (also: the variable NEARFAR_API_KEYS, name=key)"""
    keys: Annotated[tuple[ApiKey, ...], Flag(read=read_api_keys, only_in_file=True, reloads=True)] = ()
    """API keys, as in the file of --api-keys"""
    access: ApiConfig = field(default_factory=ApiConfig)
    """access"""


@options
class Upstreams:
    upstream: tuple[Url, ...] = ()
    """an OpenAI-compatible server; repeat the option for replicas"""
    dialect: Dialect = "openai"
    """parameters that the upstream accepts beside OpenAI's: openai (none), vllm, sglang, nearfar"""
    upstream_api_key_env: Variable | None = None
    """the environment variable that holds the upstream's API key"""
    tensor_parallel_size: Count = 1
    """vllm: GPUs that share each layer"""
    pipeline_parallel_size: Count = 1
    """vllm: groups of GPUs that share the layers"""
    data_parallel_size: Count = 1
    """vllm: copies of the model, of which each has tensor times pipeline parallel size GPUs"""
    nodes: Count = 1
    """vllm: machines that share the model, with this one; the others run 'nearfar node'"""
    node_address: NodeAddress | None = None
    """vllm: this machine's address for the other nodes (port: 29600); the key is in NEARFAR_NODE_KEY"""
    master_port: Annotated[Count, Flag(metavar="PORT")] = 29501
    """vllm: its own port for the other nodes"""
    vllm_arguments: Annotated[str, Flag(metavar="TEXT")] = ""
    """further arguments of vllm serve, as one string: '--max-model-len 8192'"""


@options
class Serve(Listening):
    """example: nearfar serve ./Qwen3-0.6B --alias gpt-4o-mini=Qwen3-0.6B --port 8000"""

    models: Annotated[tuple[str, ...], Flag(metavar="MODEL", place=True, reloads=True)] = ()
    """a bundle; a Hugging Face folder or name, compiled on first use; or a model that comes with nearfar, such as demo
    (see nearfar demo --list); without a model, those of the store are served (see nearfar pull), each from its first
    request on"""
    keep_alive: Annotated[float, Flag(metavar="DURATION", parse=read_duration)] = 300.0
    """how long a model of the store stays loaded after its last request, such as 10m; -1 for ever (default: 5m)"""
    pipeline: Annotated[tuple[str, ...], Flag(metavar="FILE")] = ()
    """a JSON file that chains models and stores, served as a model; may be given several times"""
    socket: File | None = None
    """also listen at this Unix socket, to which only this user may connect"""
    grpc_port: Annotated[int | None, Flag(metavar="N")] = None
    """also serve the Open Inference Protocol (KServe v2, Triton) over gRPC; 0 selects a free port"""
    alias: Annotated[tuple[str, ...], Flag(metavar="NAME=MODEL", key="aliases", read=read_aliases, reloads=True)] = ()
    """another name for a model; may be given several times"""
    transcriber: ModelName | None = None
    """a model such as Whisper, served like the others, that writes down the recordings in chats (input_audio)"""
    executor: Literal["local", "vllm", "upstream"] = "local"
    """the program that runs the models (default: this process)"""
    memory: SizeBytes | None = None
    """memory for all models together; a model that exceeds it is not loaded (default: 90% of the device's)"""
    threads: Count | None = None
    """threads of the cpu and onnx targets (default: one per core)"""
    front_ends: Count = 1
    """processes that answer HTTP for all models; more than one for hundreds of streams at once"""
    local: LocalOptions = field(default_factory=LocalOptions)
    """models on this machine; from --quantization to --target: checkpoints that are compiled, bundles have their own"""
    others: Upstreams = field(default_factory=Upstreams)
    """models that other programs run"""


@options
class Gateway(Listening):
    """example: nearfar gateway --near demo --far http://host:8000 --policy policy.json"""

    near: ModelName
    """the model on this machine: a bundle, a Hugging Face folder or name, or demo"""
    trust: Trust = ()
    receipt_key: File | None = None
    """sign receipts of near's answers for clients that request them, with this private key (see nearfar sign)"""
    far: Url
    """the server of the far side"""
    policy: File
    """the routing policy, as JSON"""
    # Not the port of `nearfar serve`, which may be the far side on the same machine.
    port: Port = 8001
    encoder: ModelName | None = None
    """the embedding model of a policy that was fitted with --features embedding, in any form that --near accepts, or
    demo-encoder"""
    transcriber: ModelName | None = None
    """a model such as Whisper, served beside the pair, that writes down the recordings in chats on this machine"""
    finder: ModelName | None = None
    """the classifier of tokens that finds the entities of the policy's private.masks on this machine, in any form that
    --near accepts, or demo-finder"""
    far_api_key_env: Variable | None = None
    """the environment variable that holds the far server's API key"""
    far_model: Name | None = None
    """the far server's name for its model (default: its only model)"""
    far_dialect: Dialect = "nearfar"
    """the far server's kind: nearfar, vllm, or openai"""
    far_vision: bool = False
    """the far server's model accepts images (default: what nearfar serve reports)"""
    far_video: bool = False
    """the far server's model accepts videos (default: what nearfar serve reports)"""
    far_sound: bool = False
    """the far server's model accepts sound in messages (default: what nearfar serve reports)"""
    name: Name | None = None
    """the name of the pair in requests (default: the near model's name)"""


@options
class Node:
    """example: nearfar node 10.0.0.1 --rank 1"""

    head: Annotated[NodeAddress, Flag(place=True)]
    """the first machine, which runs nearfar serve: its --node-address"""
    rank: Count
    """the number of this machine: 1, 2, ...; the first is 0"""


@options
class Verify:
    """example: nearfar verify answer.json --bundle qwen3-cpu --request request.json
    --signed-by server.pem.pub"""

    receipt: Annotated[Path, Flag(metavar="RECEIPT", place=True)]
    """a receipt, or the answer that has it, as JSON"""
    bundle: Annotated[tuple[Path, ...], Flag(metavar="BUNDLE")]
    """the bundle that gave the answer, or its model as for nearfar serve; may be repeated, for an answer of two
    sides"""
    adapter: Annotated[tuple[Path, ...], Flag(metavar="FOLDER")] = ()
    """the LoRA adapter that gave the answer; may be repeated"""
    request: File | None = None
    """the request as it was sent, as JSON, to compute the answer again"""
    signed_by: Annotated[tuple[Path, ...], Flag(metavar="KEY")] = ()
    """accept only receipts that this public key has signed, in PEM; may be repeated (default: any key)"""
    trust: Trust = ()
    runner: Annotated[str | None, Flag(choices=RUNNERS)] = None
    """the runner that computes the answer again (default: the bundle's target)"""
    exact: bool = False
    """accept no difference within rounding"""
    json: Json = False


@options
class WatermarkDetect:
    """example: nearfar watermark detect letter.txt --model ./Qwen3-0.6B --key watermark.key"""

    text: Annotated[Path, Flag(metavar="TEXT", place=True)]
    """a UTF-8 text; - reads standard input"""
    model: ModelName
    """the model that may have written it, or another one with the same tokenizer: a bundle, a checkpoint, a model of
    the store or one that comes with nearfar, or a tokenizer.json"""
    key: File
    """the secret file of the server's --watermark-key"""
    watermark_share: WatermarkShare = WATERMARK_SHARE
    level: Annotated[float, Flag(metavar="P", check=check_between_0_and_1)] = 0.0001
    """the share of other texts that may be taken for marked"""
    min_tokens: Count = 25
    """scored tokens without which nothing is decided"""
    window: Annotated[Count | None, Flag(metavar="N")] = None
    """also look for marked parts of N tokens; the text is marked if one of them is, after a correction for their
    number"""
    json: Json = False


@options
class Index:
    """example: nearfar index ./handbook -o handbook.store --model ./e5-small"""

    folder: Annotated[Path, Flag(metavar="FOLDER", place=True)]
    """documents: text, Markdown, HTML, Word and PDF, in subfolders too"""
    output: Annotated[Path, Output, Flag(metavar="STORE")]
    """the file of the store"""
    model: ModelName
    """an embedding model, as for nearfar serve"""
    passage_tokens: Count = 200
    """the most tokens of a passage"""
    json: Json = False
    trust: Trust = ()


@options
class Decide:
    """example: nearfar decide demo 'dim the lights' --questions questions.json"""

    model: Annotated[ModelName, Flag(place=True)]
    """a model that generates text: a bundle; a Hugging Face folder or name; or demo"""
    context: Annotated[str | None, Flag(metavar="TEXT", place=True)] = None
    """what the questions are about; - or a pipe reads standard input"""
    questions: File
    """JSON: {"urgent": {"type": "yes_no", "question": "Is it urgent?"}}; the types are choice, yes_no, score, labels"""
    fit: Annotated[File | None, Flag(metavar="EXAMPLES")] = None
    """instead of TEXT: JSON lines {"context", "answers": {"urgent": true}}, to which -o fits a calibration"""
    output: Annotated[File | None, Output] = None
    """for --fit: the calibration, which /v1/decide and engine.decide take too"""
    calibration: File | None = None
    """the output of an earlier --fit"""
    abstain_below: Annotated[ShareOrNone | None, Flag(metavar="P")] = None
    """leave a question open whose answer's probability is lower"""
    json: Json = False
    trust: Trust = ()


@options
class RouterLog:
    """example: nearfar router log --near demo --far http://127.0.0.1:8000 --prompts prompts.jsonl -o pairs.jsonl"""

    near: ModelName
    """a bundle; a Hugging Face folder or name; or demo"""
    trust: Trust = ()
    far: Annotated[str, Flag(metavar="URL|MODEL")]
    """an OpenAI-compatible server, or a model in any form that --near accepts"""
    far_model: Name | None = None
    """the server's name for its model (default: its only model)"""
    far_api_key_env: Variable | None = None
    """the environment variable that holds the server's API key"""
    prompts: File
    """JSON lines: {"prompt", "expected" or "accepted"}"""
    count: Count | None = None
    """only the first N prompts (default: all)"""
    max_tokens: Count = 256
    """the longest answer in tokens"""
    concurrency: Count = 32
    """prompts sent at once"""
    output: Annotated[File, Output]
    """write the answers of both sides to this file, as JSON lines"""


@options
class Encoding:
    """What reads the prompts of a policy that decides by their embeddings."""

    encoder: ModelName = "demo-encoder"
    """the embedding model of a policy that reads embeddings, as for nearfar serve"""
    trust: Trust = ()


@options
class RouterFit(Encoding):
    """example: nearfar router fit pairs.jsonl --max-far-share 0.3 -o policy.json"""

    pairs: Annotated[Pairs, Flag(place=True)]
    """the output of 'nearfar router log'"""
    min_quality: Annotated[ShareOrNone | None, Flag(metavar="Q")] = None
    """answer at least this share correctly, with as few far requests as possible"""
    max_far_share: Annotated[ShareOrNone | None, Flag(metavar="S")] = None
    """instead of --min-quality: send at most this share of the prompts to the far side"""
    features: Annotated[tuple[Literal["signals", "embedding"], ...], Flag(several=True)] = ()
    """read these too: near's signals, so that near begins every answer that the policy decides by quality; the
    embedding that --encoder makes of the prompt"""
    output: Annotated[File, Output]
    """the policy"""


@options
class RouterEval(Encoding):
    """example: nearfar router eval held-out.jsonl --policy policy.json --plot eval.png"""

    pairs: Annotated[Pairs, Flag(place=True)]
    """logged pairs that the policy was not fitted on"""
    policy: File
    """the output of 'nearfar router fit'"""
    fitted_on: Pairs | None = None
    """the pairs that the policy was fitted on, for intervals that include the fit's uncertainty"""
    # 40 take about a minute for 2,000 pairs.
    refits: Count | None = None
    """fits to resamples of these pairs (default: 40)"""
    plot: File | None = None
    """draw quality by far share into this file, a PNG or SVG"""
    json: Json = False


@options
class BenchServe:
    """example: nearfar bench serve http://127.0.0.1:8000 --concurrency 1 8 32 --input-tokens 100 1000
    --output-tokens 100 200"""

    url: Annotated[Url, Flag(place=True)]
    """the server, such as http://127.0.0.1:8000"""
    model: Name | None = None
    """the model (default: the first that the server lists)"""
    concurrency: Annotated[tuple[Count, ...], Flag(several=True)] = (1, 4, 8, 16, 32)
    """numbers of clients that send requests at once"""
    requests: Count | None = None
    """requests for each of these numbers (default: four for each client, at least 8)"""
    input_tokens: Annotated[tuple[Count, Count], Flag(metavar=("A", "B"))] = (100, 200)
    """shortest and longest prompt in tokens"""
    output_tokens: Annotated[tuple[Count, Count], Flag(metavar=("A", "B"))] = (32, 64)
    """smallest and largest token limit of answers"""
    prefix_tokens: CountOrNone = 0
    """length of the common prefix of all prompts"""
    seed: int = 0
    """seed of the random lengths and prompts"""
    body: Annotated[dict[str, Any], Flag(metavar="JSON", parse=json_object)] = field(default_factory=dict)
    """further parameters of each request, such as '{"temperature": 0}'"""
    api_key_env: Variable = "NEARFAR_API_KEY"
    """the environment variable that holds the API key"""
    json_file: Annotated[File | None, Flag(("--json",))] = None
    """write the figures to this file"""
    plot: File | None = None
    """draw the figures into this file, a PNG or SVG"""


@options
class Simulate:
    """example: nearfar simulate split.toml --plot split.svg"""

    scenario: Annotated[File | None, Flag(metavar="SCENARIO", place=True)] = None
    """TOML: the device, the load, the workers, and what to find out; see server_fallback/README.md"""
    measure: ModelName | None = None
    """instead of SCENARIO: measure the steps of this model on this machine, and write their costs to -o"""
    output: Annotated[File | None, Output] = None
    """the file of --measure"""
    target: Annotated[str | None, Flag(choices=("cpu", "cuda"))] = None
    """for --measure of a checkpoint: the target to compile for (default: cuda if there is a GPU, else cpu)"""
    rate: Annotated[float | None, Flag(metavar="X", check=above_zero)] = None
    """arrivals a second, instead of the scenario's"""
    requests: Count | None = None
    """requests in all, instead of the scenario's"""
    whole: Count | None = None
    """workers that compute prompts and answers, instead of the scenario's workers"""
    prefill: Count | None = None
    """workers that compute prompts only, with --decode"""
    decode: Count | None = None
    """workers that compute the rest of answers, with --prefill"""
    seed: CountOrNone | None = None
    """the seed of all that is random, instead of the scenario's"""
    plot: File | None = None
    """draw the study into this SVG"""
    force: bool = False
    """replace existing files"""
    json: Json = False
