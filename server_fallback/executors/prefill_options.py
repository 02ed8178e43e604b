"""PrefillOptions: whether a server computes prompts for others, or has its own computed by them."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from nearfar.compiler.options import Count, Flag, Url, options
from nearfar.compiler.runtime.errors import RequestError

from ..option_types import Seconds


@options
class PrefillOptions:
    """``api_key`` is the value of the variable that ``prefill_api_key_env`` names, and ``ca`` the file of --tls-ca."""

    role: Literal["both", "prefill", "decode"] = "both"
    """prefill: compute prompts for decode workers, and answer no requests; decode: let prefill workers compute long
    prompts (default: both, this server alone)"""
    prefill_from: tuple[Url, ...] = ()
    """a prefill worker, http[s]://host:port or unix:PATH; may be repeated; with --executor upstream, one of those of
    the upstream servers"""
    prefill_api_key_env: Annotated[str | None, Flag(metavar="NAME")] = None
    """the environment variable that holds the prefill workers' API key"""
    prefill_tokens: Count = 256
    """prompts with fewer tokens that no cache holds are computed by the decode worker (default: 256)"""
    prefill_seconds: Seconds = 60.0
    """how long a decode worker waits for the pages of a prompt (default: 60)"""
    local_prefill: bool = True
    """if no prefill worker computes a long prompt, fail with prefill_unavailable (default: the decode worker computes
    it)"""

    api_key: str | None = field(default=None, repr=False)
    ca: Path | None = None

    def require_consistent(self, executor: str, front_ends: int) -> None:
        """Raises RequestError."""
        if executor == "upstream":
            if self.role != "both":
                raise RequestError("--role: the upstream servers have roles; leave it out with --executor upstream")
            return
        if executor != "local" and (self.role != "both" or self.prefill_from):
            raise RequestError(
                f"--role and --prefill-from are for models that nearfar runs; --executor {executor} has its own ways"
            )
        if self.role == "decode" and not self.prefill_from:
            raise RequestError("--role decode needs a prefill worker: --prefill-from http://host:port")
        if self.role != "decode" and self.prefill_from:
            raise RequestError(f"--prefill-from is for decode workers, and --role is {self.role}; add --role decode")
        if self.role != "both" and front_ends > 1:
            raise RequestError(f"--role {self.role}: pages pass through one process; leave --front-ends at 1")
