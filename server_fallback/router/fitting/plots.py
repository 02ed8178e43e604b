"""Plots the quality of each policy by its far share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from nearfar.compiler.runtime.errors import OutputError, ToolError, reason_of

from .evaluation import Evaluation

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"


class LineStyle(NamedTuple):
    label: str
    color: str
    width: float
    dashes: Literal["-", "--", ":"] = "-"


# In the order of the legend.
LINE_STYLES = {
    "oracle": LineStyle("oracle, which knows who is right", "#9ca3af", 1.5, "--"),
    "task": LineStyle("knows the task alone", "#7c3aed", 1.5, "--"),
    "auto": LineStyle("the router", "#2563eb", 2.8),
    "rule": LineStyle("a rule by hand", "#dc2626", 1.6),
    "confidence": LineStyle("near's confidence alone", "#d97706", 1.6),
    "length": LineStyle("the prompt's length alone", "#059669", 1.6),
    "random": LineStyle("random", "#9ca3af", 1.5, ":"),
}


def plot(evaluation: Evaluation, file: Path) -> None:
    """Write a PNG, or the format that the file's extension names.

    Raises ToolError without matplotlib, OutputError if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolError("--plot needs matplotlib: pip install 'nearfar[bench]'") from error
    figure = Figure(figsize=(10.8, 5.0), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    near, far = 100 * evaluation.near_quality, 100 * evaluation.far_quality
    for name, style in reversed(LINE_STYLES.items()):
        if name not in evaluation.policies:
            continue
        figures = evaluation.policies[name]
        axes.plot(
            100 * figures.curve.shares,
            100 * figures.curve.qualities,
            color=style.color,
            linewidth=style.width,
            linestyle=style.dashes,
            label=f"{style.label}   {figures.apgr:.2f}",
            solid_capstyle="round",
        )
    for level, text in ((near, f"all near  {near:.1f} %"), (far, f"all far  {far:.1f} %")):
        axes.axhline(level, color=GRID, linewidth=1, zorder=0)
        axes.annotate(
            text, (100, level), xytext=(6, 0), textcoords="offset points", va="center", color=MUTED, fontsize=9
        )
    share, quality = 100 * evaluation.far_share, 100 * evaluation.quality
    axes.plot(
        [share],
        [quality],
        "o",
        color=LINE_STYLES["auto"].color,
        markersize=9,
        markeredgecolor="white",
        markeredgewidth=1.6,
        zorder=5,
    )
    axes.set_xlim(0, 100)
    axes.set_xlabel("prompts that the far side answers, %", color=INK)
    axes.set_ylabel("right answers, %", color=INK)
    axes.set_title(
        f"Right answers by far share, {evaluation.prompts:,} prompts", loc="left", color=INK, fontsize=13, pad=28
    )
    summary = (
        f"●  the policy's threshold: {share:.0f} % of the prompts go far, {quality:.1f} % of the answers are right"
    )
    axes.annotate(
        summary,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 10),
        textcoords="offset points",
        color=LINE_STYLES["auto"].color,
    )
    axes.grid(axis="both", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(
        handles[::-1],
        labels[::-1],
        title="mean gap recovered (APGR)",
        # Beside the axes, because no corner is free of lines in every evaluation.
        loc="center left",
        bbox_to_anchor=(1.19, 0.5),
        frameon=False,
        fontsize=9.5,
        title_fontsize=9.5,
    )
    legend.get_title().set_color(MUTED)
    try:
        figure.savefig(file, dpi=144)
    except (OSError, ValueError) as error:
        raise OutputError(
            f"--plot {file}: cannot be written: {reason_of(error)}; use a .png or .svg in an existing folder"
        ) from error
