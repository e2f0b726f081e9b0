"""Why does a leaf that gradients reach sit in no optimizer?  Exactly one of M1, M3, M4, M5, M7, M10, G12, G17
answers.

The rules of these codes all look at the same leaves: filled by reverse passes, held by no optimizer.  Each takes those
that `classify` gives to it, so that one fault is told once.
"""

from __future__ import annotations

from gradledger.audit._made_at import went_on_with
from gradledger.audit.world import OptimizerInfo, World
from gradledger.core import events as ev


def classify(tensor: int, world: World) -> str:
    """Code that explains why `tensor` is in no optimizer, or "" when an optimizer holds it, if only by other memory of
    which it is a part.

    M1: a raw tensor kept as attribute of a module, or a buffer that required grad from the start; M3: kept in a plain
    list or dict; M4: attached after the optimizer of its model was built; M5: the optimizer holds the parameters of
    another, discarded model; M7: a parameter unfrozen after the optimizer was built, or chosen for training before and
    left out of it, or left out of one over other parts of its model (`left_out`); M10: hidden below a tensor that was
    made from it on the same line; G17: data that was given requires_grad; G12: none of these.
    """
    info = world.tensor(tensor)
    if world.holders(tensor) or info.gradient_in_view:
        return ""
    if info.owners or info.former:
        return _registered(tensor, world)
    attribute = attribute_of(tensor, world)
    if attribute is not None and attribute.made_from_parameter and not attribute.is_leaf:
        return "M10"
    if attribute is not None:
        return "M3" if attribute.kind == "tensors" and attribute.is_parameter else "M1"
    leaf = info.leaf
    if leaf is not None and not leaf.is_parameter and (leaf.fed_to or (leaf.in_loss and info.numel > 1)):
        return "G17"
    free = leaf is not None and not info.former and not leaf.fed_to
    return "M10" if free and went_on_with(info.site) else "G12"


def left_out(tensor: int, world: World) -> bool:
    """Of a leaf whose code is M7: whether nobody ever chose or unfroze it, and its optimizer just holds other parts."""
    return not world.chosen_at(tensor).file and world.tensor(tensor).unfrozen_seq is None


def attribute_of(tensor: int, world: World) -> ev.PlainAttribute | None:
    """The plain attribute of a module in which this unregistered tensor is kept, if any."""
    leaf = world.tensor(tensor).leaf
    owners = [leaf.attribute_of] if leaf is not None and leaf.attribute_of is not None else list(world.modules)
    for owner in owners:
        for attribute in world.module(owner).plain:
            if tensor in attribute.tensors and attribute.kind in ("tensor", "tensors"):
                return attribute
    return None


def hidden_in(tensor: int, world: World) -> tuple[int, ev.PlainAttribute] | None:
    """(module, attribute): the plain list, dict or attribute through which the tensor's module is used unregistered."""
    line: set[int] = set()
    for owner in world.owners(tensor):
        line.add(owner)
        line.update(world.ancestors(owner))
    for module in world.modules.values():
        if module.ident in line:
            continue
        for attribute in module.plain:
            if attribute.kind in ("module", "modules") and line.intersection(attribute.modules):
                return module.ident, attribute
    return None


def siblings_optimizers(tensor: int, world: World) -> list[OptimizerInfo]:
    """Optimizers that have stepped and hold other parameters of a model to which the tensor belongs."""
    found: dict[int, OptimizerInfo] = {}
    for root in world.owner_roots(tensor):
        for other in world.tensors_of(root):
            for holder in world.holders(other):
                optimizer = world.optimizer(holder)
                if optimizer.steps > 0:
                    found[holder] = optimizer
    return list(found.values())


def joined_seq(tensor: int, world: World) -> int:
    """When the tensor last became part of its model: its registration or the latest attachment above it."""
    latest = 0
    info = world.tensor(tensor)
    for owner in world.owners(tensor):
        here = info.made_seq
        for module in (owner, *world.ancestors(owner)):
            here = max(here, world.module(module).attached_seq)
        latest = max(latest, here)
    return latest or info.made_seq


