"""The explicit reverse pass: blocks, a plan, and a walk back by local vector-Jacobian products."""

from gradledger.sweep._action import Action as Action
from gradledger.sweep._action import PlanError as PlanError
from gradledger.sweep._block import Block as Block
from gradledger.sweep._block import blocks as blocks
from gradledger.sweep._check import check_gradients as check_gradients
from gradledger.sweep._cost import BlockCost as BlockCost
from gradledger.sweep._cost import Costs as Costs
from gradledger.sweep._cotangents import Cotangents as Cotangents
from gradledger.sweep._events import Deferred as Deferred
from gradledger.sweep._events import Event as Event
from gradledger.sweep._events import ReverseWalk as ReverseWalk
from gradledger.sweep._memory import MemoryWatch as MemoryWatch
from gradledger.sweep._memory import peak_of as peak_of
from gradledger.sweep._plan import Keep as Keep
from gradledger.sweep._plan import Plan as Plan
from gradledger.sweep._plan import Segment as Segment
from gradledger.sweep._planners import BudgetError as BudgetError
from gradledger.sweep._planning import Planned as Planned
from gradledger.sweep._planning import plan as plan
from gradledger.sweep._simulate import simulate as simulate
from gradledger.sweep._sweep import PeakWarning as PeakWarning
from gradledger.sweep._sweep import Step as Step
from gradledger.sweep._sweep import Sweep as Sweep
from gradledger.sweep._verify import Verification as Verification
