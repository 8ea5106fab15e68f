"""All passes and pipelines, by family."""

from __future__ import annotations

from mpmd_trace.passes.common.table import PASSES as COMMON
from mpmd_trace.passes.export.table import PASSES as EXPORT
from mpmd_trace.passes.import_.table import PASSES as IMPORT
from mpmd_trace.passes.optimize.table import PASSES as OPTIMIZE
from mpmd_trace.passes.sharding.table import PASSES as SHARDING

PASS_TABLES: list[dict[str, str]] = [IMPORT, COMMON, OPTIMIZE, SHARDING, EXPORT]
PIPELINES: dict[str, str] = {
    "mpmd-infer-mesh-pipeline": "import_.pipelines:InferMeshPipeline",
    "mpmd-import-pipeline": "import_.pipelines:ImportPipeline",
    "mpmd-optimize-pipeline": "optimize.pipelines:OptimizePipeline",
    "mpmd-sharding-propagation-pipeline": "sharding.pipelines:ShardingPropagationPipeline",
    "mpmd-export-pipeline": "export.pipelines:ExportPipeline",
}
