"""Reads checkpoints of AutoRound whose weights are in the layout of GPTQ or of AWQ (intel/auto-round,
export/export_to_autoround; the packing formats are those of inference/backend.py).
"""

from __future__ import annotations

import re

from .awq_quant import BITS, AwqQuantization
from .config import ConfigReader
from .gptq_quant import WHOLE_ROW, WIDTHS, GptqQuantization, Grouped

METHODS = ("auto-round", "intel/auto-round")
# The packing formats that store a zero point minus 1, and those that store it as it is.
GPTQ_1, GPTQ_2 = ("auto_round:auto_gptq", "auto_round:gptq"), ("auto_round", "auto_round:gptqmodel")
AWQ = ("auto_round:auto_awq", "auto_round:awq")
# Keys about the quantizer, its kernels, and modules whose tensors show that they are floats.
IGNORED = (
    "act_bits", "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version", "backend",
    "batch_size", "block_name_to_quantize", "dataset", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "enable_quanted_input", "gradient_accumulate_steps", "iters", "low_gpu_mem_usage", "lr", "minmax_lr",
    "modules_to_not_convert", "nsamples", "quant_block_list", "scale_dtype", "seqlen", "static_attention_dtype",
    "static_kv_dtype", "super_bits", "super_group_size", "to_quant_block_names", "train_bs",
)  # fmt: skip


def read_quantization(config: ConfigReader) -> AwqQuantization | GptqQuantization:
    """The section ``quantization_config``. Raises CheckpointError, and UnsupportedModel for another layout."""
    config.expect("quant_method", *METHODS)
    config.expect("data_type", "int")
    config.expect("act_bits", 16, 32, None)
    config.expect("packing_format", *GPTQ_1, *GPTQ_2, *AWQ)
    packing = config.text("packing_format", default=GPTQ_1[0])
    default = _grouped(config, None)
    modules: dict[str, Grouped] = {}
    extra = config.section("extra_config")
    for name in extra.keys() if extra is not None else ():
        section = None if extra is None else extra.section(name)
        # Modules of 16 bits are floats without codes.
        if section is not None and not section.reaches("bits", 16):
            modules[_pattern(name)] = _grouped(section, default)
    config.ignore(*IGNORED)
    config.finish()
    if packing not in AWQ:
        return GptqQuantization(config.where, default, 1 if packing in GPTQ_1 else 0, modules)
    config.expect("bits", BITS)
    config.expect("group_size", 32, 64, 128)
    if any(each.group != default.group or each.bits != BITS for each in modules.values()):
        raise config.unsupported("extra_config", "'extra_config' gives modules in AWQ's layout another bits or group")
    return AwqQuantization(config.where, default.group)


def _grouped(config: ConfigReader, default: Grouped | None) -> Grouped:
    config.expect("bits", *WIDTHS)
    config.expect("group_size", WHOLE_ROW, 32, 64, 128, 256, 512, 1024)
    return Grouped(
        config.integer("bits", default=4 if default is None else default.bits),
        config.integer("group_size", minimum=WHOLE_ROW, default=128 if default is None else default.group),
        config.flag("sym", default=True if default is None else default.symmetric),
    )


def _pattern(name: str) -> str:
    """A regular expression; a name is one if it has characters that no module's name has."""
    return name if re.search(r"[^\w.-]", name) else f"{re.escape(name)}$"
