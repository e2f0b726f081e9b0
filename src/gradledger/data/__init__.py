"""Data that cannot quietly go wrong: contracts, splits on record, learnability, exact loading. Each usable by itself.

Needs torch and numpy; what needs the `[data]` extra says so when it is called.
"""

from gradledger.data.collate import Pad as Pad
from gradledger.data.collate import masked_mean as masked_mean
from gradledger.data.errors import DataError as DataError
from gradledger.data.errors import LearnabilityError as LearnabilityError
from gradledger.data.errors import LeRobotError as LeRobotError
from gradledger.data.errors import LoaderError as LoaderError
from gradledger.data.errors import SchemaError as SchemaError
from gradledger.data.errors import SplitError as SplitError
from gradledger.data.groups import bursts as bursts
from gradledger.data.groups import components as components
from gradledger.data.groups import content_hash as content_hash
from gradledger.data.leaks import burst_test as burst_test
from gradledger.data.leaks import group_control as group_control
from gradledger.data.learnability import label_conflicts as label_conflicts
from gradledger.data.learnability import noise_floor as noise_floor
from gradledger.data.learnability import require_reachable as require_reachable
from gradledger.data.loader import Loader as Loader
from gradledger.data.malformed import malformed as malformed
from gradledger.data.malformed import survivors as survivors
from gradledger.data.manifest import Manifest as Manifest
from gradledger.data.manifest import record as record
from gradledger.data.sampled import unrepeatable as unrepeatable
from gradledger.data.schema import Declared as Declared
from gradledger.data.schema import Field as Field
from gradledger.data.schema import Schema as Schema
from gradledger.data.schema import require_same_shape as require_same_shape
from gradledger.data.split import Split as Split
from gradledger.data.transform import Standardise as Standardise
from gradledger.data.transform import fit_side as fit_side
from gradledger.data.transform import require_fitted_on as require_fitted_on
