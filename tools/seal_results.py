"""Write docs/results/seal_scout.md and its figures from a run: `python tools/seal_results.py runs/seal`."""

from __future__ import annotations

import sys

import _results_page

FIGURES = {f"{name}.png": f"seal_{name}.png" for name in ("crops", "leak", "shortcut", "risk", "worst", "curves")}

if __name__ == "__main__":
    sys.exit(_results_page.Page("seal_results", "seal_scout", "runs/seal", FIGURES).main())
