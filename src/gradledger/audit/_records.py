"""What the read model knows of one module, tensor, optimizer, scheduler, loader or copy."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site


@dataclass(slots=True)
class ModuleInfo:
    """A module.  `parents`: (module, name) pairs; `children`, `tensors`: by local name (parameters and buffers);
    `plain`: its latest unregistered tensors and modules; `calls`: watched forward calls by the program itself;
    `attached_seq`, `attached_site`: when and where it last became a child of another module (0: never);
    `used_site`: where its forward first ran in a watched iteration, at any depth."""

    ident: int
    cls: str = "module"
    site: Site = NOWHERE
    builtin: bool = False
    parents: list[tuple[int, str]] = field(default_factory=list)
    children: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    plain: tuple[ev.PlainAttribute, ...] = ()
    freed: bool = False
    freed_iteration: int | None = None
    made_iteration: int = 0
    made_seq: int = 0
    calls: int = 0
    attached_seq: int = 0
    attached_site: Site = NOWHERE
    used_site: Site = NOWHERE

    @property
    def short_cls(self) -> str:
        """Class name without its module."""
        return self.cls.rpartition(".")[2]


@dataclass(slots=True)
class TensorInfo:
    """A followed tensor.  `role`: "parameter", "buffer", "leaf" (free, seen by `LeafSeen`) or "unknown";
    `owners`: current (module, name); `former`: registrations it lost to another tensor; `replaced_by`: that tensor,
    with the `seq`, iteration and site of the replacement; `leaf`: the `LeafSeen` event if any; `unfrozen_seq`: when its
    requires_grad last went from False to True (None: never), `unfrozen_site`: where, when known; `flag_site`: the
    latest line that set its requires_grad, to whatever; `gradient_in_view`: it moves although no optimizer holds it,
    and its gradient is a part of other memory, or another leaf's too; `lent`: no Parameter, it stood in the place of
    one for a while (`functional_call`)."""

    ident: int
    role: str = "unknown"
    lent: bool = False
    shape: tuple[int, ...] = ()
    requires_grad: bool = True
    site: Site = NOWHERE
    owners: list[tuple[int, str]] = field(default_factory=list)
    former: list[tuple[int, str]] = field(default_factory=list)
    replaced_by: int | None = None
    replaced_site: Site = NOWHERE
    replaces: int | None = None
    leaf: ev.LeafSeen | None = None
    unfrozen_seq: int | None = None
    unfrozen_site: Site = NOWHERE
    flag_site: Site = NOWHERE
    made_iteration: int = 0
    made_seq: int = 0
    gradient_in_view: bool = False

    @property
    def numel(self) -> int:
        """Number of elements, from the shape."""
        product = 1
        for side in self.shape:
            product *= side
        return product


@dataclass(slots=True)
class OptimizerInfo:
    """An optimizer.  `tensors`: tensor id -> index of its group, in order; `steps`: steps that were seen to begin;
    `held`: the tensors that the latest one worked on, as its event has them; `empty_group`: a line that added a group
    without any parameter."""

    ident: int
    cls: str = "optimizer"
    site: Site = NOWHERE
    groups: list[ev.Group] = field(default_factory=list)
    tensors: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    made_iteration: int = 0
    made_seq: int = 0
    first_step: ev.Step | None = None
    last_step: ev.Step | None = None
    held: tuple[tuple[int, ...], ...] = ()
    empty_group: Site = NOWHERE

    @property
    def short_cls(self) -> str:
        """Class name without its module."""
        return self.cls.rpartition(".")[2]


@dataclass(slots=True)
class SchedulerInfo:
    """A learning-rate scheduler: how it was made, its latest step."""

    made: ev.SchedulerMade
    steps: int = 0
    last_step: ev.SchedulerStep | None = None


@dataclass(slots=True)
class LoaderInfo:
    """A DataLoader: how it was made, the passes begun so far."""

    made: ev.LoaderMade
    epochs: int = 0


@dataclass(slots=True)
class CopyLink:
    """Copies of one kind from one module into another at one line: the first and latest event, and how many."""

    first: ev.Copied | ev.DeepCopied
    last: ev.Copied | ev.DeepCopied
    count: int = 1
