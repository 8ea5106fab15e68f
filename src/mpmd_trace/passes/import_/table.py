"""Where the passes of this family are: name -> `module:Class` below `mpmd_trace.passes`."""

from __future__ import annotations

PASSES: dict[str, str] = {
    "inline": "inline_calls:InlineCalls",
    "stablehlo-target-independent-optimization": "stablehlo_optimize:StablehloOptimize",
    "mpmd-canonicalize-unrolled": "import_.clean_up:CanonicalizeUnrolled",
    "mpmd-clean-up": "import_.clean_up:CleanUp",
    "mpmd-copy-topology-from-main": "import_.copy_topology_from_main:CopyTopologyFromMain",
    "mpmd-enforce-input-output-equisharding": (
        "import_.enforce_input_output_equisharding:EnforceInputOutputEquisharding"
    ),
    "mpmd-find-stages": "import_.find_stages:FindStages",
    "mpmd-generate-sdy-meshes-from-topology": (
        "import_.generate_sdy_meshes_from_topology:GenerateSdyMeshesFromTopology"
    ),
    "mpmd-infer-mesh-assign-mesh-func-leaves": (
        "import_.infer_mesh_assign_mesh_func_leaves:InferMeshAssignMeshFuncLeaves"
    ),
    "mpmd-infer-mesh-assign-using-input-output-constraints": (
        "import_.infer_mesh_assign_using_input_output_constraints:"
        "InferMeshAssignUsingInputOutputConstraints"
    ),
    "mpmd-infer-mesh-convert-reduce-ops": (
        "import_.infer_mesh_convert_reduce_ops:InferMeshConvertReduceOps"
    ),
    "mpmd-infer-mesh-finalize": "import_.infer_mesh_finalize:InferMeshFinalize",
    "mpmd-infer-mesh-populate-src-set": (
        "import_.infer_mesh_populate_src_set:InferMeshPopulateSrcSet"
    ),
    "mpmd-infer-mesh-populate-use-set": (
        "import_.infer_mesh_populate_use_set:InferMeshPopulateUseSet"
    ),
    "mpmd-infer-mesh-rewrite-using-analysis": (
        "import_.infer_mesh_rewrite_using_analysis:InferMeshRewriteUsingAnalysis"
    ),
    "mpmd-infer-mesh-validate-no-additional-transfers-needed": (
        "import_.infer_mesh_validate_no_additional_transfers_needed:"
        "InferMeshValidateNoAdditionalTransfersNeeded"
    ),
    "mpmd-infer-mesh-validate-src-set-not-empty": (
        "import_.infer_mesh_validate_src_set_not_empty:InferMeshValidateSrcSetNotEmpty"
    ),
    "mpmd-inline-nested-user-exposed-ops": (
        "import_.inline_nested_user_exposed_ops:InlineNestedUserExposedOps"
    ),
    "mpmd-insert-nameless-clone-of-negligible-ops": (
        "import_.insert_nameless_clone_of_negligible_ops:InsertNamelessCloneOfNegligibleOps"
    ),
    "mpmd-introduce-transfers": "import_.introduce_transfers:IntroduceTransfers",
    "mpmd-map-input-output-to-mesh": "import_.map_input_output_to_mesh:MapInputOutputToMesh",
    "mpmd-map-named-ops-to-mpmd-ops": "import_.map_named_ops_to_mpmd_ops:MapNamedOpsToMpmdOps",
    "mpmd-simplify-named-computations": (
        "import_.simplify_named_computations:SimplifyNamedComputations"
    ),
    "mpmd-validate-named-ops-in-mpmd-func": (
        "import_.validate_named_ops_in_mpmd_func:ValidateNamedOpsInMpmdFunc"
    ),
}
