"""Open an export's graph in ONNX Runtime on this machine's CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.runtime.errors import BundleError, DeviceError, ToolError, UnsupportedModel

from .huge_pages import huge_pages

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

PROVIDER = "CPUExecutionProvider"
ERRORS_ONLY = 3
# Threads synchronize five times per layer, and waking one takes as long as a small product. So they spin while they
# wait, but not longer than an attention or a few norms take: a spinning thread occupies a core that other threads,
# including the server's, may need.
SPIN_MICROSECONDS = 50


def open_session(bundle: ExportBundle, threads: int) -> InferenceSession:
    """Raises ToolError if ONNX Runtime is not installed, what `require_runnable` raises, BundleError for a graph that
    it cannot read, and DeviceError if memory is too small.
    """
    require_packages()
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf, RuntimeException

    from .check_graph import check_graph
    from .rows_graph import read_graph, rows_graph

    require_runnable(bundle)
    file = bundle.file(next(entry.file for entry in bundle.manifest.files if entry.file.endswith(".onnx")))
    model = read_graph(file)
    check_graph(model.graph, bundle)
    graph = rows_graph(model) if bundle.manifest.generates else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    # The graph is passed as bytes, so the location of its weights must be passed too.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(file.parent))
    try:
        with huge_pages():
            return onnxruntime.InferenceSession(graph, options, providers=[PROVIDER])
    except (InvalidGraph, InvalidProtobuf) as error:
        raise BundleError(f"{file}: ONNX Runtime cannot read it: {error}; compile the bundle again") from error
    except (MemoryError, RuntimeException, Fail) as error:
        size = bundle.manifest.model_bytes()
        raise DeviceError(
            f"{bundle.path}: ONNX Runtime cannot load its {size / 1e6:,.0f} MB of weights: {error}; "
            "free memory (loading takes twice as much), or compile with a quantization of fewer bits",
            needed_bytes=2 * size,
        ) from error


def require_packages() -> None:
    """Raises ToolError."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ToolError(f"running ONNX bundles needs {error.name}: pip install 'nearfar[onnx]'") from error


def require_runnable(bundle: ExportBundle) -> None:
    """Raises UnsupportedModel for a model that reads more than text, and DeviceError if the graph was made for another
    device.
    """
    spec, device = bundle.manifest.spec, bundle.manifest.device
    if spec.vision is not None:
        raise UnsupportedModel(
            f"{bundle.path}: sees pictures, which nearfar's runner of ONNX bundles does not; load the folder with "
            "Transformers.js or ONNX Runtime, or compile with --target webgpu, cpu or cuda, or with --text-only",
            model_type=spec.vision.model_type,
        )
    if bundle.manifest.transcribes:
        raise UnsupportedModel(
            f"{bundle.path}: reads sound, which nearfar's runner of ONNX bundles does not; load the folder with "
            "Transformers.js or ONNX Runtime, or compile with --target webgpu, cpu or cuda",
            model_type=spec.model_type,
        )
    if device != "cpu":
        raise DeviceError(
            f"{bundle.path}: its graph was made for {device}, and this runner uses only ONNX Runtime's CPU provider; "
            "compile with --device cpu, or run the folder with onnxruntime-genai or Transformers.js",
            device=device,
        )
