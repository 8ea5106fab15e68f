"""Run an example up to its first step, compile that for a target, print what is known of it, and end.

python example_on_target.py EXAMPLE.py tpu:v5e:2x4
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import runpy
import sys
from typing import Any

from mpmd_trace.api.jit import Jitted
from mpmd_trace.api.targets import Moved

example, target = sys.argv[1:]
lower = Jitted._lower


def lower_for_target(self: Any, args: Any, kwargs: Any, *more: Any) -> Any:
    moved = Moved(self.config, target)
    other = copy.copy(self)
    other.config = moved.config
    in_shardings, out_shardings = map(moved.sharding, (self.settings.in_shardings, self.settings.out_shardings))
    other.settings = dataclasses.replace(self.settings, in_shardings=in_shardings, out_shardings=out_shardings)
    compiled = lower(other, moved.types(args), moved.types(kwargs)).compile()
    said = {mesh: memory.peak for mesh, memory in compiled.memory_analysis().items()}
    kinds = {d.device_kind for mesh in compiled.program.topology.values() for d in mesh.devices.flat}
    print(json.dumps({"peak": said, "kinds": sorted(kinds), "flops": compiled.cost_analysis()["flops"]}), flush=True)
    os._exit(0)


Jitted._lower = lower_for_target  # type: ignore[method-assign]
sys.argv = [example]
sys.path.insert(0, os.path.dirname(example))
runpy.run_path(example, run_name="__main__")
sys.exit("the example ended without a step")
