"""All passes and pipelines: their names, and where they are (imported only when needed)."""

from __future__ import annotations

__all__ = ["OLD_OPTIONS", "PASSES", "PIPELINES", "VARIANTS"]

#: Names without `mpmd-`, by folder.  The pass `mpmd-call-inline` of `common` is `common.call_inline:CallInline`.
_FOLDERS = {
    "import_": """
        clean-up copy-topology-from-main enforce-input-output-equisharding generate-sdy-meshes-from-topology
        infer-mesh-assign-mesh-func-leaves infer-mesh-assign-using-input-output-constraints
        infer-mesh-convert-reduce-ops infer-mesh-finalize infer-mesh-populate-src-set
        infer-mesh-populate-use-set infer-mesh-rewrite-using-analysis
        infer-mesh-validate-no-additional-transfers-needed infer-mesh-validate-src-set-not-empty
        inline-nested-user-exposed-ops insert-nameless-clone-of-negligible-ops introduce-transfers
        map-input-output-to-mesh map-named-ops-to-mpmd-ops simplify-named-computations
        validate-named-ops-in-mpmd-func
    """,
    "microbatches": "accumulate-in-calls cut-in-calls repeat-calls repeat-steady-state",
    "programs": """
        merge-parts-of-stages merge-backward-with-forward share-programs reuse-programs
        merge-paired-programs merge-blocks overlap-microbatches
    """,
    "propagation": "use-own-meshes prefer-rows",
    "placement": "find-stages split-loops open-conditionals split-concatenations regroup-sums place",
    "hoisting": "hoist-invariants reduce-once",
    "memory": "shard-optimizer-state fit-memory",
    "common": """
        call-inline copy-constants erase-unused-callee-block-arguments fragment-dce fragment-dedup
        from-unroll-to-call-counter merge-transfers move-transfers-to-producer remove-transfer-cycles
        sink-negligible-ops-into-call-op split-and-prioritize-transfer-independent-computations
        split-bwd-fragments uniquify-function-inputs-outputs unroll-for-loops absorb-inferred-fragments
        merge-inferred-fragments merge-forward-with-backward merge-user-fragments-into-scheduling-units
        verify-stage-merging rule-based-merge scheduling-units-verifier
    """,
    "optimize": "pipeline-scheduler rule-based-schedule remat-fragment",
    "sharding": """
        shardy-propagation populate-unreduced-out-sharding enforce-user-shardings
        extract-reshards-from-inter-mesh-transfers convert-sdy-shardings-to-mpmd-types convert-sdy-constants
        simplify-program
    """,
    "export": """
        mark-offloaded-input-output mark-input-output-with-layouts delay-inferred-fragments
        delay-transfers-from-cpu sink-create-token-into-fragments mark-aliasing-and-donation
        mark-fragment-reserved-memory validate-no-param-transfers validate-no-inferred-fragments
        lower-to-fragment-calls validate-no-reshards validate-no-backward-deps
    """,
}
#: Passes of the reference as `mpmd_trace.jit` runs them, by module.
_VARIANTS = {
    "variants": """
        clean-up-for-xla introduce-direct-transfers erase-unused-arguments-of-all-calls
        finalize-keeping-memories merge-units-in-callees merge-by-rules-strictly verify-stages-of-loops
        propagate-with-chlo extract-reshards-keeping-host-copies convert-shardings-unsetting-whole
    """,
    "microbatches.merge_inferred_apart": "merge-inferred-apart",
    "microbatches.follow_schedule": "follow-schedule",
    "fission.split_divided": "split-divided-bwd-fragments",
    "programs.mark_equal_donation": "mark-equal-donation",
}
#: Those whose names say something else.
_OTHERS = {
    "inline": "inline:Inline",
    "stablehlo-target-independent-optimization": "stablehlo_optimize:StablehloOptimize",
    "mpmd-call-outlined-functions": "outlining:CallOutlinedFunctions",
    "mpmd-canonicalize-unrolled": "import_.clean_up:CanonicalizeUnrolled",
    "mpmd-canonicalize": "canonicalize:Canonicalize",
    "mpmd-cse": "cse:Cse",
    "mpmd-symbol-dce": "symbol_dce:SymbolDce",
}


def _class_of(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


#: Name of a pass -> `module:Class` below `mpmd_trace.passes`.
PASSES = {
    **{
        f"mpmd-{name}": f"{folder}.{name.replace('-', '_')}:{_class_of(name)}"
        for folder, names in _FOLDERS.items()
        for name in names.split()
    },
    **_OTHERS,
}
#: The same for those that differ from passes of the reference in one thing.
VARIANTS = {
    f"mpmd-{name}": f"{module}:{_class_of(name)}" for module, names in _VARIANTS.items() for name in names.split()
}
#: Options of the last release -> the pass that does now what they asked for.
OLD_OPTIONS = {
    ("mpmd-introduce-transfers", "direct-only"): "mpmd-introduce-direct-transfers",
    ("mpmd-infer-mesh-finalize", "keep-memories"): "mpmd-finalize-keeping-memories",
    ("mpmd-erase-unused-callee-block-arguments", "unused-calls"): "mpmd-erase-unused-arguments-of-all-calls",
    (
        "mpmd-extract-reshards-from-inter-mesh-transfers",
        "copies-between-hosts",
    ): "mpmd-extract-reshards-keeping-host-copies",
}
#: Name of a pipeline -> `module:Class`.
PIPELINES = {
    "mpmd-infer-mesh-pipeline": "named_pipelines:InferMeshPipeline",
    "mpmd-import-pipeline": "named_pipelines:ImportPipeline",
    "mpmd-optimize-pipeline": "named_pipelines:OptimizePipeline",
    "mpmd-sharding-propagation-pipeline": "named_pipelines:ShardingPropagationPipeline",
    "mpmd-export-pipeline": "named_pipelines:ExportPipeline",
}
