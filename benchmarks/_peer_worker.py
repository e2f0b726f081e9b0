"""Runs scripts under a peer of the audit, each in a forked child: `python _peer_worker.py TOOL FOLDER`, names on stdin.

For each name one JSON line: {"findings", "cpu", "broke"}.  It runs in the interpreter that has the peers, so it imports
nothing of this project.  The parent imports torch and the tool and never runs a script.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import nn

LIMIT_S = 600.0  # wall; the machine may be loaded
KEEP = 40  # findings of one rule and place are merged, and no script needs more


class Hook:
    """Makes the edit that a tool asks for, at the moment when a person's edit would run."""

    def __init__(self) -> None:
        self.modules: dict[int, weakref.ref[nn.Module]] = {}  # in order of their making
        self.called: dict[int, weakref.ref[nn.Module]] = {}  # those that the program itself called with gradients on
        self.optimizers: list[torch.optim.Optimizer] = []
        self.depth = 0
        self.known = (0, 0, 0)

    def install(self) -> None:
        """Learn of modules and optimizers as they are made, and of the calls that the program itself makes."""
        made, called, optimized = nn.Module.__init__, nn.Module.__call__, torch.optim.Optimizer.__init__

        def module_init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            made(module, *args, **kwargs)
            self.modules[id(module)] = weakref.ref(module)

        def module_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and torch.is_grad_enabled():
                self.modules[id(module)] = weakref.ref(module)  # a deep copy was never made by __init__
                self.called[id(module)] = weakref.ref(module)
                known = (len(self.modules), len(self.called), len(self.optimizers))
                if known != self.known:  # the costs of looking are not the tool's
                    self.known = known
                    self.before_call()
            self.depth += 1
            try:
                return called(module, *args, **kwargs)
            finally:
                self.depth -= 1

        def optimizer_init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            optimized(optimizer, *args, **kwargs)
            self.optimizers.append(optimizer)

        nn.Module.__init__ = module_init  # type: ignore[method-assign]
        nn.Module.__call__ = module_call  # type: ignore[method-assign, assignment]
        torch.optim.Optimizer.__init__ = optimizer_init  # type: ignore[method-assign]

    def before_call(self) -> None:
        """The program is about to call a module with gradients on, and has made or called something new."""

    def findings(self) -> list[dict[str, Any]]:
        """What the tool has said, when the script is over."""
        return []

    def models_of(self, optimizer: torch.optim.Optimizer) -> list[nn.Module]:
        """What a person would hand over with this optimizer: the outermost modules that have a parameter of it.

        Where no module has one, which is a fault of its own, those that the program called.
        """
        live = [module for ref in self.modules.values() if (module := ref()) is not None]
        inner = {id(child) for module in live for child in list(module.modules())[1:]}
        roots = [m for m in live if id(m) not in inner and any(True for _ in m.parameters())]
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        owners = [m for m in roots if any(id(p) in mine for p in m.parameters())]
        if owners:
            return owners
        used = [module for ref in self.called.values() if (module := ref()) is not None]
        return [m for m in roots if any(m is u or any(u is c for c in m.modules()) for u in used)]


class TorchAudit(Hook):
    """`autopatch` for each optimizer and its model, every step."""

    def __init__(self) -> None:
        super().__init__()
        self.auditors: dict[tuple[int, int], Any] = {}

    def before_call(self) -> None:
        import torch_audit

        for optimizer in self.optimizers:
            for model in self.models_of(optimizer):
                pair = (id(model), id(optimizer))
                if pair not in self.auditors:
                    self.auditors[pair] = None
                    self.auditors[pair] = torch_audit.autopatch(model, optimizer=optimizer, every_n_steps=1)

    def findings(self) -> list[dict[str, Any]]:
        severity = {"INFO": "info", "WARN": "warning", "ERROR": "error", "FATAL": "error"}
        auditors = [a for a in self.auditors.values() if a is not None]
        return [
            dict(rule=f.rule_id, severity=severity[f.severity.value], lines=[], message=f.message)
            for auditor in auditors
            for f in auditor.finish().findings
        ]


