"""Fixtures that several test files share: tiny checkpoints and bundles, and the tools of this machine.

A test that needs a missing tool is skipped, and the summary prints the reason. If CI is set, it fails instead.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from light_bundle import few_kernels, kernels_for, lighten, one_compilation
from made_once import kept_folder, made_once, shared_folder
from onnx_bundles import export_onnx as export_onnx
from onnx_bundles import onnx_checkpoints as onnx_checkpoints
from time_limit import pytest_addoption as pytest_addoption
from time_limit import pytest_runtest_protocol as pytest_runtest_protocol
from tiny_models import (
    CHECKPOINTS,
    VOCAB_SIZE,
    WIDE_CHECKPOINTS,
    make_checkpoint,
    make_embedding_checkpoint,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

    from nearfar.compiler.bundle.folder import Bundle

ROOT = Path(__file__).parents[1]
# Debian's chromium includes SwiftShader, a Vulkan driver that runs on the CPU.
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
# The folders whose files take longest, in this order.
LONGEST = ("web", "mobile", "targets")

# How long a page may take for a step: the machine may be busy.
TIMEOUT_MS = 180_000

CompileTiny = Callable[..., Path]

# Each process of pytest has one core. OpenMP's threads spin while they wait for each other, so with more threads than
# free cores, a torch model that decodes in 0.2 s took minutes. torch and numpy read these variables when they are
# imported. The cpu target reads the last one: after each batch, its threads look for the next one for milliseconds.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NEARFAR_THREADS"):
    os.environ.setdefault(name, "1")

# lavapipe compiles a kernel with all of LLVM's optimizations, in up to seconds, and then runs it for milliseconds.
os.environ.setdefault("GALLIVM_PERF", "nopt")

# All runs share compiled kernels, also the servers that tests start. A run uses a quarter of the cache's limit.
os.environ.setdefault("NEARFAR_KERNEL_CACHE", str(ROOT / "build/kernels"))

# torch imports triton if it is installed, and triton's LLVM crashes if lavapipe has loaded its own. None makes the
# import fail.
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]


def pytest_configure(config: pytest.Config) -> None:
    """Print the reason of every skip, let Hypothesis start fast, and let it wait for a busy machine."""
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"
    # What an example takes, and what it takes to make one, says nothing about the code.
    unhurried = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
    settings.register_profile("unhurried", settings.default, deadline=None, suppress_health_check=unhurried)
    settings.load_profile("unhurried")
    # Hypothesis draws from the constants in the code as well, but needs seconds to parse all of it.
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", Constants)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that no process is left with one of them at the end."""
    # Parts of paths take a second for all tests; the first part of an id after "tests" takes none.
    orders = {f"tests/{name}/": order for order, name in enumerate(LONGEST)}
    items.sort(key=lambda item: next((orders[each] for each in orders if item.nodeid.startswith(each)), len(orders)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collections, leave the modules and tests out of all later ones, and make those
    rarer: tests make many objects, few of which are in cycles.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def lacks(reason: str) -> NoReturn:
    """Skip a test because this machine lacks something, or fail it if CI is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI is set, so this is not skipped)")
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """XDG_RUNTIME_DIR, without which graphics drivers print complaints."""
    with pytest.MonkeyPatch.context() as patch:
        if "XDG_RUNTIME_DIR" not in os.environ:
            folder = tmp_path_factory.mktemp("runtime")
            folder.chmod(0o700)
            patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """After a file, collect what its tests have left open: the warning about it fails this file instead of the one in
    which it happens to be collected. What is left is not looked at again.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """The loggers as they were before the test: commands that serve configure them."""
    loggers = [logging.getLogger(name) for name in ("nearfar", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def compiled_once() -> Iterator[None]:
    """Used by tests that compile a bundle of their own for cpu or cuda, and whose subject is not the compiled code."""
    with one_compilation():
        yield


@pytest.fixture(scope="session")
def tiny_checkpoints() -> Mapping[str, Path]:
    """The folders of all checkpoints of `tiny_models.py` by name, and that of the embedding model, "embedding"."""

    names = (*CHECKPOINTS, *WIDE_CHECKPOINTS)

    def make(folder: Path) -> None:
        for name in names:
            make_checkpoint(name, folder / name)
        make_embedding_checkpoint(folder / "embedding")

    folder = made_once(kept_folder("tiny") / "checkpoints", make)
    return {name: folder / name for name in (*names, "embedding")}


@pytest.fixture(scope="session")
def compile_tiny(tiny_checkpoints: Mapping[str, Path]) -> CompileTiny:
    """compile_tiny(checkpoint, quantization, **options) -> the bundle's folder. Each bundle is compiled once, by the
    first worker that needs it. Tests must not change it.
    """
    return compiler_of(tiny_checkpoints, kept_folder("bundles"))


@pytest.fixture(scope="session")
def compile_light(tiny_checkpoints: Mapping[str, Path]) -> CompileTiny:
    """As `compile_tiny`, but with few kernels: for tests that read the manifest, or run a model on wgpu."""
    return compiler_of(tiny_checkpoints, kept_folder("light-bundles"), few_kernels)


@pytest.fixture(scope="session")
def compile_numpy(tiny_checkpoints: Mapping[str, Path]) -> CompileTiny:
    """As `compile_tiny`, but without kernels: for tests of the reference runner."""
    from plain_target import without_kernels

    return compiler_of(tiny_checkpoints, kept_folder("numpy-bundles"), lambda: without_kernels(in_float32=False))


@pytest.fixture(scope="session")
def compile_base(tiny_checkpoints: Mapping[str, Path]) -> CompileTiny:
    """As `compile_tiny`, but inside `one_compilation`: for tests of runners for cpu."""
    return compiler_of(tiny_checkpoints, kept_folder("base-bundles"), one_compilation)


def compiler_of(
    checkpoints: Mapping[str, Path], folder: Path, inside: Callable[[], AbstractContextManager[None]] = nullcontext
) -> CompileTiny:
    """Compiles each bundle of the checkpoints once into the folder, ``inside`` a context."""
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_any

    def compile_once(checkpoint: str, quantization: str = "q4f16", **options: Any) -> Path:
        chosen = CompileOptions(quantization=quantization, **{"context": 256, **options})
        name = hashlib.sha256(repr(chosen).encode()).hexdigest()[:12]
        with inside():
            return made_once(
                folder / f"{checkpoint}-{quantization}-{name}",
                lambda path: compile_any(str(checkpoints[checkpoint]), path, chosen),
            )

    return compile_once


@pytest.fixture(scope="session")
def two_plans(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """two_plans(target, **options) -> a bundle of a tiny qwen3 (q4f16) that both generates and embeds text, without a
    self-test.
    """
    from nearfar.compiler.arch import by_model_type
    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.pipeline import compile as compiler
    from nearfar.compiler.pipeline.graphs import PAGE_SIZE
    from nearfar.compiler.runtime.runner import Limits

    folder = shared_folder(tmp_path_factory, "two-plans")

    def graphs_of(checkpoint: Any, context: int) -> dict[str, Any]:
        forward = by_model_type(checkpoint.spec.model_type).forward
        return {
            name: forward(checkpoint.spec, PAGE_SIZE, context, embeds=name == "embed") for name in ("generate", "embed")
        }

    def make(path: Path, options: Any) -> None:
        # On wgpu, a test looks at all kernels.
        few = (
            nullcontext()
            if options.target == "webgpu"
            else kernels_for(Limits(tokens=40, sequences=1, rows=1, pages=4))
        )
        with pytest.MonkeyPatch.context() as patch, one_compilation(), few:
            patch.setattr(compiler, "graphs_of", graphs_of)
            compiler.compile_model(str(tiny_checkpoints["qwen3"]), path, options)

    def compile_once(target: str, **more: Any) -> Bundle:
        options = compiler.CompileOptions(target=target, context=256, self_test=False, **more)
        return open_bundle(made_once(folder / target, lambda path: make(path, options)))

    return compile_once


@pytest.fixture(scope="session")
def tiny_bundle(compile_tiny: CompileTiny) -> Path:
    """A bundle of qwen3 (q4f16) for 256 tokens. Its expected.json holds a prompt of 75 tokens and the 64 tokens that
    the reference runner then generates greedily with float32 activations.
    """
    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.ir.sampling import Sampler
    from nearfar.compiler.runtime.generate import generate
    from nearfar.compiler.runtime.reference import ReferenceRunner

    path = compile_tiny("qwen3", "q4f16")

    def answer(file: Path) -> None:
        prompt = [(7 * i * i + 11 * i + 3) % VOCAB_SIZE for i in range(75)]
        token_ids = list(generate(ReferenceRunner(open_bundle(path), activation="float32"), prompt, 64, Sampler()))
        assert len(token_ids) == 64
        file.write_text(json.dumps({"prompt_token_ids": prompt, "token_ids": token_ids}))

    made_once(path / "expected.json", answer)
    return path


@pytest.fixture(scope="session")
def windowed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny gemma4_text (f32) for 256 tokens, with two page groups, layers that share keys and values, and
    few kernels. Tests must not change it.
    """
    from decoder_families import make_family

    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        checkpoint = tmp_path_factory.mktemp("windowed")
        make_family("gemma4_text", checkpoint)
        with few_kernels():
            compile_model(str(checkpoint), folder, CompileOptions(quantization="f32", context=256))

    return made_once(kept_folder("windowed") / "bundle", make)


@pytest.fixture(scope="session")
def light_demo() -> Path:
    """The demo model, q4f32, with few kernels, for tests in a browser. Tests must not change it."""
    from nearfar.compiler.demo import CHECKPOINT
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        with few_kernels():
            compile_model(str(CHECKPOINT), folder, CompileOptions(quantization="q4f32", activations=("float32",)))
        lighten(folder)

    return made_once(kept_folder("bundles") / "light-demo", make)


@pytest.fixture(scope="session")
def plain_demo() -> Path:
    """The demo model, f32, without kernels, for tests of the engine on the reference runner. Tests must not change
    it.
    """
    from plain_target import compile_plain

    from nearfar.compiler.demo import CHECKPOINT

    return made_once(
        kept_folder("bundles") / "plain-demo", lambda folder: compile_plain(CHECKPOINT, folder, "f32", 512)
    )


@pytest.fixture(scope="session")
def prompt_token_ids() -> list[int]:
    """75 ids: four complete pages of 16 and part of a fifth, two tiles of 32 and part of a third."""
    import numpy as np

    return [int(token) for token in np.random.default_rng(0).integers(0, VOCAB_SIZE, 75)]


@pytest.fixture(scope="session")
def transformers_logits(
    tiny_checkpoints: Mapping[str, Path], prompt_token_ids: list[int]
) -> Callable[[str], npt.NDArray[np.float32]]:
    """The logits (75, V) that transformers computes for the prompt, by checkpoint."""
    import torch
    import transformers

    done: dict[str, npt.NDArray[np.float32]] = {}

    def logits(checkpoint: str) -> npt.NDArray[np.float32]:
        if checkpoint not in done:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                tiny_checkpoints[checkpoint], dtype=torch.float32
            ).eval()
            with torch.no_grad():
                done[checkpoint] = model(torch.tensor([prompt_token_ids])).logits[0].numpy()
        return done[checkpoint]

    return logits


@pytest.fixture(scope="session")
def vulkan(runtime_folder: None) -> None:  # noqa: ARG001
    """Used by tests that need a wgpu adapter."""
    import wgpu

    if all(adapter.info["backend_type"] == "OpenGL" for adapter in wgpu.gpu.enumerate_adapters_sync()):
        lacks("wgpu finds no Vulkan adapter (Debian: apt-get install mesa-vulkan-drivers)")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium. Skips the test if the page is not built."""
    from nearfar.compiler.browser.chromium import find_chromium
    from nearfar.compiler.browser.page_server import PAGE
    from nearfar.compiler.runtime.errors import ToolError

    if not (PAGE / "index.html").is_file():
        lacks(f"{PAGE} is not built ('make web')")
    try:
        return find_chromium()
    except ToolError as error:
        lacks(error.message)


# One Chromium for all files in a row that need one, because it takes seconds to start. Playwright's event loop runs in
# this thread until it is stopped, and two cannot run at once, so a file without the fixture must not find it running.
BROWSER: pytest.StashKey[tuple[Playwright, Browser]] = pytest.StashKey()


@pytest.fixture(scope="module")
def browser(chromium: str, request: pytest.FixtureRequest) -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    from nearfar.compiler.browser.chromium import FLAGS

    # Chromium without its own windows computes our pages with a quarter less of CPU time.
    executable = shutil.which("chromium-headless-shell") or chromium
    stash = request.config.stash
    if BROWSER in stash and not stash[BROWSER][1].is_connected():
        close_browser(stash)
    if BROWSER not in stash:
        playwright = sync_playwright().start()
        # Pages may use the camera and the microphone that Chromium makes up, which show a clock and beep.
        arguments = [*FLAGS, "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        stash[BROWSER] = playwright, patient(playwright.chromium.launch(executable_path=executable, args=arguments))
        expect.set_options(timeout=TIMEOUT_MS)
    browser = stash[BROWSER][1]
    yield browser
    # The next file finds it as new.
    for context in browser.contexts:
        context.close()


def patient(browser: Browser) -> Browser:
    """Let all its pages wait as long as a busy machine needs."""
    new_context, new_page = browser.new_context, browser.new_page

    def patient_context(**options: Any) -> BrowserContext:
        context = new_context(**options)
        context.set_default_timeout(TIMEOUT_MS)
        return context

    def patient_page(**options: Any) -> Page:
        page = new_page(**options)
        page.set_default_timeout(TIMEOUT_MS)
        return page

    browser.new_context, browser.new_page = patient_context, patient_page  # type: ignore[method-assign]
    return browser


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Close the browser after the last test of a file, unless a test of the next file needs it."""
    yield
    if BROWSER in item.config.stash and (nextitem is None or nextitem.path != item.path):
        of_next = [each for each in item.session.items if nextitem is not None and each.path == nextitem.path]
        if not any("browser" in getattr(each, "fixturenames", ()) for each in of_next):
            close_browser(item.config.stash)


def close_browser(stash: pytest.Stash) -> None:
    playwright, browser = stash[BROWSER]
    del stash[BROWSER]
    browser.close()
    playwright.stop()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node. Skips the test if the web package's dependencies are not installed."""
    found = shutil.which("node")
    if found is None:
        lacks("node is not installed (Node.js 20 or later)")
    if not (ROOT / "web/node_modules/webgpu").is_dir():
        lacks("web/node_modules/webgpu is not installed (npm ci in web/)")
    return found


@pytest.fixture(scope="session")
def swiftshader(node: str, runtime_folder: None) -> Mapping[str, str]:  # noqa: ARG001
    """The environment in which Dawn in Node finds SwiftShader."""
    if not SWIFTSHADER.is_file():
        lacks(f"{SWIFTSHADER} is not there (Debian: apt-get install chromium)")
    return {**os.environ, "VK_ICD_FILENAMES": str(SWIFTSHADER)}


@pytest.fixture(scope="session")
def nvrtc() -> None:
    """Used by tests that compile for CUDA."""
    from nearfar.compiler.runtime.errors import ToolError
    from nearfar.targets.cuda.nvrtc import load_nvrtc

    try:
        load_nvrtc()
    except ToolError as error:
        lacks(error.message)


@pytest.fixture(scope="session")
def mlx() -> Any:
    """The module mlx.core."""
    from nearfar.compiler.runtime.errors import ToolError
    from nearfar.targets.mlx.framework import load_mlx

    try:
        return load_mlx()
    except ToolError as error:
        lacks(error.message)


@pytest.fixture(scope="session")
def emulated_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of CUDA kernels compiled for the CPU, shared by all workers. Skips the test without a C++ compiler."""
    from emulated import find_compiler

    if find_compiler() is None:
        lacks("neither g++ nor clang++ nor the package ziglang is installed to compile emulated CUDA kernels")
    return shared_folder(tmp_path_factory, "emulated")


@pytest.fixture(scope="session")
def cuda_bundle(compile_tiny: CompileTiny, nvrtc: None) -> Path:  # noqa: ARG001
    """A bundle of a tiny qwen3 for CUDA (q4f16, 300 tokens, float16 activations)."""
    return compile_tiny("qwen3", "q4f16", target="cuda", context=300, activations=("float16",), self_test=False)
