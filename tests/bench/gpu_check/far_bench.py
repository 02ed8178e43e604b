"""`bench_cuda.py` at a model's shapes: the time of every kernel, one sequence, and nano-vllm's workload."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from nearfar.compiler.ir.sampling import Settings

from . import machine
from .cases import CUDA
from .prepared import bundle_name
from .random_weights import with_random_weights
from .report import Report
from .sizes import sizes

if TYPE_CHECKING:
    from nearfar.compiler.bundle.folder import Bundle

    from .part import Job
    from .sizes import Sizes

# How the tokens of many rows are chosen, with a draw for each.
SETTINGS = {
    "temperature": Settings(temperature=1, draw=0.5),
    "top_p": Settings(temperature=1, top_p=0.95, draw=0.5),
    "top_k_top_p": Settings(temperature=1, top_k=50, top_p=0.95, draw=0.5),
}
# The share of the GPU's memory for weights, keys and values.
SHARE = 0.85


def run(job: Job, report: Report, model: str) -> None:
    import cuda.bindings.driver  # noqa: F401
    from bench_cuda import kernel_times, measure_alone, measure_copies, measure_many, print_times, step_shares

    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.targets.cuda.driver import NvidiaDriver

    chosen = sizes(rehearse=job.rehearse)
    folder = job.prepared / bundle_name(model, CUDA)
    with_random_weights(folder)
    bundle = open_bundle(folder)
    activation = bundle.manifest.activations[0].dtype
    driver = NvidiaDriver()
    copy_speed = measure_copies(driver, chosen.copy_bytes)
    report.add_figures(
        device=driver.name, model=model, quantization=bundle.manifest.quantization, activation=activation,
        copy_gigabytes_per_second=copy_speed / 1e9,
    )  # fmt: skip
    driver.close()
    alone = measure_alone(bundle, NvidiaDriver(), copy_speed, chosen.lengths[0], chosen.alone_tokens)
    report.add_figures(alone=asdict(alone))
    sequences = sequences_that_fit(bundle, chosen)
    if sequences < chosen.sequences:
        report.add_figures(sequences_limited_by_memory=sequences)
    many = measure_many(bundle, NvidiaDriver(), sequences, chosen.lengths, chosen.step_tokens)
    report.add_figures(many=asdict(many))
    driver = NvidiaDriver()
    times = kernel_times(bundle, driver, activation, chosen.kernel_batches)
    driver.close()
    print_times(times)
    report.add_figures(kernels=[asdict(each) for each in times], steps=step_shares(times))
    for name, settings in SETTINGS.items():
        driver = NvidiaDriver()
        times = kernel_times(bundle, driver, activation, [(chosen.sequences, 1)], settings)
        driver.close()
        report.add_figures(**{f"sample_{name}": [asdict(each) for each in times]})


def sequences_that_fit(bundle: Bundle, chosen: Sizes) -> int:
    """The number of requests, from the first on, whose keys and values fit into the GPU's memory together with the
    weights.
    """
    from bench_cuda import workload

    from nearfar.compiler.measure.report import make_report

    costs = make_report(bundle.manifest)
    memory = machine.cuda_device()["memory_gigabytes"] * 1e9 * SHARE - costs.weight_bytes
    page_bytes = costs.kv_bytes_per_token * bundle.manifest.page_size
    requests = workload(chosen.sequences, chosen.lengths, bundle.manifest.page_size)
    fitting = [request for request in requests if (request.pages[-1] + 1) * page_bytes <= memory]
    return max(1, len(fitting))
