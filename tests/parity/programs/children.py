"""Processes: spawn, fork, errors in children, a bare os.fork."""

import multiprocessing as mp
import os
import sys

import torch
from digest import digest, show
from torch import nn

print(f"import of {__name__}", flush=True)


class Task:
    def __init__(self, seed):
        self.seed = seed

    def run(self):
        torch.manual_seed(self.seed)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).pow(2).mean().backward()
            optimizer.step()
        return digest(model), __name__, type(self).__module__


def work(task, queue):
    queue.put(task.run())
    queue.put((sorted(m for m in sys.modules if m.startswith("gradledger")) if "--spawned" in sys.argv else [], sys.argv))


def fail():
    raise ValueError("in a child")


def leave():
    sys.exit(5)


def main():
    torch.set_num_threads(1)
    model = nn.Linear(2, 2)
    for method in sys.argv[1].split(","):
        context = mp.get_context(method)
        queue = context.Queue()
        child = context.Process(target=work, args=(Task(3), queue))
        child.start()
        print(method, queue.get(timeout=250), queue.get(timeout=250))
        child.join()
        print("exit code", child.exitcode, flush=True)
        if method == "fork":
            for target in (fail, leave):
                child = context.Process(target=target, name="child")
                child.start()
                child.join()
                print("exit code", child.exitcode, flush=True)
    model(torch.ones(1, 2)).sum().backward()
    show(model=model)
    print("end of main", flush=True)
    child = os.fork()
    if child == 0:
        print("child goes on", digest(model), flush=True)
        os._exit(3)  # torch itself may hang when Python winds up in a bare fork
    print("status of the child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
