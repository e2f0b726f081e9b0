"""What an experiment leaves behind: predictions locked first, every trial, statistics, a card to be re-checked."""

from gradledger.evidence.errors import BundleError as BundleError
from gradledger.evidence.errors import CardError as CardError
from gradledger.evidence.errors import EvidenceError as EvidenceError
from gradledger.evidence.errors import PlanError as PlanError
from gradledger.evidence.errors import StatisticsError as StatisticsError
from gradledger.evidence.errors import TrialError as TrialError
from gradledger.evidence.trial import Names as Names
from gradledger.evidence.trial import Outcome as Outcome
from gradledger.evidence.trial import Trial as Trial
from gradledger.evidence.trial import tell as tell
