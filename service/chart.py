"""The pictures of `refdraft bench drafts`. They are SVG without a background, for white and dark pages alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from refdraft.errors import NotFoundError, PreconditionError

GREY = "#7f7f7f"  # of text and axes; as easy to read on white as on black
# Okabe and Ito's colours, told apart by colour-blind readers, without black and yellow; markers tell them apart again.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osD^vPX*<>hd"
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "refdraft",  # else ids, and so the file, differ from run to run
}
_FEWEST = 30  # draft nodes that a point stands for
_PANEL = (4.2, 3.4)  # width and height, inches


def require_matplotlib() -> None:
    """Raise where pictures cannot be drawn.

    Raises:
        PreconditionError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise PreconditionError("pictures need matplotlib: pip install 'refdraft[bench]'") from error


def draw_budgets(report: dict[str, Any], path: Path) -> None:
    """Tokens a step against budget: a panel for each data file, a line for each method.

    Args:
        report: what `refdraft bench drafts --json` prints.
        path: SVG to write.
    """
    with _panels(report, path) as panels:
        for panel, data in zip(panels, report["data"], strict=True):
            budgets = sorted({run["budget"] for run in data["runs"]})
            for number, method in enumerate(dict.fromkeys(run["method"] for run in data["runs"])):
                points = sorted((r["budget"], r["tokens_per_step"]) for r in data["runs"] if r["method"] == method)
                places = [budgets.index(budget) for budget, _ in points]
                panel.plot(places, [height for _, height in points], label=method, **_line(method, number))
            panel.set_xticks(range(len(budgets)), [str(budget) for budget in budgets])
            panel.set_xlabel("budget (draft nodes a step at most)")
            panel.set_ylabel("tokens a step")


def draw_reliability(report: dict[str, Any], path: Path) -> None:
    """Predicted against observed survival at the highest budget: a panel for each data file, a line for each depth.

    Bins of few nodes are left out: their share is chance.

    Args:
        report: what `refdraft bench drafts --json` prints, with refdraft or refdraft_chain among the methods.
        path: SVG to write.
    """
    with _panels(report, path) as panels:
        for panel, data in zip(panels, report["data"], strict=True):
            ours = [run for run in data["runs"] if "reliability" in run]
            bins = max(ours, key=lambda run: (run["budget"], run["method"] == "refdraft"))["reliability"]
            panel.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
            for number, depth in enumerate(dict.fromkeys(bin_["depth"] for bin_ in bins)):
                sure = [bin_ for bin_ in bins if bin_["depth"] == depth and bin_["nodes"] >= _FEWEST]
                style = {"color": COLOURS[number], "marker": _MARKERS[number], "markersize": 5, "linewidth": 1.4}
                predicted, observed = ([bin_[key] for bin_ in sure] for key in ("predicted", "observed"))
                panel.plot(predicted, observed, label=f"depth {depth}", **style)
            panel.set_xlabel("predicted survival")
            panel.set_ylabel("observed")


def _line(method: str, number: int) -> dict[str, Any]:
    colour = GREY if "oracle" in method else COLOURS[number % len(COLOURS)]
    dashed = "--" if number >= len(COLOURS) or "oracle" in method else "-"
    return {
        "color": colour,
        "linestyle": dashed,
        "linewidth": 2.6 if method == "refdraft" else 1.4,
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 5,
    }


@contextmanager
def _panels(report: dict[str, Any], path: Path) -> Iterator[list[Any]]:
    """Axes for each data file, labelled and written when the caller has drawn on them."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        width, height = _PANEL
        count = len(report["data"])
        figure = Figure(figsize=(width * count, height + 1), layout="constrained")
        panels = list(figure.subplots(1, count, squeeze=False)[0])
        yield panels
        for panel, data in zip(panels, report["data"], strict=True):
            panel.set_title(f"{Path(data['file']).stem} ({data['traces']} traces)", fontsize=11)
            panel.set_facecolor("none")
            panel.grid(color=GREY, alpha=0.25, linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * count), frameon=False)
        try:
            figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
        except OSError as error:
            raise NotFoundError(f"cannot write {path}: {error.strerror}") from error
