"""Cost models: chips, topologies, collectives, the work of JAX primitives, and what all of them cost.

In: the name of a topology, an op or a collective.
Out: seconds, joules and bytes per device.
Entry: `cost_models.parse_topology`.
"""

from cost_models.calibrate import calibrate as calibrate
from cost_models.energy import EnergyObjective as EnergyObjective
from cost_models.errors import CostModelError as CostModelError
from cost_models.hardware import CHIPS as CHIPS
from cost_models.hardware import Chip as Chip
from cost_models.measured import Measured as Measured
from cost_models.network.collectives import COLLECTIVE_KINDS as COLLECTIVE_KINDS
from cost_models.network.links import Link as Link
from cost_models.network.links import Segment as Segment
from cost_models.objectives import OBJECTIVES as OBJECTIVES
from cost_models.objectives import Objective as Objective
from cost_models.objectives import TimeObjective as TimeObjective
from cost_models.objectives import objective as objective
from cost_models.profile import Profile as Profile
from cost_models.profile import load_profile as load_profile
from cost_models.profile import profile_path as profile_path
from cost_models.profile import save_profile as save_profile
from cost_models.profile import shipped_profile as shipped_profile
from cost_models.protocol import CostModel as CostModel
from cost_models.roofline import Roofline as Roofline
from cost_models.topology import Topology as Topology
from cost_models.topology import parse_topology as parse_topology
from cost_models.work import engine as engine
from cost_models.work import flops as flops
from cost_models.work import is_known as is_known
from cost_models.work import tpu_passes as tpu_passes
