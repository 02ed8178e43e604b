"""The decision: a policy and a situation flow in, who answers and why flows out. Pure, and total: every situation has an answer.

Hard rules first (private, the mode, what a side lacks, a pin), then preference, then what the device, the clock, the costs and the predictor say.
"""

from __future__ import annotations

from .decision import Decision
from .policy import Policy
from .situation import Situation


def decide(policy: Policy, situation: Situation) -> Decision:
    """Raises RequestError with the code "unknown_label" for a label that the policy does not have, and for nothing else."""
    raise NotImplementedError
