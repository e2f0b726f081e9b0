"""Write docs/results/arm6_policy.md and its figures from a run: `python tools/arm6_results.py runs/arm6`."""

from __future__ import annotations

import sys

import _results_page

FIGURES = {name: f"arm6_{name}" for name in ("trajectories.png", "curves.png", "episode.png", "episode.gif")}

if __name__ == "__main__":
    sys.exit(_results_page.Page("arm6_results", "arm6_policy", "runs/arm6", FIGURES).main())
