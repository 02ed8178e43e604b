"""The names of the files that `prepare.py` writes, for steps that run without TVM."""

CASES_FILE, CUBIN_FILE, SOURCE_FILE = "cases.pickle.gz", "cases.cubin", "cases.cu"
DEMO, LARGE = "demo-cuda", "Qwen3-0.6B-cuda"