class Guardtower(Hook):
    """`audit` on the first batch of each optimizer with the loss that the program made of it, `monitor` throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Any] = []
        self.audited: set[int] = set()
        self.monitors: dict[int, Any] = {}
        self.recomputes = False

    def install(self) -> None:
        super().install()
        backward = torch.Tensor.backward
        checkpoint = torch.utils.checkpoint.checkpoint

        def recomputing(*args: Any, **kwargs: Any) -> Any:
            self.recomputes = True
            return checkpoint(*args, **kwargs)

        torch.utils.checkpoint.checkpoint = recomputing

        def first_backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            optimizer = self._next(loss)
            # its hooks, put on between a forward and the recomputation of it, would make the two differ: our doing
            if self.recomputes or optimizer is None or args or kwargs.get("gradient") is not None or loss.dim():
                backward(loss, *args, **kwargs)
                return
            self._audit(loss, optimizer, backward, kwargs)

        torch.Tensor.backward = first_backward  # type: ignore[method-assign, assignment]

    def before_call(self) -> None:
        import guardtower

        for optimizer in self.optimizers:
            for model in self.models_of(optimizer):
                if id(model) not in self.monitors:
                    self.monitors[id(model)] = guardtower.monitor(model, on_nonfinite="warn").__enter__()

    def _next(self, loss: torch.Tensor) -> torch.optim.Optimizer | None:
        """The optimizer, not audited yet, that this loss has most parameters of; the first where it has no graph."""
        waiting = [o for o in self.optimizers if id(o) not in self.audited]
        reached = _leaves(loss)
        hits = {id(o): sum(id(p) in reached for g in o.param_groups for p in g["params"]) for o in waiting}
        best = max(waiting, key=lambda o: hits[id(o)], default=None)
        return best if best is not None and (hits[id(best)] or not reached) else None

    def _audit(self, loss: torch.Tensor, optimizer: torch.optim.Optimizer, backward: Any, kwargs: Any) -> None:
        import guardtower

        self.audited.add(id(optimizer))
        models = self.models_of(optimizer)
        if not models:
            backward(loss, **kwargs)
            return
        model = models[0]
        if len(models) > 1:
            model = nn.ModuleList(models)
            model.training = all(m.training for m in models)
        done: list[BaseException | None] = []

        def once(tensor: torch.Tensor, *args: Any, **given: Any) -> None:
            done.append(None)
            try:
                backward(tensor, *args, **{**kwargs, **given})
            except BaseException as error:
                done[-1] = error
                raise

        patched, torch.Tensor.backward = torch.Tensor.backward, once  # type: ignore[method-assign, assignment]
        try:
            self.reports.append(guardtower.audit(model, lambda: loss, optimizer=optimizer))
        finally:
            torch.Tensor.backward = patched  # type: ignore[method-assign]
        if not done:
            backward(loss, **kwargs)  # it refused the loss; the program sees what it would have seen
        elif done[-1] is not None:
            raise done[-1]

    def findings(self) -> list[dict[str, Any]]:
        severity = {"INFO": "info", "WARN": "warning", "FAIL": "error"}
        said = [
            dict(rule=f.check, severity=severity[f.severity.label], lines=[], message=f.message)
            for report in self.reports
            for f in report.findings
            if f.severity.label != "INFO" or f.check in TELLING
        ]
        for monitor in self.monitors.values():
            said += [dict(rule="nonfinite", severity="error", lines=[], message=hit) for hit in monitor.hits[:1]]
        return said


# the other checks of guardtower say as information that all is well
TELLING = {"frozen", "weight_tying", "device_dtype"}

HOOKS: dict[str, type[Hook] | None] = {"bare": None, "torch-audit": TorchAudit, "guardtower": Guardtower}


def _leaves(loss: torch.Tensor) -> set[int]:
    """Ids of the leaves that the graph of a loss ends in."""
    seen, found = set(), set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        stack += [following for following, _ in node.next_functions]
    return found


def merged(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One of each rule, severity and place."""
    unique = {(f["rule"], f["severity"], tuple(f["lines"])): {**f, "message": f["message"][:300]} for f in findings}
    return list(unique.values())[:KEEP]


def _child(tool: str, script: str, scratch: Path) -> int:
    os.setpgid(0, 0)
    with (scratch / "output").open("wb") as out, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(scratch / "work")
    sys.argv = [script]
    sys.path[0] = os.getcwd()
    make = HOOKS[tool]
    hook = make() if make else None
    if hook:
        hook.install()
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    if hook:
        (scratch / "findings.json").write_text(json.dumps(merged(hook.findings())))
    return code


def run(tool: str, folder: Path, script: str) -> dict[str, Any]:
    """One script in a scratch copy of its folder."""
    scratch = Path(tempfile.mkdtemp(prefix="audit-peers-"))
    shutil.copytree(folder, scratch / "work", copy_function=os.symlink)
    (scratch / "work" / script).unlink()
    shutil.copy(folder / script, scratch / "work" / script)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _child(tool, script, scratch)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    started, done = time.monotonic(), 0
    late = False
    while not done:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if not done and time.monotonic() - started > LIMIT_S and not late:
            late = True
            _kill(pid)
        time.sleep(0.02)
    _kill(pid)
    code = os.waitstatus_to_exitcode(status)
    last = (scratch / "output").read_text(errors="replace").strip().splitlines()[-1:] or [""]
    said = scratch / "findings.json"
    answer = dict(
        findings=json.loads(said.read_text()) if said.exists() else [],
        cpu=used.ru_utime + used.ru_stime,
        broke=f"exit code {code}: {'too late' if late else last[0][-160:]}" if code else "",
    )
    shutil.rmtree(scratch, ignore_errors=True)
    return answer


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def main() -> None:
    """Answer names until stdin ends."""
    import torch._dynamo  # the first optimizer of any program imports it, which takes seconds
    import torch.utils.checkpoint
    import torch.utils.data

    tool, folder = sys.argv[1], Path(sys.argv[2])
    if tool == "torch-audit":
        import torch_audit.reporters.console  # noqa: F401
    elif tool == "guardtower":
        import guardtower  # noqa: F401
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(run(tool, folder, line.strip())), flush=True)


if __name__ == "__main__":
    main()
