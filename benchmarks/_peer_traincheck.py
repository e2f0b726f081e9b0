"""TrainCheck on the written cases: it learns what holds in a correct run and tells what fails in another one.

    reference    traincheck-collect of the correct program, everything traced; traincheck-infer
    each program traincheck-collect with those invariants (its default sampling), traincheck-check

The reference of a faulty program is its corrected twin, that of a correct program is the program itself: the best that
anybody can have.  An invariant that fails on a second run of the very program it was learned from is a false alarm, and
says nothing about a faulty program either: such a program counts as found when an invariant fails on it that held in
the second run of its reference.  What an invariant says is not looked at, since it names an API and no fault.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT_S = 1800.0  # wall seconds of one command; the machine may be loaded


class Stopped(Exception):
    """One of its commands gave no result."""


def model_names(source: str) -> list[str]:
    """Variables that hold a module, for `--models-to-track`: what a person who knows the program would name."""
    tree = ast.parse(source)
    classes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_module(base, classes) for base in node.bases):
            classes.add(node.name)
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for one, value in pairs:
                if isinstance(one, ast.Name) and _makes_module(value, classes, names):
                    names[one.id] = None
    return list(names)


def _is_module(node: ast.expr, classes: set[str]) -> bool:
    """Whether an expression names a module class: nn.Linear, a class of the script; a loss is none that is trained."""
    if isinstance(node, ast.Name):
        return node.id in classes or node.id == "Module"
    text = ast.unparse(node)
    return text.startswith(("nn.", "torch.nn.")) and text.rpartition(".")[2][:1].isupper() and not text.endswith(
        ("Loss", "Parameter", "ParameterList", "ParameterDict")
    )  # fmt: skip


def _makes_module(node: ast.expr, classes: set[str], names: dict[str, None]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if _is_module(node.func, classes):
        return True
    if ast.unparse(node.func) in ("copy.deepcopy", "deepcopy") and node.args:
        copied = node.args[0]
        return (isinstance(copied, ast.Name) and copied.id in names) or _makes_module(copied, classes, names)
    # Net().to(device), Net().requires_grad_(False): the method of a module that gives the module back
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cpu", "eval", "train", "requires_grad_"):
        return _makes_module(node.func.value, classes, names)
    return False


def failed_invariants(text: str) -> list[dict[str, Any]]:
    """The records of a failed.log: JSON objects one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        record, at = decoder.raw_decode(text, at)
        found.append(record)
    return found


class TrainCheck:
    """Runs it, keeping what was learned of each reference under `cache`."""

    def __init__(self, scripts: Path, folder: Path, cache: Path, bare: Path) -> None:
        """`scripts`: where its commands are; `folder`: of the programs; `bare`: the interpreter of the bare program."""
        self._scripts, self._folder, self._cache, self._bare = scripts, folder, cache, bare

    def results(self, name: str, reference: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """That of the reference, then that of the program when it is another one."""
        learned, said = self._learn(reference)
        if learned is None:
            yield reference, said
            if name != reference:
                yield name, dict(said, broke=f"its reference {reference}: {said['broke']}")
            return
        own = self._watch(reference, learned)
        yield reference, dict(own, **{key: said[key] for key in ("reference_cpu", "invariants")})
        if name != reference:
            other = self._watch(name, learned)
            known = {f["rule"] for f in own["findings"]}
            other["findings"] = [f for f in other["findings"] if f["rule"] not in known]
            yield name, dict(other, invariants=said["invariants"])

    # ------------------------------------------------------------------ steps

    def _learn(self, reference: str) -> tuple[Path | None, dict[str, Any]]:
        work = self._fresh("reference", reference)
        invariants = work / "invariants.json"
        try:
            seconds, error = self._collect(work, reference, work / "trace")
            if error:
                raise Stopped(error)
            seconds += self._command(work, "traincheck-infer", "-f", str(work / "trace"), "-o", str(invariants))
        except Stopped as stopped:
            return None, dict(findings=[], cpu=None, broke=str(stopped), invariants=0)
        finally:
            shutil.rmtree(work / "trace", ignore_errors=True)  # tens of megabytes
        count = len(invariants.read_text(encoding="utf-8").splitlines())
        said: dict[str, Any] = dict(findings=[], cpu=None, broke="" if count else "no invariant was inferred")
        return (invariants if count else None), dict(said, reference_cpu=seconds, invariants=count)

    def _watch(self, name: str, invariants: Path) -> dict[str, Any]:
        """What a program that ends by an error of its own has left is checked, too."""
        work = self._fresh("watched", name)
        out = work / "checked"
        try:
            alone, bare = _seconds_of([str(self._bare), name], work)
            seconds, error = self._collect(work, name, work / "trace", "-i", str(invariants))
            words = ("-f", str(work / "trace"), "-i", str(invariants), "-o", str(out), "--no-html-report")
            if not error or alone.returncode:
                seconds += self._command(work, "traincheck-check", *words)
            failed = [f for log in out.glob("*/failed.log") for f in failed_invariants(log.read_text(encoding="utf-8"))]
        except Stopped as stopped:
            return dict(findings=[], cpu=None, broke=str(stopped))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        broke = "" if alone.returncode else error
        return dict(findings=list(_findings(failed)), cpu=seconds, bare_cpu=bare, broke=broke)

    def _collect(self, work: Path, name: str, trace: Path, *options: str) -> tuple[float, str]:
        """CPU seconds, and how the program ended when not well."""
        names = model_names((work / name).read_text(encoding="utf-8"))
        models = ["--models-to-track", *names] if names else []
        words = ["--pyscript", name, *models, "--output-dir", str(trace), *options]
        done, seconds = _seconds_of([str(self._scripts / "traincheck-collect"), *words], work)
        output = trace / "program_output.txt"
        said = output.read_text(encoding="utf-8", errors="replace") if output.exists() else done.stdout + done.stderr
        return seconds, f"traincheck-collect ends with {done.returncode}: {_error_in(said)}" if done.returncode else ""

    def _command(self, work: Path, command: str, *words: str) -> float:
        done, seconds = _seconds_of([str(self._scripts / command), *words], work)
        if done.returncode:
            raise Stopped(f"{command} ends with {done.returncode}: {_error_in(done.stdout + done.stderr)}")
        return seconds

    def _fresh(self, kind: str, name: str) -> Path:
        work = self._cache / "traincheck" / kind / Path(name).stem
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self._folder, work)
        return work


def _findings(failed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in failed:
        invariant = record.get("invariant", record)
        text = invariant.get("text_description") or ""
        yield dict(rule=name_of(invariant), severity="warning", lines=[], message=text[:200])


def name_of(invariant: dict[str, Any]) -> str:
    """Relation and digest of an invariant, so that two runs can be compared: its sets are written in any order."""
    digest = hashlib.sha256(json.dumps(_ordered(invariant), sort_keys=True).encode()).hexdigest()
    return f"{invariant.get('relation', 'invariant')}:{digest[:8]}"


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(one) for key, one in value.items()}
    if isinstance(value, list):
        return sorted((_ordered(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


def _error_in(output: str) -> str:
    """The last line that looks like the message of an exception, or the last at all."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return ([line for line in lines if "Error" in line] or lines or ["no output"])[-1][-200:]


def _seconds_of(command: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command; CPU seconds, user and system, of it and of all that it waited for."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\ntook longer than {LIMIT_S:.0f} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return subprocess.CompletedProcess(command, process.returncode, out, err), seconds
