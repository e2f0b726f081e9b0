"""GL-T05: a teacher's parameters are replaced by new objects."""

from __future__ import annotations

from audit.build import Net, Run, at, judge, lines
from audit.targets import deep_copy
from gradledger.audit.rules import t05_teacher_parameter_replaced as t05
from gradledger.core import events as ev
from gradledger.core.site import Frame


def replace(run: Run, net: Net, before: int, *, line: int = 18, requires_grad: bool = True) -> int:
    tensor = run.new("tensor")
    run.emit(
        ev.TensorRegistered, at(line), tensor=tensor, module=net.ident, name="w0", role="parameter", shape=(4, 4),
        requires_grad=requires_grad, replaced=before,
    )  # fmt: skip
    return tensor


def ema(
    steps: int, *, frozen: bool, requires_grad: bool, held: bool = False, writes: bool = False, filled: bool = False
) -> Run:
    run = Run()
    student = run.module("student", line=5)
    teacher = deep_copy(run, student)
    if frozen:
        run.freeze(teacher, line=6)
    opt = run.optimizer(student, *([teacher] if held else []), line=7)
    first = current = teacher.tensors[0]
    for _ in range(steps):
        run.backward(student, *([teacher] if filled else []), line=15)
        run.step(opt, line=16)
        current = replace(run, teacher, current, requires_grad=requires_grad)
        if writes:
            run.emit(
                ev.Copied, at(21), how="lerp_", source=student.ident, target=teacher.ident,
                pairs=((student.tensors[0], first),), tau=0.1,
            )  # fmt: skip
    return run


def test_a_frozen_teacher_becomes_trainable() -> None:
    (finding,) = judge(t05, ema(6, frozen=True, requires_grad=True))
    assert finding.severity == "warning"
    assert finding.site.line == 18
    assert (
        finding.evidence["old_frozen_new_requires_grad"] == 6 or finding.evidence["old_frozen_new_requires_grad"] == 1
    )


def test_writes_into_the_old_tensor_reach_nothing() -> None:
    (finding,) = judge(t05, ema(6, frozen=True, requires_grad=False, writes=True))
    assert finding.severity == "error"
    assert lines(finding) >= {18, 21}


def test_an_optimizer_goes_on_with_the_old_one() -> None:
    (finding,) = judge(t05, ema(6, frozen=False, requires_grad=True, held=True, filled=True))
    assert finding.severity == "error"
    assert "goes on with the old" in finding.message


def test_an_optimizer_that_holds_what_never_gets_a_gradient_loses_nothing() -> None:
    """A codebook that is made anew from averages at each step."""
    (finding,) = judge(t05, ema(6, frozen=False, requires_grad=True, held=True))
    assert finding.severity == "info"


def test_replaced_for_its_own_sake_gates_nothing() -> None:
    (finding,) = judge(t05, ema(6, frozen=True, requires_grad=False))
    assert finding.severity == "info"


def test_a_head_put_in_place_before_training_is_silent() -> None:
    run = Run()
    pretrained = run.module("pretrained", line=5)
    model = deep_copy(run, pretrained)
    replace(run, model, model.tensors[0])
    opt = run.optimizer(model, line=7)
    for _ in range(5):
        run.backward(model, line=15)
        run.step(opt, line=16)
    assert judge(t05, run) == []


def test_the_error_of_torch_is_explained_at_its_line() -> None:
    run = Run()
    run.emit(
        ev.RunEnded, at(0), exit_code=1, exception="TypeError",
        message="cannot assign 'torch.FloatTensor' as parameter 'weight' (torch.nn.Parameter or None expected)",
        frames=(Frame("train.py", 30, "main"), Frame("train.py", 19, "update")),
    )  # fmt: skip
    (finding,) = judge(t05, run)
    assert finding.site.line == 19
    assert 30 in lines(finding)
    assert "weight" in finding.message
