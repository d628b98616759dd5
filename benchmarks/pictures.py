"""Pictures for the docs: the same bytes for the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """Matplotlib's, which draws SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ringcore", "svg.fonttype": "none", "font.size": 8, "axes.titlesize": 8})
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """With a grid and a legend in each of its axes."""
    for axes in figure.axes:
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
