"""What each part of the DQN recipe costs: start-up, data, forward, update, environment, evaluation, each apart.

    python benchmarks/dqn.py --game pong --out OUT.json       the same as `gradledger bench dqn`, see its --help

Sweep and autograd, fp32 and bf16, each in a process of its own, one after the other; on a machine that others use, read
the CPU column.
"""

from __future__ import annotations

import sys

from gradledger.cli.main import entry

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "dqn"]
    entry()
