"""Training: where gradients come from, shadow copies, random states, optimizer states, checkpoints."""

from gradledger.train.checkpoint import Checkpoint as Checkpoint
from gradledger.train.checkpoint import CheckpointError as CheckpointError
from gradledger.train.gradients import GradientEngine as GradientEngine
from gradledger.train.gradients import PlainBackward as PlainBackward
from gradledger.train.seed import SeedError as SeedError
from gradledger.train.seed import seed_all as seed_all
from gradledger.train.shadow import Shadow as Shadow
from gradledger.train.shadow import ShadowError as ShadowError
