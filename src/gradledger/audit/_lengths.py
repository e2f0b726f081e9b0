"""In which unit the length of a learning-rate schedule is written: read from the line that builds it."""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, walk, words
from gradledger.audit._loops import argument, calls_at, enclosing_function, loops_around, same_text, unfolded
from gradledger.audit._schedules import Schedule
from gradledger.core.site import Site

_ALL = frozenset({"total", "max", "num", "n", "all", "train", "training"})
_STEPS = frozenset({"steps", "iters", "iterations", "updates", "batches"})
# length-like argument and its position after the optimizer
LENGTHS = {"T_max": 0, "total_steps": 1, "total_iters": 0, "step_size": 0, "milestones": 0}


def _expression(schedule: Schedule, name: str) -> tuple[ast.expr | None, str]:
    """What the program wrote for the length, and in which file."""
    made = schedule.made.site
    if name not in LENGTHS:
        return None, ""
    for call in calls_at(made.file, made.line) if made.file else ():
        function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if function == schedule.cls:
            return argument(call, name, LENGTHS[name] + 1), made.file
    return None, ""


def counts_epochs(schedule: Schedule, name: str) -> bool:
    """Whether the length is written as the range of the loop around the loop in which the scheduler is stepped."""
    expression, file = _expression(schedule, name)
    if expression is None:
        return False
    loops = loops_around(schedule.site)
    if len(loops) < 2:
        return False
    written = unfolded(file, expression)
    if any(_has_len(e) for e in written):
        return False
    for loop in loops[1:]:
        bound = _range_bound(loop.over)
        if bound is not None and any(_same(e, bound) or _part_of(bound, e) for e in written[:1]):
            return True
    return False


def says_epochs(schedule: Schedule, name: str) -> bool:
    """Whether the length is one name, and that name speaks of epochs: `cfg["decay_every_epochs"]`."""
    return "epoch" in _name_given(schedule, name).lower()


def says_total(schedule: Schedule, name: str) -> bool:
    """Whether the length is one name, and that name says that it is all steps: `cfg.total_steps`, `max_updates`."""
    said = set(words(_name_given(schedule, name)))
    return bool(said & _ALL) and bool(said & _STEPS) and "epochs" not in said


def length_lines(schedule: Schedule, name: str) -> list[Site]:
    """The line on which the length is written, where the call that builds the schedule has several."""
    expression, file = _expression(schedule, name)
    made = schedule.made.site
    return [Site(file, expression.lineno, made.function)] if expression is not None else []


def loop_in_strides(schedule: Schedule, name: str) -> Site | None:
    """A loop around the one that steps the scheduler which counts up to the name given as length, and by more than one:
    `while steps < config.running_steps:` with `steps += episode_length`, `range(0, total_steps, num_envs)`."""
    wanted = _name_given(schedule, name)
    for frame in (schedule.site, *schedule.site.above()):
        function = enclosing_function(frame.file, frame.line) if wanted else None
        for node in walk(function) if function is not None else ():
            if isinstance(node, (ast.While, ast.For)) and node.lineno <= frame.line <= (node.end_lineno or 0):
                if _strides_to(node, wanted) and not any(isinstance(n, (ast.Break, ast.Return)) for n in walk(node)):
                    return Site(frame.file, node.lineno, function.name if function is not None else "")
    return None


def _strides_to(loop: ast.While | ast.For, wanted: str) -> bool:
    if isinstance(loop, ast.For):
        over = loop.iter
        if not isinstance(over, ast.Call) or last_name(over.func) != "range" or len(over.args) != 3:
            return False
        return last_name(over.args[1]) == wanted and not isinstance(over.args[2], ast.Constant)
    test = loop.test
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Lt):
        return False
    if last_name(test.comparators[0]) != wanted:
        return False
    counted = ast.unparse(test.left)
    added = [n for n in walk(loop) if isinstance(n, ast.AugAssign) and ast.unparse(n.target) == counted]
    return bool(added) and all(not isinstance(n.value, ast.Constant) for n in added)


def _name_given(schedule: Schedule, name: str) -> str:
    """The one name that was written for the length, "" for any other expression."""
    expression, _ = _expression(schedule, name)
    return last_name(expression) if expression is not None else ""


def epochs_around(schedule: Schedule) -> int:
    """How often the loop around the one that steps the scheduler runs, where the text says so; else 0."""
    return next(iter(counts_around(schedule)), 0)


def counts_around(schedule: Schedule) -> list[int]:
    """How often the loops around the one that steps the scheduler run, from the inside, those of which the text says
    it."""
    found = []
    for loop in loops_around(schedule.site)[1:]:
        bound = _range_bound(loop.over)
        if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Add) and getattr(bound.right, "value", 0) == 1:
            bound = bound.left  # range(1, updates + 1)
        for value in unfolded(loop.file, bound) if bound is not None else ():
            if isinstance(value, ast.Constant) and type(value.value) is int:
                found.append(value.value)
                break
    return found


def _same(expression: ast.expr, bound: ast.expr) -> bool:
    """`conf.epochs` is `self.conf.epochs`, and what a function was given as `epochs`."""
    if same_text(expression, bound):
        return True
    return bool(last_name(bound)) and last_name(expression) == last_name(bound)


def _part_of(bound: ast.expr, expression: ast.expr) -> bool:
    """`EPOCHS // 3` is a part of EPOCHS."""
    return (
        isinstance(expression, ast.BinOp)
        and isinstance(expression.op, (ast.FloorDiv, ast.Div, ast.Sub))
        and _same(expression.left, bound)
        and isinstance(bound, (ast.Name, ast.Attribute))
    )


def counts_batches(schedule: Schedule, name: str) -> bool:
    """Whether the length is written with `len(...)` of something."""
    expression, file = _expression(schedule, name)
    return expression is not None and any(_has_len(e) for e in unfolded(file, expression))


def _has_len(expression: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "len" for n in walk(expression)
    )


def _range_bound(over: ast.expr | None) -> ast.expr | None:
    """`EPOCHS` of `range(EPOCHS)`, `range(start, EPOCHS)`, `tqdm(range(EPOCHS))`."""
    while isinstance(over, ast.Call):
        if isinstance(over.func, ast.Name) and over.func.id == "range" and over.args:
            return over.args[1] if len(over.args) > 1 else over.args[0]
        over = over.args[0] if over.args else None
    return None
