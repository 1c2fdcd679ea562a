"""The picture of real_decoding.py's figures.

.venv/bin/python benchmarks/decoding/chart.py    # benchmarks/results/real_decoding.svg from the summaries beside it
"""

import json
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from refdraft.service.chart import COLOURS, GREY, STYLE

RESULTS = Path(__file__).resolve().parent.parent / "results"
DTYPES = ("float32", "bfloat16")
METHODS = ("refdraft", "prompt_lookup", "suffix_decoding")
WIDTH = 0.27  # of a bar, where sets are 1 apart


def draw() -> None:
    """Speed against plain decoding: a panel for each dtype, a group of bars for each set, a bar for each method."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 4), layout="constrained")
        panels = figure.subplots(1, len(DTYPES), sharey=True)
        for panel, dtype in zip(panels, DTYPES, strict=True):
            sets = json.loads((RESULTS / f"real_decoding_{dtype}.json").read_text(encoding="utf-8"))["sets"]
            for number, method in enumerate(METHODS):
                speeds = [figures["pairs"][f"{method} / plain"]["speed"]["median"] for figures in sets.values()]
                places = [place + (number - 1) * WIDTH for place in range(len(sets))]
                panel.bar(places, speeds, WIDTH, color=COLOURS[number], label=method.replace("_", " "))
            panel.axhline(1, color=GREY, linewidth=1, linestyle="--")
            panel.set_xticks(range(len(sets)), [f"{name.split('_')[0]}\n({f['prompts']})" for name, f in sets.items()])
            panel.set_title(dtype, fontsize=11)
            panel.set_facecolor("none")
            panel.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("times as fast as plain (median)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS), frameon=False)
        figure.savefig(RESULTS / "real_decoding.svg", format="svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw()
