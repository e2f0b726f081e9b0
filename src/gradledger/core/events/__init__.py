"""The vocabulary that ledger and audit share: frozen facts about a running program, without any tensor.

Identifiers are small integers given once and never reused: `tensor` ids name *leaf-like* tensors that the
ledger follows (parameters, buffers, free leaves, attributes), `module`, `optimizer`, `scheduler`, `loader`
ids name those objects, `backward` ids name reverse passes and `call` ids name forward calls of a module.
`iteration` counts completed optimizer steps of the whole program (all optimizers together), so everything
between two steps shares one number.  `seq` orders all events of a run.

"Detail" facts (terms, comparisons, calls, broadcasts, aliases) are taken on watched iterations only: the
first twenty, samples, and suspicious ones; lifecycle facts (fills, clears, steps, clips, copies by
load_state_dict, schedulers, modes) are taken always.
"""

from gradledger.core.events._base import (
    SCHEMA as SCHEMA,
)
from gradledger.core.events._base import (
    Event as Event,
)
from gradledger.core.events._base import (
    RunEnded as RunEnded,
)
from gradledger.core.events._base import (
    RunStarted as RunStarted,
)
from gradledger.core.events._copies import (
    Copied as Copied,
)
from gradledger.core.events._copies import (
    DeepCopied as DeepCopied,
)
from gradledger.core.events._copies import (
    FileTouched as FileTouched,
)
from gradledger.core.events._copies import (
    LeavesNotPutBack as LeavesNotPutBack,
)
from gradledger.core.events._copies import (
    NotPutBack as NotPutBack,
)
from gradledger.core.events._copies import (
    ShadowAveraged as ShadowAveraged,
)
from gradledger.core.events._copies import (
    StateLoaded as StateLoaded,
)
from gradledger.core.events._copies import (
    StateTaken as StateTaken,
)
from gradledger.core.events._copies import (
    StorageShared as StorageShared,
)
from gradledger.core.events._copies import (
    ValuesCompared as ValuesCompared,
)
from gradledger.core.events._data import (
    BatchesCompared as BatchesCompared,
)
from gradledger.core.events._data import (
    FittedOnAll as FittedOnAll,
)
from gradledger.core.events._data import (
    LoaderEpoch as LoaderEpoch,
)
from gradledger.core.events._data import (
    LoaderMade as LoaderMade,
)
from gradledger.core.events._data import (
    PaddingAveraged as PaddingAveraged,
)
from gradledger.core.events._data import (
    PaddingCounted as PaddingCounted,
)
from gradledger.core.events._data import (
    PixelsMoved as PixelsMoved,
)
from gradledger.core.events._data import (
    RowsMet as RowsMet,
)
from gradledger.core.events._data import (
    RowsShared as RowsShared,
)
from gradledger.core.events._data import (
    SharedDataset as SharedDataset,
)
from gradledger.core.events._data import (
    SharedPart as SharedPart,
)
from gradledger.core.events._data import (
    StoredDataChanged as StoredDataChanged,
)
from gradledger.core.events._data import (
    TargetDrawn as TargetDrawn,
)
from gradledger.core.events._data import (
    TargetExplained as TargetExplained,
)
from gradledger.core.events._data import (
    TargetsExchanged as TargetsExchanged,
)
from gradledger.core.events._data import (
    WorkerDraws as WorkerDraws,
)
from gradledger.core.events._data import (
    WorkerGenerator as WorkerGenerator,
)
from gradledger.core.events._data import (
    WorkersAlike as WorkersAlike,
)
from gradledger.core.events._json import (
    EVENTS as EVENTS,
)
from gradledger.core.events._json import (
    from_json as from_json,
)
from gradledger.core.events._json import (
    to_json as to_json,
)
from gradledger.core.events._modules import (
    ChildRegistered as ChildRegistered,
)
from gradledger.core.events._modules import (
    ExhaustedIterator as ExhaustedIterator,
)
from gradledger.core.events._modules import (
    GradFlagSet as GradFlagSet,
)
from gradledger.core.events._modules import (
    LeafSeen as LeafSeen,
)
from gradledger.core.events._modules import (
    ModeSet as ModeSet,
)
from gradledger.core.events._modules import (
    ModuleCalled as ModuleCalled,
)
from gradledger.core.events._modules import (
    ModuleFreed as ModuleFreed,
)
from gradledger.core.events._modules import (
    ModuleMade as ModuleMade,
)
from gradledger.core.events._modules import (
    ModuleUsed as ModuleUsed,
)
from gradledger.core.events._modules import (
    ParametersIterated as ParametersIterated,
)
from gradledger.core.events._modules import (
    PlainAttributes as PlainAttributes,
)
from gradledger.core.events._modules import (
    RandomInEval as RandomInEval,
)
from gradledger.core.events._modules import (
    StatisticsMoved as StatisticsMoved,
)
from gradledger.core.events._modules import (
    TensorRegistered as TensorRegistered,
)
from gradledger.core.events._optimizers import (
    Clear as Clear,
)
from gradledger.core.events._optimizers import (
    Clip as Clip,
)
from gradledger.core.events._optimizers import (
    ClippedRescaled as ClippedRescaled,
)
from gradledger.core.events._optimizers import (
    GradientInView as GradientInView,
)
from gradledger.core.events._optimizers import (
    GradientsRead as GradientsRead,
)
from gradledger.core.events._optimizers import (
    GroupAdded as GroupAdded,
)
from gradledger.core.events._optimizers import (
    OptimizerMade as OptimizerMade,
)
from gradledger.core.events._optimizers import (
    ScalerCalled as ScalerCalled,
)
from gradledger.core.events._optimizers import (
    SchedulerMade as SchedulerMade,
)
from gradledger.core.events._optimizers import (
    SchedulerStep as SchedulerStep,
)
from gradledger.core.events._optimizers import (
    Step as Step,
)
from gradledger.core.events._optimizers import (
    StepMeasured as StepMeasured,
)
from gradledger.core.events._oracle import (
    OracleAbstained as OracleAbstained,
)
from gradledger.core.events._oracle import (
    OracleExplained as OracleExplained,
)
from gradledger.core.events._oracle import (
    Share as Share,
)
from gradledger.core.events._parts import (
    CallRef as CallRef,
)
from gradledger.core.events._parts import (
    Cut as Cut,
)
from gradledger.core.events._parts import (
    Dropped as Dropped,
)
from gradledger.core.events._parts import (
    Fill as Fill,
)
from gradledger.core.events._parts import (
    Group as Group,
)
from gradledger.core.events._parts import (
    Life as Life,
)
from gradledger.core.events._parts import (
    Operand as Operand,
)
from gradledger.core.events._parts import (
    PlainAttribute as PlainAttribute,
)
from gradledger.core.events._parts import (
    Term as Term,
)
from gradledger.core.events._ranks import (
    RankBatch as RankBatch,
)
from gradledger.core.events._ranks import (
    RankFinding as RankFinding,
)
from gradledger.core.events._ranks import (
    RankLoss as RankLoss,
)
from gradledger.core.events._ranks import (
    RankParameters as RankParameters,
)
from gradledger.core.events._ranks import (
    RankRun as RankRun,
)
from gradledger.core.events._ranks import (
    SamplerPass as SamplerPass,
)
from gradledger.core.events._reverse import (
    ActivationFed as ActivationFed,
)
from gradledger.core.events._reverse import (
    AliasWritten as AliasWritten,
)
from gradledger.core.events._reverse import (
    Backward as Backward,
)
from gradledger.core.events._reverse import (
    Broadcast as Broadcast,
)
from gradledger.core.events._reverse import (
    Comparison as Comparison,
)
from gradledger.core.events._reverse import (
    GraphDiscarded as GraphDiscarded,
)
from gradledger.core.events._reverse import (
    GraphsAlive as GraphsAlive,
)
from gradledger.core.events._reverse import (
    NonFinite as NonFinite,
)
from gradledger.core.events._reverse import (
    Recomputed as Recomputed,
)
