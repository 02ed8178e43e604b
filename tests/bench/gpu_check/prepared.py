"""The names of the files that `prepare.py` writes. Standard library only."""

FACTS_FILE = "prepared.json"
KERNELS_FILE, CUBIN_FILE, SOURCE_FILE = "kernels.pickle", "cases.cubin", "cases.cu"
QUESTIONS_FILE, LONG_QUESTION_FILE, PROJECTIONS_FILE = "questions.json", "long_question.json", "projections.json"
CUDA_PROJECTIONS = "cuda-projections"
DEMO_CUDA, DEMO_WEBGPU = "demo-cuda", "demo-webgpu"
DEMO_ONNX_CUDA = "demo-onnx-cuda"
# By the dtype of activations.
DEMO_ONNX_WEBGPU = {dtype: f"demo-onnx-webgpu-{dtype}" for dtype in ("float16", "float32")}


def bundle_name(model: str, target: str) -> str:
    """The bundle without weights that has the shapes of a model."""
    return f"{model}-{target}"
