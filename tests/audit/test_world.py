"""The read model: structure, names, copies, reverse passes, and that it does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.build import Run, at
from gradledger.audit import world as world_module
from gradledger.audit._naming import root_label
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Frame, Site


def world_of(run: Run) -> World:
    world = World()
    for event in run.events:
        world.apply(event)
    return world


def test_structure_up_and_down() -> None:
    run = Run()
    head, body, top = (
        run.module("head", 1, tensors=1),
        run.module("body", 2, tensors=2),
        run.module("top", 3, tensors=0),
    )
    run.attach(body, head, "head", 2)
    run.attach(top, body, "body", 3)
    world = world_of(run)
    assert world.ancestors(head.ident) == [body.ident, top.ident]
    assert world.descendants(top.ident) == [top.ident, body.ident, head.ident]
    assert world.root(head.ident) == top.ident
    assert world.tensors_of(top.ident) == [*body.tensors, *head.tensors]
    assert world.tensors_of(body.ident, recurse=False) == list(body.tensors)
    assert world.owner_roots(head.tensors[0]) == {top.ident}


def test_a_cycle_of_modules_does_not_hang() -> None:
    run = Run()
    a, b = run.module("a", 1), run.module("b", 2)
    run.attach(a, b, "b", 1)
    run.attach(b, a, "a", 2)
    world = world_of(run)
    assert world.root(a.ident) in (a.ident, b.ident)
    assert set(world.descendants(a.ident)) == {a.ident, b.ident}
    assert world.name(a.tensors[0])


def test_a_freed_wrapper_does_not_name_what_it_held() -> None:
    run = Run()
    net, wrapper = run.module("net", 1, cls="m.Policy"), run.module("w", 2, cls="m.Wrapper")
    run.attach(wrapper, net, "inner", 2)
    run.emit(ev.ModuleFreed, at(3), module=wrapper.ident)
    world = world_of(run)
    assert world.root(net.ident) == net.ident
    assert world.name(net.tensors[0]) == "Policy.w0"


def test_names_come_from_the_line_that_made_the_module(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "def mlp():\n"
        "    return Net()\n"
        "policy = mlp()\n"
        "self.critic = Net()\n"
        "a, b = Net(), Net()\n"
        "policy = mlp()\n"
        "for i in range(2): nets.append(Net())\n"
    )
    run = Run()

    def made(line: int, *callers: int) -> int:
        ident = run.new("module")
        frames = tuple(Frame(str(program), c, "f") for c in callers)
        run.emit(ev.ModuleMade, Site(str(program), line, "f", callers=frames), module=ident, cls="x.Net", builtin=False)
        return ident

    idents = [made(2, 3), made(4), made(5), made(5), made(2, 6), made(7), made(7)]
    world = world_of(run)
    names = [world.module_name(i) for i in idents]
    assert names[:2] == ["policy", "critic"]
    assert len(set(names)) == len(names), names
    assert names[2] == "Net"


def test_names_of_tensors() -> None:
    run = Run()
    net = run.module("net", 1, cls="m.Policy")
    free = run.leaf(4, shape=(3,))
    world = world_of(run)
    assert world.name(net.tensors[1]) == "Policy.w1"
    assert world.name(free) == f"free tensor {free} [3]"
    assert world.names([]) == ""
    assert world.names(net.tensors) == "Policy.w0 and Policy.w1"
    assert world.names([*net.tensors, free, 99, 98]).endswith(" and 2 more")


def test_a_replaced_parameter_knows_its_successor() -> None:
    run = Run()
    net = run.module("net", 1, tensors=1)
    new = run.new("tensor")
    run.emit(
        ev.TensorRegistered,
        at(9),
        tensor=new,
        module=net.ident,
        name="w0",
        role="parameter",
        shape=(2,),
        requires_grad=True,
        replaced=net.tensors[0],
    )
    world = world_of(run)
    old = world.tensor(net.tensors[0])
    assert (old.replaced_by, old.replaced_site.line, old.owners, old.former) == (new, 9, [], [(net.ident, "w0")])
    assert world.tensor(new).replaces == net.tensors[0]
    assert world.tensors_of(net.ident) == [new]
    assert world.name(net.tensors[0]) == "Net.w0"  # still said by the name it had


def test_a_replaced_child_leaves_its_parent() -> None:
    run = Run()
    net, old, new = run.module("net", 1), run.module("old", 2), run.module("new", 3)
    run.attach(net, old, "head", 4)
    run.attach(net, new, "head", 5)
    world = world_of(run)
    assert world.root(old.ident) == old.ident
    assert world.module(net.ident).children == {"head": new.ident}


def test_holders_and_trained() -> None:
    run = Run()
    net, other = run.module("net", 1), run.module("other", 2)
    optimizer = run.optimizer(net, line=3)
    idle = run.optimizer(other, line=4)
    run.step(optimizer, line=5)
    world = world_of(run)
    assert world.holders(net.tensors[0]) == [optimizer]
    assert world.trained(net.tensors[0])
    assert world.holders(other.tensors[0]) == [idle]
    assert not world.trained(other.tensors[0])
    assert world.trained_module(net.ident)
    assert not world.trained_module(other.ident)


def test_added_groups_are_held_too() -> None:
    run = Run()
    net, late = run.module("net", 1), run.module("late", 2)
    optimizer = run.optimizer(net, line=3)
    run.emit(ev.GroupAdded, at(4), optimizer=optimizer, group=ev.Group(late.tensors, 0.1))
    world = world_of(run)
    assert world.holders(late.tensors[0]) == [optimizer]
    assert world.optimizer(optimizer).tensors[late.tensors[0]] == 1


def test_a_step_tells_what_a_group_that_was_edited_by_hand_holds() -> None:
    run = Run()
    old, new = run.module("old", line=3), run.module("new", line=6)
    opt = run.optimizer(old, line=4)
    run.step(opt, line=5)
    lives = (ev.Life((old.tensors[1],), "none", ()), ev.Life(new.tensors, "filled", ()))
    run.emit(ev.Step, at(8), optimizer=opt, index=1, lives=lives)
    world = world_of(run)
    assert [world.holders(t) for t in (*old.tensors, *new.tensors)] == [[], [opt], [opt], [opt]]
    assert set(world.optimizer(opt).tensors) == {old.tensors[1], *new.tensors}


def test_frozen_now() -> None:
    run = Run()
    net = run.module("net", 1)
    run.freeze(net, line=2)
    assert not world_of(run).tensor(net.tensors[0]).requires_grad
    run.freeze(net, line=3, value=True)
    assert world_of(run).tensor(net.tensors[0]).requires_grad


def test_copies_are_counted_by_line_and_found_from_inside() -> None:
    run = Run()
    online, target, agent = run.module("online", 1), run.module("target", 2), run.module("agent", 3)
    run.attach(agent, target, "target", 3)
    run.emit(ev.DeepCopied, at(4), source=online.ident, target=target.ident)
    for _ in range(5):
        run.copied(online, target, line=7)
    world = world_of(run)
    links = world.copy_links(target.ident)
    assert [(type(link.last).__name__, link.count) for link in links] == [("DeepCopied", 1), ("Copied", 5)]
    assert world.copies_into(agent.ident) == [link.last for link in links]
    assert world.copies_into(agent.ident, related=False) == []
    assert world.copies_into(online.ident) == []


def test_consumers() -> None:
    run = Run()
    net = run.module("net", 1)
    first, second = run.optimizer(net, line=2), run.optimizer(net, line=3)
    backward = run.backward(net, line=4)
    run.step(first, line=5)
    world = world_of(run)
    assert world.consumers(backward) == {first}
    run.step(second, line=6)
    assert world_of(run).consumers(backward) == {first, second}


def test_a_pass_that_stands_in_a_gradient_is_kept_past_the_ring() -> None:
    run = Run()
    net, other = run.module("net", 1), run.module("other", 2)
    optimizer, busy = run.optimizer(net, line=3), run.optimizer(other, line=4)
    old = run.backward(net, line=5)
    run.step(optimizer, line=6)  # never cleared: it stands from here on
    for _ in range(world_module.BACKWARDS_KEPT + 50):
        run.zero_grad(busy, line=7)
        newest = run.backward(other, line=8)
        run.step(busy, line=9)
    world = world_of(run)
    kept = world.backward(old)
    assert kept is not None
    assert kept.site.line == 5
    assert world.backward(newest) is not None
    assert world.backward(old + 1) is None


def test_unknown_things_have_empty_records() -> None:
    world = World()
    assert world.module(5).short_cls == "module"
    assert world.tensor(5).role == "unknown"
    assert world.holders(5) == []
    assert world.backward(5) is None
    assert world.call(5) is None
    assert world.name(5) == "free tensor 5 []"
    assert world.source(at(3)) == ""


def test_memory_is_bounded_by_what_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in {"MODULES_KEPT": 40, "TENSORS_KEPT": 100, "COPIES_KEPT": 20, "CALLS_KEPT": 30}.items():
        monkeypatch.setattr(world_module, name, limit)
    run = Run()
    held = run.module("held", 1)
    run.optimizer(held, line=2)
    for step in range(400):
        net = run.module("made each step", 3)
        run.leaf(4)
        run.forward(net, line=5)
        run.copied(held, net, line=1000 + step)
        run.backward(net, line=6)
        run.emit(ev.ModuleFreed, at(7), module=net.ident)
    world = world_of(run)
    assert len(world.modules) <= 41
    assert len(world.tensors) <= 101
    assert len(list(world.all_copies())) <= 20
    assert world.module(held.ident).cls == "Net"
    assert set(held.tensors) <= set(world.tensors)


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("policy = Policy()", "policy"),
        ("self.loss_fn = Loss(model)", "loss_fn"),
        ("loss = compute(model, x)", "Net"),
        ("tr_loss_step = self.training_step(model, inputs)", "Net"),
        ("train_loss = step(model)", "Net"),
    ],
)
def test_a_module_is_not_called_by_the_loss_that_its_first_call_gave(line: str, label: str, tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text(line + "\n")
    assert root_label(Site(str(source), 1, ""), "Net", set()) == label
