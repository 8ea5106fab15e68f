"""Where the passes of this family are: name -> `module:Class` below `mpmd_trace.passes`."""

from __future__ import annotations

PASSES: dict[str, str] = {
    "mpmd-shardy-propagation": "sharding.shardy_propagation:ShardyPropagation",
    "mpmd-populate-unreduced-out-sharding": (
        "sharding.populate_unreduced_out_sharding:PopulateUnreducedOutSharding"
    ),
    "mpmd-enforce-user-shardings": "sharding.enforce_user_shardings:EnforceUserShardings",
    "mpmd-extract-reshards-from-inter-mesh-transfers": (
        "sharding.extract_reshards_from_inter_mesh_transfers:ExtractReshardsFromInterMeshTransfers"
    ),
    "mpmd-convert-sdy-shardings-to-mpmd-types": (
        "sharding.convert_sdy_shardings_to_mpmd_types:ConvertSdyShardingsToMpmdTypes"
    ),
    "mpmd-convert-sdy-constants": "sharding.convert_sdy_constants:ConvertSdyConstants",
    "mpmd-simplify-program": "sharding.simplify_program:SimplifyProgram",
}
