"""A device of a known speed: with this folder on PYTHONPATH, each step of a cpu bundle takes as long as the costs in
NEARFAR_PACED_COSTS say (JSON of `StepCosts`), however busy the machine is, if it would take less.

Processes that a server starts inherit both variables. So a real server, with its processes, its scheduler and HTTP, has
devices whose speed depends on nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

COSTS = "NEARFAR_PACED_COSTS"


def pace(costs: Mapping[str, Any]) -> None:
    from nearfar.compiler.runtime.batch import Batch
    from nearfar.server_fallback.simulate.costs import StepCosts
    from nearfar.server_fallback.simulate.measure import shape_of_batch
    from nearfar.targets.cpu.runner import CpuRunner

    paced = StepCosts(tuple((at, cost) for at, cost in costs["knots"]), costs["row"], costs["read"], costs["pair"])
    compute = CpuRunner._run

    def run(self: CpuRunner, plan: str, batch: Any, dims: Mapping[str, int]) -> None:
        began = time.perf_counter()
        compute(self, plan, batch, dims)
        if isinstance(batch, Batch):
            left = paced.seconds(shape_of_batch(batch)) - (time.perf_counter() - began)
            time.sleep(max(0.0, left))

    CpuRunner._run = run  # type: ignore[method-assign]


if COSTS in os.environ:
    pace(json.loads(os.environ[COSTS]))
