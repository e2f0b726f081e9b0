"""How a class sets parameters of its own once, from the first batch that it sees: the flag, the test and the writes."""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, walk


def registered(node: ast.AST) -> list[str]:
    """Names under which a constructor keeps parameters and buffers."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last_name(node.value.func) == "Parameter":
        return [t.attr for t in node.targets if isinstance(t, ast.Attribute)]
    called = isinstance(node, ast.Call) and last_name(node.func) in ("register_buffer", "register_parameter")
    if isinstance(node, ast.Call) and called and node.args and isinstance(node.args[0], ast.Constant):
        return [str(node.args[0].value)]
    return []


def asks_whether_off(test: ast.expr, name: str) -> bool:
    """`not self.ready`, `self.ready == 0`, also of what is read from it."""
    asked = [n.operand for n in walk(test) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not)]
    asked += [
        n.left
        for n in walk(test)
        if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.Eq, ast.Is))
        if isinstance(n.comparators[0], ast.Constant) and not n.comparators[0].value
    ]
    return any(isinstance(n, ast.Attribute) and n.attr == name for one in asked for n in walk(one))


def written(node: ast.AST) -> list[str]:
    """Own tensors that a statement writes into: `self.scale.data.copy_(x)`, `self.shift.data = x`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        targets = [node.func.value, *node.args[:1]] if last_name(node.func.value) == "init" else [node.func.value]
    found = []
    for target in targets:
        root = target
        while isinstance(root, (ast.Subscript, ast.Attribute)) and getattr(root, "attr", "data") == "data":
            root = root.value
        if isinstance(root, ast.Attribute) and last_name(root.value) == "self":
            found.append(root.attr)
    return found


def sets(node: ast.AST, name: str) -> bool:
    """Whether something in a statement gives the attribute another value."""
    return any(
        (isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Store))
        or (isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("fill_", "copy_")
            and last_name(n.func.value) == name)
        for n in walk(node)
    )  # fmt: skip
