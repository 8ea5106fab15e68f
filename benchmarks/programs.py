"""Training steps as MLIR text, for benchmarks of the compiler alone."""

from __future__ import annotations


def _chain(lines: list[str], start: str, count: int, prefix: str) -> str:
    """`count` elementwise ops one after the other; gives the last value."""
    ops = ("sine", "tanh", "negate", "abs", "cosine", "logistic")
    value = start
    for i in range(count):
        lines.append(f"      %{prefix}{i} = stablehlo.{ops[i % len(ops)]} {value} : tensor<16x16xf32>")
        value = f"%{prefix}{i}"
    return value


def training_step(stages: int, microbatches: int, ops: int = 54) -> str:
    """`stages` x `microbatches`, about `ops` StableHLO ops per forward stage, gradients accumulated.

    Every microbatch is one `mpmd.call` of a function with a forward and a backward named computation per stage.
    """
    t = "tensor<16x16xf32>"
    body: list[str] = []
    x = "%x"
    for s in range(stages):
        inner: list[str] = []
        inner.append(f"      %d = stablehlo.dot_general %p, %w, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}")
        middle = _chain(inner, "%d", ops // 2 - 1, "va")
        last = _chain(inner, middle, ops - ops // 2, "vb")
        body.append(
            f'    %f{s}:2 = mpmd.named_computation<"s{s}"> (%w{s}, {x}) (%w: {t}, %p: {t}) {{\n'
            + "\n".join(inner)
            + f"\n      mpmd.return {last}, {middle} : {t}, {t}\n    }} : ({t}, {t}) -> ({t}, {t})"
        )
        x = f"%f{s}#0"
    g = x
    for s in reversed(range(stages)):
        before = "%x" if s == 0 else f"%f{s - 1}#0"
        inner = []
        one = _chain(inner, "%g", ops - 2, "va")
        inner.append(f"      %m = stablehlo.multiply {one}, %r : {t}")
        inner.append(f"      %dw = stablehlo.dot_general %p, %m, contracting_dims = [0] x [0] : ({t}, {t}) -> {t}")
        inner.append(f"      %dx = stablehlo.dot_general %m, %w, contracting_dims = [1] x [1] : ({t}, {t}) -> {t}")
        dx = _chain(inner, "%dx", ops - 2, "vb")
        body.append(
            f'    %b{s}:2 = mpmd.named_computation<"s{s}"(1)> (%w{s}, {before}, %f{s}#1, {g}) '
            f"(%w: {t}, %p: {t}, %r: {t}, %g: {t}) {{\n"
            + "\n".join(inner)
            + f"\n      mpmd.return {dx}, %dw : {t}, {t}\n    }} : ({t}, {t}, {t}, {t}) -> ({t}, {t})"
        )
        g = f"%b{s}#0"
    types = ", ".join([t] * stages)
    args = ", ".join(f"%w{s}: {t}" for s in range(stages))
    grads = ", ".join(f"%b{s}#1" for s in range(stages))
    main: list[str] = []
    for m in range(microbatches):
        weights = ", ".join(f"%w{s}" for s in range(stages))
        result = f"%c{m}" + (f":{stages}" if stages > 1 else "")
        main.append(
            f"    {result} = mpmd.call @mb({weights}, %x{m}) {{call_counter = {m} : ui32}} : "
            f"({types}, {t}) -> ({types})"
        )
        for s in range(stages):
            new = f"%c{m}#{s}" if stages > 1 else f"%c{m}"
            if m == 0:
                continue
            old = (f"%c0#{s}" if stages > 1 else "%c0") if m == 1 else f"%g{m - 1}_{s}"
            main.append(f"    %g{m}_{s} = stablehlo.add {old}, {new} : {t}")
    for s in range(stages):
        last = f"%g{microbatches - 1}_{s}" if microbatches > 1 else (f"%c0#{s}" if stages > 1 else "%c0")
        main.append(f"    %u{s} = stablehlo.subtract %w{s}, {last} : {t}")
    inputs = ", ".join(f"%x{m}: {t}" for m in range(microbatches))
    outs = ", ".join(f"%u{s}" for s in range(stages))
    return (
        f"module @step {{\n  func.func public @main({args}, {inputs}) -> ({types}) {{\n"
        + "\n".join(main)
        + f"\n    return {outs} : {types}\n  }}\n"
        + f"  func.func private @mb({args}, %x: {t}) -> ({types}) {{\n"
        + "\n".join(body)
        + f"\n    return {grads} : {types}\n  }}\n}}\n"
    )


def arguments(stages: int, microbatches: int) -> dict[str, object]:
    """Arguments of `mpmd_trace.partition` for `training_step`: one stage per mesh of two devices."""
    return {
        "func_name": "step",
        "named_meshes": [(f"m{s}", [("x", 2)]) for s in range(stages)],
        "assignment": {f"s{s}": f"m{s}" for s in range(stages)},
        "input_meshes": [None] * (stages + microbatches),
        "output_meshes": [None] * stages,
        "donate_argnums": [],
        "partitioning_options": {"mpmd_infer_transfers": True, "mpmd_pipeline_schedule": "1F1B"},
    }
