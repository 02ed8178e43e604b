"""The CUDA C++ of a persistent kernel: the kernels of a decode step, as functions of one kernel that computes the
phases that an array describes.

How a kernel becomes a function: its text stays, with other names for what a launch gives. Its workgroup becomes a team:
some warps of a larger workgroup, with a part of its shared memory. So ``threadIdx`` is the thread's number in the team,
``blockIdx`` the number of a tile, ``__syncthreads`` a barrier of the team's warps, and arrays in shared memory are
places in one pool. Where the kernel waits for the previous kernel, the function waits for the workgroups to end the
previous phase. As before, it has started to copy its first weights by then.

A workgroup has as many threads as its registers allow; as many teams as its threads and the pool allow compute tiles
at the same time. Grids and sizes that depend on the batch are evaluated on the host, once for each size of batches, as
for CUDA graphs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from nearfar.compiler.kernels.cuda.sources import WAIT, source

from .arch import WARP

# A phase in bytes, and the most parameters of its kernel; see `persistent.cuh`.
PHASE_BYTES, MOST_VALUES = 256, 30
# Two phases, of which one is loaded while the other is computed.
PHASES_BYTES = 1024
# Teams have barriers of their own beside that of the workgroup.
MOST_BARRIERS = 16
TEAM_ALIGNMENT = 128
ARRAY_ALIGNMENT = 64
SHARED = re.compile(r"__shared__ alignas\(\d+\) (\w+) (\w+)\[(\d+)\];")
KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+)\) (\w+)\(([^)]*)\) \{')
# What a function cannot have: barriers that count copies must be created once, and a tile has two numbers.
GOES_ON = """  if (!team.may_go_on()) {
    wait_for_copies();
    return;
  }"""
REFUSED = ("create_barrier", "blockIdx.z", "gridDim", "wgmma")


class NotPossible(Exception):
    """Why a kernel cannot be a part of a persistent one."""


@dataclass(frozen=True, slots=True)
class TeamFunction:
    """A kernel as a function: its text, its parameters' types, and the threads and bytes of shared memory of a team."""

    name: str
    text: str
    types: tuple[str, ...]
    threads: int
    shared_bytes: int

    def teams(self, threads: int, pool_bytes: int) -> int:
        """How many teams a workgroup has; 0 if it cannot have one."""
        by_memory = pool_bytes // self.shared_bytes if self.shared_bytes else MOST_BARRIERS
        return min(threads // self.threads, MOST_BARRIERS - 1, by_memory)


def split_kernels(text: str) -> tuple[str, dict[str, str]]:
    """The functions of a file of `source.source_file`, and its kernels by their entries."""
    head, *kernels = re.split(r'(?=^extern "C" __global__)', text, flags=re.MULTILINE)
    return head.strip(), {match[2]: kernel for kernel in kernels if (match := KERNEL.match(kernel))}


def team_function(entry: str, text: str, shared_bytes: int) -> TeamFunction:
    """A kernel as a function. ``shared_bytes`` is what a launch adds. Raises NotPossible."""
    match = KERNEL.match(text)
    assert match is not None, text[:200]
    threads, parameters = int(match[1]), [each.strip() for each in match[3].split(",")]
    types = tuple(each.replace("__restrict__", "").rsplit(maxsplit=1)[0].strip() for each in parameters)
    names = [each.rsplit(maxsplit=1)[1] for each in parameters]
    for word in REFUSED:
        if word in text:
            raise NotPossible(f"{entry} uses {word}")
    if threads % WARP:
        raise NotPossible(f"{entry} has {threads} threads, which are no warps")
    if len(types) > MOST_VALUES:
        raise NotPossible(f"{entry} has {len(types)} parameters, more than {MOST_VALUES}")
    body, place = text[match.end() :], 0

    def array(shared: re.Match[str]) -> str:
        nonlocal place
        dtype, name, length = shared.groups()
        if dtype not in SIZES:
            raise NotPossible(f"{entry} has an array of {dtype} in shared memory")
        start = place
        place = -(-(start + SIZES[dtype] * int(length)) // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT
        return f"{dtype}* {name} = ({dtype}*)(team.shared + {start});"

    body = SHARED.sub(array, body)
    assert "__shared__" not in body, entry
    assert not place or not shared_bytes, entry
    for pattern, replacement in (
        (r"\bthreadIdx\.x\b", "team.thread"),
        (r"\bblockIdx\.([xy])\b", r"team.\1"),
        (r"\bblockDim\.x\b", f"{threads}u"),
        (r"\bdynamic_shared\b", "team.shared"),
        (r"\b__syncthreads\(\)", "team.sync()"),
        # Only where all threads of the team come by.
        (rf"^  {WAIT}\(\);\n\s*allow_next_kernel\(\);", GOES_ON),
    ):
        body = re.sub(pattern, replacement, body, flags=re.MULTILINE)
    if body.count("team.may_go_on()") != 1 or WAIT in body:
        raise NotPossible(f"{entry} does not wait for the previous kernel once, with all threads")
    listed = ", ".join(f"{dtype} {name}" for dtype, name in zip(types, names, strict=True))
    size = -(-max(place, shared_bytes) // TEAM_ALIGNMENT) * TEAM_ALIGNMENT
    return TeamFunction(
        entry, f"__device__ __forceinline__ void {entry}(Team& team, {listed}) {{{body.rstrip()}", types, threads, size
    )


def value(dtype: str, word: str) -> str:
    """A parameter from its 8 bytes. All pointers are to global memory, which the compiler would not know."""
    return f"({dtype})__cvta_global_to_generic({word})" if dtype.endswith("*") else f"({dtype}){word}"


SIZES = {
    **{f"{name}{lanes or ''}": 4 * (lanes or 1) for name in ("float", "int", "uint") for lanes in (0, 2, 4)},
    **{f"half{lanes or ''}": 2 * (lanes or 1) for lanes in (0, 2, 4)},
    **{f"nv_bfloat16{lanes or ''}": 2 * (lanes or 1) for lanes in (0, 2, 4)},
}


def pool_bytes_of(functions: Mapping[str, TeamFunction], threads: int, most_bytes: int) -> int:
    """The shared memory of a workgroup: what the phase with most of it uses."""
    teams = {each: each.teams(threads, most_bytes - PHASES_BYTES) for each in functions.values()}
    return PHASES_BYTES + max(each.shared_bytes * count for each, count in teams.items())


def persistent_source(
    head: str, functions: Mapping[str, TeamFunction], threads: int, most_bytes: int
) -> tuple[str, str]:
    """One self-contained file and the name of its kernel, whose functions are numbered in the order of ``functions``.
    ``head`` are the functions that they call. A workgroup has ``threads`` threads and at most ``most_bytes`` of shared
    memory. Raises NotPossible.
    """
    cases = []
    for number, (name, each) in enumerate(functions.items()):
        teams = each.teams(threads, most_bytes - PHASES_BYTES)
        if not teams:
            raise NotPossible(f"{name} needs {each.threads} threads and {each.shared_bytes} bytes of shared memory")
        values = ", ".join(value(dtype, f"phase.values[{i}]") for i, dtype in enumerate(each.types))
        cases.append(
            f"      case {number}: COMPUTE_TILES({each.threads}u, {teams}u, {each.shared_bytes}u,\n"
            f"        {each.name}(team, {values}))\n        break;"
        )
    listed = "\n".join(cases)
    texts = [each.text for each in functions.values()]
    # Different kernels have different names, as those of templates do.
    entry = f"persistent_{sha256(''.join([*texts, listed, str(threads)]).encode()).hexdigest()[:10]}"
    kernel = f"""extern "C" __global__ void __launch_bounds__({threads}, 1) {entry}(
    const Phase* phases, uint count, uint* arrivals, uint* failed, uint first, long long patience_cycles) {{
  Phase* loaded = (Phase*)dynamic_shared;
  char* shared = (char*)dynamic_shared + {PHASES_BYTES};
  const Rendezvous all = {{arrivals, failed, first, patience_cycles}};
  load_phase(loaded, phases);
  wait_for_copies();
  __syncthreads();
  for (uint number = 0; number < count; number++) {{
    const Phase& phase = loaded[number % 2];
    if (number + 1 < count) load_phase(loaded + (number + 1) % 2, phases + number + 1);
    bool gave_up = false;
    switch (phase.function) {{
{listed}
    }}
    wait_for_copies();
    if (any_of(0, {threads}, gave_up)) return;
    if (threadIdx.x == 0) release_add(arrivals);
  }}
}}"""
    return entry, "\n\n".join([head, source("persistent.cuh"), *texts, kernel]) + "\n"
