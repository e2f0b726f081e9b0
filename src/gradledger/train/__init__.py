"""Training: where gradients come from, the loop, modes, parameter groups, shadow copies, random states, checkpoints."""

from gradledger.train.background import BackgroundSaves as BackgroundSaves
from gradledger.train.checkpoint import Checkpoint as Checkpoint
from gradledger.train.checkpoint import CheckpointError as CheckpointError
from gradledger.train.gradients import GradientEngine as GradientEngine
from gradledger.train.gradients import PlainBackward as PlainBackward
from gradledger.train.loop import LoopError as LoopError
from gradledger.train.loop import Stepped as Stepped
from gradledger.train.loop import steps as steps
from gradledger.train.modes import evaluating as evaluating
from gradledger.train.modes import frozen as frozen
from gradledger.train.param_groups import Group as Group
from gradledger.train.param_groups import ParamGroupError as ParamGroupError
from gradledger.train.param_groups import decay_groups as decay_groups
from gradledger.train.param_groups import exact_cover as exact_cover
from gradledger.train.ranks import RanksError as RanksError
from gradledger.train.run_state import ResumeError as ResumeError
from gradledger.train.run_state import RunState as RunState
from gradledger.train.seed import SeedError as SeedError
from gradledger.train.seed import seed_all as seed_all
from gradledger.train.shadow import Shadow as Shadow
from gradledger.train.shadow import ShadowError as ShadowError
