"""The parts of the check. Those that only compare run side by side, before those that measure time, which run alone;
among each, the most important results come first.
"""

from __future__ import annotations

from dataclasses import dataclass

# Time limits are longer by this factor in a rehearsal, where a CPU computes everything.
REHEARSAL_PATIENCE = 6
# Requirements of parts. The command checks them before a part starts.
CUDA, NODE, PREPARED = "cuda", "node", "prepared"


@dataclass(frozen=True, slots=True)
class Part:
    """``module`` of this package has ``run(job, report, *arguments)``. ``measures``: its figures are times, so nothing
    else may run meanwhile.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    limit_seconds: float
    needs: tuple[str, ...]
    measures: bool = False


PARTS = (
    Part("cuda-kernels", "cuda_kernels", (), 120, (PREPARED, CUDA)),
    Part("serve", "served", (), 120, (PREPARED, CUDA), measures=True),
    Part("bench-cuda Qwen3-0.6B", "far_bench", ("Qwen3-0.6B",), 150, (PREPARED, CUDA), measures=True),
    Part("bench-cuda Llama-3.1-8B", "far_bench", ("Llama-3.1-8B",), 300, (PREPARED, CUDA), measures=True),
    Part("bench-cuda-projections", "far_projections", (), 120, (PREPARED, CUDA), measures=True),
    Part("compare Llama-3.1-8B", "comparison", ("Llama-3.1-8B",), 200, (PREPARED, CUDA), measures=True),
    Part("compare Qwen3-0.6B", "comparison", ("Qwen3-0.6B",), 200, (PREPARED, CUDA), measures=True),
    Part("persistent-kernel", "persistent_kernel", (), 300, (PREPARED, CUDA), measures=True),
    Part("wgsl on wgpu", "wgpu_kernels", (), 120, (PREPARED,)),
    Part("wgsl on Dawn", "dawn_kernels", (), 180, (PREPARED, NODE)),
    Part("bench-web-gpu Qwen2-0.5B", "near_bench", ("Qwen2-0.5B",), 120, (PREPARED, NODE), measures=True),
    Part("bench-web-gpu Llama-3.2-1B", "near_bench", ("Llama-3.2-1B",), 150, (PREPARED, NODE), measures=True),
    Part("bench-kernels", "near_projections", (), 60, (PREPARED, NODE), measures=True),
    Part("onnx cuda", "onnx_cuda", (), 60, (PREPARED, CUDA)),
    Part("onnx webgpu", "onnx_webgpu", (), 60, (PREPARED, NODE)),
)
