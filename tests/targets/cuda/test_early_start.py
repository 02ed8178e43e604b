"""Programmatic dependent launch: only kernels of marked cubins, which wait for the previous kernel themselves, may
start before it has ended. The emulated libcuda refuses any other kernel that may.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from emulated import libcuda, library_of

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.targets.cuda.driver import ALL_WAIT

SCRIPT = """
import ctypes, sys
from pathlib import Path
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits

runner = open_runner("cuda", open_bundle(Path(sys.argv[1])), Limits(sequences=2, rows=2, pages=8))
# Captures in the background would count as well.
runner.wait_for_graphs()
before = ctypes.c_uint.in_dll(ctypes.CDLL("libcuda.so.1"), "early_launches").value
runner.forward(make_batch([Chunk([5, 6, 7], 0, [1], [2], slot=0)], 16))
prompt = ctypes.c_uint.in_dll(ctypes.CDLL("libcuda.so.1"), "early_launches").value - before
runner.submit(make_batch([Chunk([-1], 3, [1], [0], slot=0)], 16)).result()
# The step replays its graph, and then those that its sequence needs next are captured in the background.
runner.wait_for_graphs()
decode = ctypes.c_uint.in_dll(ctypes.CDLL("libcuda.so.1"), "early_launches").value - before - prompt
runner.close()
print(prompt, decode)
"""


def test_kernels_that_wait_may_start_early_also_in_graphs(
    cuda_bundle: Path, emulated_cuda: Path, tmp_path: Path
) -> None:
    steps = len(open_bundle(cuda_bundle).manifest.plan("generate").steps)
    prompt, decode = early_launches(cuda_bundle, emulated_cuda)
    # Two steps, of logits that this batch does not request, launch nothing.
    assert prompt >= steps - 2
    assert decode >= steps - 2
    # A cubin of an earlier version has no mark.
    unmarked = shutil.copytree(cuda_bundle, tmp_path / "unmarked")
    manifest = unmarked / MANIFEST_FILE
    for cubin in (unmarked / "kernels").glob("*.cubin"):
        code = cubin.read_bytes()
        assert ALL_WAIT.encode() in code
        changed = code.replace(ALL_WAIT.encode(), ALL_WAIT.upper().encode())
        cubin.write_bytes(changed)
        before, after = (hashlib.sha256(data).hexdigest() for data in (code, changed))
        manifest.write_text(manifest.read_text().replace(before, after))
    assert early_launches(unmarked, emulated_cuda) == [0, 0]


def early_launches(bundle: Path, folder: Path) -> list[int]:
    libraries = [library_of(file.read_text(), folder) for file in sorted((bundle / "kernels").glob("*.cu"))]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libcuda(folder)),
        "NEARFAR_EMULATED": ":".join(map(str, libraries)),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(count) for count in done.stdout.split()]
