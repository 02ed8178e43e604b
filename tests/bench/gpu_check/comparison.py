"""Our engine beside another on the same GPU in the same call, at a model's shapes with random weights: vLLM where it is
installed, else PyTorch with CUDA graphs, both in 16 bits and in 4, PyTorch also with the kernels of torch.compile.

Each engine is a process. It starts, which ends with the first token of a sequence, and then decodes several numbers of
sequences after the same number of tokens. Ours reads its weights from a file; the others make theirs on the GPU.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .case_worker import emit, lines_within
from .cases import CUDA
from .prepared import bundle_name
from .random_weights import with_random_weights
from .report import NotRun, Report
from .sizes import sizes

if TYPE_CHECKING:
    from .part import Job

# For all engines of a part. torch.compile may not have written kernels for all numbers of sequences by then.
SECONDS = 180.0
OURS = "nearfar, 4 bits"
# In 4 bits, vLLM runs its Marlin kernels for matrices with one scale for as many columns as in our q4f16.
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
VLLM: dict[str, dict[str, Any]] = {"vLLM, 16 bits": {}, "vLLM, 4 bits": {"quantization_config": GPTQ}}
PYTORCH = {"PyTorch, 16 bits": 16, "PyTorch, 4 bits": 4}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# The share of the GPU's memory that vLLM takes.
SHARE = 0.85


def run(job: Job, report: Report, model: str) -> None:
    import cuda.bindings.driver  # noqa: F401

    others = other_engines(rehearse=job.rehearse)
    chosen = sizes(rehearse=job.rehearse)
    bundle = job.prepared / bundle_name(model, CUDA)
    with_random_weights(bundle)
    context, steps = chosen.compared_tokens
    request = {
        "bundle": str(bundle), "config": chosen.far[model].config, "folder": str(job.work), "rehearse": job.rehearse,
        "sequences": chosen.compared, "context": context, "steps": steps, "step_tokens": chosen.step_tokens,
    }  # fmt: skip
    file = job.work / "request.json"
    file.write_text(json.dumps(request))
    engines: list[dict[str, Any]] = []
    speeds: list[dict[str, Any]] = []
    report.add_figures(model=model, context=context, steps=steps)
    names, end = (OURS, *others), time.monotonic() + job.limit(SECONDS)
    for index, name in enumerate(names):
        seconds = (end - time.monotonic()) / (len(names) - index)
        engines.append(measured(name, file, speeds, seconds))
        report.add_figures(engines=engines, speeds=speeds)
    if engines[0]["error"] is not None:
        report.fail(f"{OURS}: {engines[0]['error']}")
    if all(each["start_seconds"] is None for each in engines[1:]):
        report.fail(f"no other engine started: {'; '.join(str(each['error']) for each in engines[1:])}")


def other_engines(*, rehearse: bool) -> tuple[str, ...]:
    """Raises NotRun if there are none."""
    if find_spec("vllm") is not None:
        return tuple(VLLM)
    if find_spec("torch") is None:
        raise NotRun("neither vllm nor torch is installed; both are too large for make gpu-wheels")
    import torch

    if not torch.cuda.is_available() and not rehearse:
        raise NotRun(f"vllm is not installed, and torch {torch.__version__} finds no GPU")
    return tuple(PYTORCH)


def measured(name: str, request: Path, speeds: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The facts of an engine, whose speeds are added to ``speeds``. ``error``: why some are missing."""
    engine: dict[str, Any] = {"engine": name, "start_seconds": None, "error": None}
    started = time.monotonic()
    command = [sys.executable, "-m", "gpu_check.comparison", str(request), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    for line in lines_within(process, seconds):
        if "sequences" in line:
            speeds.append({"engine": name, **line})
        elif engine["start_seconds"] is None:
            line.pop("first_token")
            engine |= {"start_seconds": time.monotonic() - started, **line}
    code = process.wait()
    in_time = timer.is_alive()
    timer.cancel()
    if code:
        engine["error"] = f"its process ended with {code}; see the log" if in_time else f"stopped after {seconds:.0f} s"
    return engine


# --- the engines, each in a process of its own ---


def run_nearfar(request: dict[str, Any]) -> None:
    from bench_cuda import Request, decode, run_through_engine

    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.runtime.batch import Chunk, make_batch
    from nearfar.compiler.runtime.runner import Limits
    from nearfar.targets.cuda.driver import NvidiaDriver
    from nearfar.targets.cuda.runner import CudaRunner

    bundle = open_bundle(Path(request["bundle"]))
    manifest, context, steps = bundle.manifest, request["context"], request["steps"]
    pages = manifest.pages_for(context + steps)

    def open_runner(sequences: int) -> CudaRunner:
        tokens = max(request["step_tokens"], context)
        limits = Limits(tokens=tokens, sequences=sequences, rows=sequences, pages=sequences * pages)
        return CudaRunner(bundle, limits=limits, driver=NvidiaDriver())

    runner = open_runner(1)
    prompt = Chunk([1] * context, 0, range(pages), [context - 1], slot=0)
    runner.forward(make_batch([prompt], manifest.page_size))
    emit(first_token=True, quantization=manifest.quantization)
    runner.close()
    for count in request["sequences"]:
        runner = open_runner(count)
        seconds = decode(runner, count, context, steps)
        requests = [Request(context, steps, []) for _ in range(count)]
        # It closes the runner.
        complete = asyncio.run(run_through_engine(runner, requests))
        emit_speed(count, decode=count / seconds, with_prompts=count * steps / complete)


def run_pytorch(request: dict[str, Any], *, bits: int) -> None:
    import torch

    from .pytorch_decoder import Decoder, Loop, random_weights

    device = "cuda" if torch.cuda.is_available() else "cpu"
    context, steps = request["context"], request["steps"]
    # torch.compile is last, because it takes minutes and may lack a compiler on this machine.
    backends = {"decode": None, "compiled_decode": "eager" if request["rehearse"] else "inductor"}
    with torch.inference_mode():
        decoder = Decoder(request["config"], random_weights(device), bits, device, context + steps)
        positions = torch.arange(context, device=device)
        decoder(torch.ones(1, context, device=device, dtype=torch.long), positions, decoder.cache(1)).argmax().item()
        emit(first_token=True, torch=torch.__version__, device=device)
        for name, backend in backends.items():
            for count in request["sequences"]:
                loop = Loop(decoder, count, context, backend)
                loop.run(steps)
                started = time.perf_counter()
                loop.run(steps)
                emit_speed(count, **{name: count * steps / (time.perf_counter() - started)})


def run_vllm(request: dict[str, Any], *, quantization: dict[str, Any]) -> None:
    import vllm

    config, context, steps = request["config"], request["context"], request["steps"]
    folder = Path(request["folder"]) / "vllm"
    folder.mkdir(exist_ok=True)
    architectures = [ARCHITECTURES[config["model_type"]]]
    (folder / "config.json").write_text(json.dumps({**config, "architectures": architectures, **quantization}))
    options = {"disable_log_stats": True, "enable_prefix_caching": False, "load_format": "dummy"}
    model = vllm.LLM(
        str(folder), dtype="bfloat16", skip_tokenizer_init=True, max_model_len=context + steps,
        max_num_seqs=max(request["sequences"]), gpu_memory_utilization=SHARE, **options,
    )  # fmt: skip

    def generate(count: int, tokens: int) -> None:
        ids = [[1 + (number + 7 * i) % 250 for i in range(context)] for number in range(count)]
        prompts = [{"prompt_token_ids": each} for each in ids]
        choice = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        model.generate(prompts, choice, use_tqdm=False)

    generate(1, 1)
    emit(first_token=True, vllm=vllm.__version__)
    for count in request["sequences"]:
        generate(count, steps)
        started = time.perf_counter()
        generate(count, steps)
        emit_speed(count, with_prompts=count * steps / (time.perf_counter() - started))


def emit_speed(sequences: int, **kinds: float) -> None:
    """New tokens per second: of decode steps alone, and of complete requests with their prompts."""
    emit(sequences=sequences, **{f"{name}_tokens_per_second": value for name, value in kinds.items()})


ENGINES: dict[str, Callable[[dict[str, Any]], None]] = {
    OURS: run_nearfar,
    **{name: partial(run_vllm, quantization=quantization) for name, quantization in VLLM.items()},
    **{name: partial(run_pytorch, bits=bits) for name, bits in PYTORCH.items()},
}

if __name__ == "__main__":
    ENGINES[sys.argv[2]](json.loads(Path(sys.argv[1]).read_text()))
