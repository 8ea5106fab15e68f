"""The sharding propagation pipeline: afterwards every mesh tensor type says how the value is sharded."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.passes.base import Pass, Pipeline
from mpmd_trace.passes.common.uniquify_function_inputs_outputs import UniquifyFunctionInputsOutputs
from mpmd_trace.passes.hoisting.hoist_invariants import HoistInvariants
from mpmd_trace.passes.hoisting.reduce_once import ReduceOnce
from mpmd_trace.passes.memory.fit_memory import FitMemory
from mpmd_trace.passes.memory.shard_optimizer_state import ShardOptimizerState
from mpmd_trace.passes.sharding.convert_sdy_constants import ConvertSdyConstants
from mpmd_trace.passes.sharding.convert_sdy_shardings_to_mpmd_types import ConvertSdyShardingsToMpmdTypes
from mpmd_trace.passes.sharding.enforce_user_shardings import EnforceUserShardings
from mpmd_trace.passes.sharding.extract_reshards_from_inter_mesh_transfers import ExtractReshardsFromInterMeshTransfers
from mpmd_trace.passes.sharding.populate_unreduced_out_sharding import PopulateUnreducedOutSharding
from mpmd_trace.passes.sharding.prefer_rows import PreferRows
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation
from mpmd_trace.passes.sharding.simplify_program import SimplifyProgram
from mpmd_trace.passes.sharding.use_own_meshes import UseOwnMeshes
from mpmd_trace.passes.stablehlo_optimize import StablehloOptimize

__all__ = ["ShardingPropagationPipeline"]


@dataclasses.dataclass(frozen=True)
class ShardingPropagationPipeline(Pipeline):
    """Shardings of inputs, outputs and constraints have reached all values and are in their types.

    A transfer never changes a sharding: fragments reshard.
    """

    name: ClassVar[str] = "mpmd-sharding-propagation-pipeline"
    summary: ClassVar[str] = "propagate shardings and put them into types"

    #: `mpmd_trace.jit` sets this; the text form does not have it.
    copies_between_hosts: bool = False
    #: Likewise: a sharding means the axes of the mesh of its value, so that transfers between meshes reshard.
    own_meshes: bool = False
    #: Likewise: Shardy is given rules for CHLO's ops, and constants are shared where there are no shardings.
    chlo: bool = False
    #: Likewise: compute once what is the same for all microbatches.
    hoist: HoistInvariants | None = None
    #: Likewise: finish sums over devices once per step.
    reduce: ReduceOnce | None = None
    #: Likewise: shard the optimizer's state.
    state: ShardOptimizerState | None = None
    #: Likewise: recompute or offload what forwards leave.
    fit: FitMemory | None = None

    def passes(self) -> list[Pass]:
        """Return the steps, in order."""
        steps: list[Pass] = [
            UniquifyFunctionInputsOutputs(use_transfer_instead_of_fragment=True),
            *([PreferRows()] if self.hoist is not None else []),
            ShardyPropagation(chlo=self.chlo, split=not self.chlo),
            PopulateUnreducedOutSharding(),
            EnforceUserShardings(),
        ]
        if self.own_meshes:  # propagation takes meshes with the same axes for one
            steps = [UseOwnMeshes(), *steps, UseOwnMeshes()]
        else:
            steps.append(ExtractReshardsFromInterMeshTransfers(self.copies_between_hosts))
        ours = [one for one in (self.state, self.fit, self.hoist, self.reduce) if one is not None]
        return [
            *steps,
            *ours,
            ConvertSdyShardingsToMpmdTypes(whole_is_unset=bool(ours)),
            ConvertSdyConstants(),
            StablehloOptimize(),
            SimplifyProgram(),
        ]
