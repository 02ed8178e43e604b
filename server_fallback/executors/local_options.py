"""LocalOptions: how models are run on this machine."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from nearfar.compiler.names import EXPORTS, WATERMARK_SHARE, WATERMARK_STRENGTH
from nearfar.compiler.options import CatalogUrl, Count, CountOrNone, File, Flag, ModelName, SizeBytes, Trust, options
from nearfar.compiler.pipeline.options import ModelOptions

from ..engine.batching import Batching
from ..images.options import ImageOptions
from ..kv_tiers.options import KvTierOptions
from ..option_types import HANG_SECONDS, WatermarkShare, WatermarkStrength
from .prefill_options import PrefillOptions


@options
class LocalOptions(ModelOptions):
    """``target`` and the options of a model apply to checkpoints that are compiled; bundles have their own. Each
    checkpoint ignores those of the keys that it has. Bundles that are compiled here need no signature.

    ``own_process``: each model's engine gets a process, if the system supports that, which is started again if it is
    silent for ``hang_seconds``. ``shared``: front ends use the models, and this process does not.
    """

    target: Annotated[str | None, Flag(choices=("cpu", "cuda", *EXPORTS))] = None
    """the target to compile for (default: cuda if there is a GPU, else cpu)"""
    catalog: CatalogUrl = None
    max_adapters: Count = 4
    """LoRA adapters that can be loaded at once"""
    max_sequences: Count | None = None
    """answers that are generated at once (default: 32; on a GPU 256)"""
    max_waiting: Count = 256
    """requests that may queue"""
    kv_memory_bytes: Annotated[SizeBytes | None, Flag(("--kv-memory",))] = None
    """memory for the keys and values of a model, such as 4GB"""
    state_snapshots: CountOrNone = 16
    """snapshots of the states of recurrent layers that the prefix cache retains, beside one state for each answer"""
    trust: Trust = ()
    receipt_key: File | None = None
    """sign receipts of answers for clients that request them, with this private key (see nearfar sign)"""
    draft: ModelName | None = None
    """speculative decoding: draft tokens with ngram, with the heads of the model, or with a smaller model that has the
    same tokenizer"""
    draft_tokens: Count = 4
    """tokens drafted at once"""
    remote_drafts: CountOrNone = 16
    """client drafts that a step checks, for all clients together"""
    watermark_key: File | None = None
    """a file with a secret of at least 16 bytes, by which answers are marked so that nearfar watermark detect finds
    them; bundles need nearfar compile --watermark"""
    watermark: Literal["requested", "all"] = "requested"
    """which answers of our own engine are marked: those whose request has watermark: true, or all"""
    watermark_share: WatermarkShare = WATERMARK_SHARE
    watermark_strength: WatermarkStrength = WATERMARK_STRENGTH
    kv_tiers: KvTierOptions = field(default_factory=KvTierOptions)
    """prefixes of prompts that the device evicts"""
    slot_save_path: Annotated[File | None, Flag(metavar="FOLDER")] = None
    """a folder for the files of slots, which clients save and restore as with llama.cpp's server"""
    slot_save_size: SizeBytes = 16 << 30
    """what these files may take together (default: 16 GiB)"""
    batching: Batching = field(default_factory=Batching)
    """models of embeddings and scores on this machine"""
    images: ImageOptions = field(default_factory=ImageOptions)
    """models that read images"""
    prefill: PrefillOptions = field(default_factory=PrefillOptions)
    """prefill and decode on different servers"""
    own_process: bool = False
    hang_seconds: float = HANG_SECONDS
    shared: bool = False