def idle_optimizer(tensor: int, world: World) -> OptimizerInfo | None:
    """An optimizer that holds a discarded model, built before the tensor's own: its steps find no gradient at all, or
    none in a module that is gone and whose place the tensor's took (of one class, alike in its shapes)."""
    made = max((world.module(root).made_seq for root in world.owner_roots(tensor)), default=0)
    for optimizer in world.optimizers.values():
        last = optimizer.last_step
        if last is None or optimizer.steps < 2 or optimizer.made_seq > made:
            continue
        if all(life.grad in ("none", "zero") for life in last.lives) and not any(life.frozen for life in last.lives):
            return optimizer
        if any(_took_the_place(root, optimizer, world) for root in world.owner_roots(tensor)):
            return optimizer
    return None


def _took_the_place(module: int, optimizer: OptimizerInfo, world: World) -> bool:
    """Whether the optimizer holds all parameters of a module that is gone, and that was made like this one: of its
    class, with parameters alike, and freed since this one was made.  Its latest step found nothing in them."""
    mine, last = world.module(module), optimizer.last_step
    if mine.freed or last is None:
        return False
    idle = {t for life in last.lives if life.grad in ("none", "zero") and not life.frozen for t in life.tensors}
    shapes = [len(world.tensor(t).shape) for t in world.tensors_of(module)]
    for other in world.modules.values():
        if other.freed_iteration is None or other.cls != mine.cls or other.freed_iteration < mine.made_iteration:
            continue
        theirs = world.tensors_of(other.ident)
        if theirs and idle.issuperset(theirs) and [len(world.tensor(t).shape) for t in theirs] == shapes:
            return True
    return False


def is_copy(tensor: int, world: World) -> bool:
    """Whether the tensor belongs to a module that is written from another one: a target, teacher or reference."""
    return any(link.first.source != root for root in world.owner_roots(tensor) for link in world.copy_links(root))


def is_written(tensor: int, world: World) -> bool:
    """Whether this very tensor takes its values from another network's, again and again."""
    for owner in world.owners(tensor):
        for link in world.copy_links(owner):
            if link.count >= 2 and link.first.source != link.first.target:
                if any(target == tensor for _, target in link.last.pairs):
                    return True
    return False


def took_a_held_place(tensor: int, world: World) -> bool:
    """Whether the tensor was registered where one stood that an optimizer holds: `load_state_dict(assign=True)`, or a
    new Parameter under an old name."""
    before = world.tensor(tensor).replaces
    while before is not None:
        if any(world.optimizer(o).steps > 0 for o in world.holders(before)):
            return True
        before = world.tensor(before).replaces
    return False


def _registered(tensor: int, world: World) -> str:
    info = world.tensor(tensor)
    if took_a_held_place(tensor, world):
        return "M4"
    if is_written(tensor, world):
        return "G12"
    optimizers = siblings_optimizers(tensor, world)
    if not optimizers and idle_optimizer(tensor, world) is not None:
        return "M5"
    unfrozen = info.unfrozen_seq
    if unfrozen is not None and info.role != "buffer":
        pool = optimizers or [o for o in world.optimizers.values() if o.steps > 0]
        if any(o.made_seq < unfrozen for o in pool):
            return "M7"
    if optimizers:
        joined = joined_seq(tensor, world)
        if all(o.made_seq < joined for o in optimizers):
            return "M4"
        if info.role == "buffer":
            return "M1" if info.requires_grad and unfrozen is None else "G12"
        return "M7" if world.chosen_at(tensor).file or not is_copy(tensor, world) else "G12"
    if is_copy(tensor, world):
        return "G12"
    hidden = hidden_in(tensor, world)
    if hidden is not None and world.trained_module(world.root(hidden[0])):
        return "M3"
    return "G12"
