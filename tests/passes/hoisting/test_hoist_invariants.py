"""What is the same for all microbatches is computed once; nothing that is computed changes."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning

W, X, H = "tensor<64x16xf32>", "tensor<4x16xf32>", "tensor<64x16xbf16>"
PRELUDE = """
#meshes = #mpmd.topology<<"a" : <["data"=2]>>>
sdy.mesh @mesh = <["data"=2]>
"""


def on_mesh(type: str) -> str:
    return f'!mpmd.mesh_tensor<"a", {type}>'


def step(body: str, microbatches: int = 3, result: str = X, **more: str) -> Module:
    """One fragment for each microbatch , all of which read the weight `%w`.

    `more`: `weight` and `shardings`, the attributes of the weight and those of the fragments.
    """
    fragments = [
        f"""
      %{m} = mpmd.fragment<mesh="a", origin=["f"]{more.get("shardings", "")}> (%p, %in{m})
          {{call_counter = {m} : ui32}} (%w: {W}, %x: {X}) {{
        {body}
        mpmd.return %r : {result}
      }} : ({on_mesh(W)}, {on_mesh(X)}) -> {on_mesh(result)}"""
        for m in range(microbatches)
    ]
    arguments = ", ".join(f"%in{m}: {on_mesh(X)}" for m in range(microbatches))
    results = ", ".join([on_mesh(result)] * microbatches)
    text = f"""
    func.func public @main(%p: {on_mesh(W)} {more.get("weight", "")}, {arguments}) -> ({results})
        attributes {{topology = #meshes}} {{
      {"".join(fragments)}
      return {", ".join(f"%{m}" for m in range(microbatches))} : {results}
    }}"""
    return parse(PRELUDE + text)


def hoisted(before: Module, options: str = "launch=0") -> tuple[Module, list[str]]:
    """The program with the pass, which means the same, and the ops that run before the first microbatch."""
    after = before.clone()
    PassManager(f"mpmd-hoist-invariants{{{options}}}", verify=True).run(after)
    assert_same_meaning(before, after)
    made = [op for op in after.main.body if isinstance(op, FragmentOp) and op.origin[0].name == "hoisted"]
    return after, [op.name for fragment in made for op in fragment.body.block if not op.is_terminator]


CAST = f"%h = stablehlo.convert %w : ({W}) -> {H}"
CAST_USED = f"""{CAST}
    %x2 = stablehlo.convert %x : ({X}) -> tensor<4x16xbf16>
    %r = stablehlo.dot_general %x2, %h, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, {H}) -> tensor<4x64xf32>"""


def test_a_cast_of_weights_is_made_once() -> None:
    after, ops = hoisted(step(CAST_USED, result="tensor<4x64xf32>"))
    assert ops == ["stablehlo.convert"]
    assert str(after).count(f"({W}) -> {H}") == 1


def test_the_branch_of_a_conditional_returns_it() -> None:
    body = f"""{CAST}
        %k = stablehlo.constant dense<true> : tensor<i1>
        %s:2 = "stablehlo.if"(%k) ({{
          stablehlo.return %x, %h : {X}, {H}
        }}, {{
          %n = stablehlo.negate %h : {H}
          stablehlo.return %x, %n : {X}, {H}
        }}) : (tensor<i1>) -> ({X}, {H})
        %x2 = stablehlo.convert %s#0 : ({X}) -> tensor<4x16xbf16>
        %r = stablehlo.dot_general %x2, %s#1, contracting_dims = [1] x [1]
            : (tensor<4x16xbf16>, {H}) -> tensor<4x64xf32>"""
    assert "stablehlo.convert" in hoisted(step(body, result="tensor<4x64xf32>"))[1]


def test_it_is_not_worth_a_launch_where_it_saves_little() -> None:
    before = step(CAST_USED, result="tensor<4x64xf32>")
    assert hoisted(before, "launch=100000")[1] == []
    assert hoisted(before, "launch=8000")[1] == ["stablehlo.convert"]  # 2 x 64 x 16 x 4.125 bytes


def test_one_microbatch_has_nothing_to_share() -> None:
    assert hoisted(step(CAST_USED, 1, "tensor<4x64xf32>"))[1] == []


def test_what_a_device_cannot_hold_stays() -> None:
    before = step(CAST_USED, result="tensor<4x64xf32>")
    held = 64 * 16 * 4 + 3 * 4 * 16 * 4 + 3 * 4 * 64 * 4
    assert hoisted(before, f"launch=0 limit={held + 2048}")[1] == ["stablehlo.convert"]
    assert hoisted(before, f"launch=0 limit={held + 2047}")[1] == []


def test_what_xla_fuses_stays() -> None:
    """Broadcasts, transposes and what is cheap for its size."""
    body = f"""
        %t = stablehlo.transpose %w, dims = [1, 0] : ({W}) -> tensor<16x64xf32>
        %i = stablehlo.iota dim = 1 : tensor<4x64xf32>
        %m = stablehlo.multiply %i, %i : tensor<4x64xf32>
        %d = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : ({X}, tensor<16x64xf32>) -> tensor<4x64xf32>
        %r = stablehlo.add %d, %m : tensor<4x64xf32>"""
    assert hoisted(step(body, result="tensor<4x64xf32>"))[1] == []


def test_tables_of_transcendental_functions_move() -> None:
    body = f"""
        %i = stablehlo.iota dim = 1 : {X}
        %s = stablehlo.sine %i : {X}
        %r = stablehlo.add %x, %s : {X}"""
    assert hoisted(step(body), "launch=0 least=0")[1] == ["stablehlo.iota", "stablehlo.sine"]


def test_what_stays_is_computed_of_what_moves() -> None:
    """The transpose is not worth its memory, the cast below it is."""
    body = f"""{CAST}
        %t = stablehlo.transpose %h, dims = [1, 0] : ({H}) -> tensor<16x64xbf16>
        %x2 = stablehlo.convert %x : ({X}) -> tensor<4x16xbf16>
        %r = stablehlo.dot_general %x2, %t, contracting_dims = [1] x [0]
            : (tensor<4x16xbf16>, tensor<16x64xbf16>) -> tensor<4x64xf32>"""
    assert hoisted(step(body, result="tensor<4x64xf32>"))[1] == ["stablehlo.convert"]


def test_residuals_that_are_the_same_are_not_handed_on() -> None:
    """A forward fragment that returns a cast of the weight for the backward one."""
    fragments = [
        f"""
      %f{m}:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in{m}) {{call_counter = {m} : ui32}} (%w: {W}, %x: {X}) {{
        {CAST}
        %y = stablehlo.sine %x : {X}
        mpmd.return %y, %h : {X}, {H}
      }} : ({on_mesh(W)}, {on_mesh(X)}) -> ({on_mesh(X)}, {on_mesh(H)})
      %b{m} = mpmd.fragment<mesh="a", origin=["f"(1)]> (%f{m}#0, %f{m}#1) {{call_counter = {m} : ui32}}
          (%x: {X}, %h: {H}) {{
        %x2 = stablehlo.convert %x : ({X}) -> tensor<4x16xbf16>
        %r = stablehlo.dot_general %x2, %h, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, {H}) -> tensor<4x64xf32>
        mpmd.return %r : tensor<4x64xf32>
      }} : ({on_mesh(X)}, {on_mesh(H)}) -> {on_mesh("tensor<4x64xf32>")}"""
        for m in range(2)
    ]
    results = ", ".join([on_mesh("tensor<4x64xf32>")] * 2)
    after, ops = hoisted(
        parse(
            PRELUDE
            + f"""
    func.func public @main(%p: {on_mesh(W)}, %in0: {on_mesh(X)}, %in1: {on_mesh(X)}) -> ({results})
        attributes {{topology = #meshes}} {{
      {"".join(fragments)}
      return %b0, %b1 : {results}
    }}"""
        )
    )
    assert ops == ["stablehlo.convert"]
    results_of = [len(op.results) for op in after.main.body if isinstance(op, FragmentOp)]
    assert results_of == [1, 1, 1, 1, 1]


SHARDED = '{sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}'
BATCH_SHARDED = ', in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]'
PRODUCT = f"""
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
        {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"data"}}, {{}}]>]>}} : ({X}, {W}) -> tensor<4x64xf32>"""


def test_a_weight_is_gathered_once() -> None:
    """Rows of activations and of the weight are sharded over the same axis."""
    after, ops = hoisted(
        step(PRODUCT, result="tensor<4x64xf32>", weight=SHARDED, shardings=BATCH_SHARDED), "launch=1000000000"
    )
    assert ops == ["sdy.sharding_constraint"]
    first = next(op for op in after.main.body if isinstance(op, FragmentOp))
    assert first.out_shardings is not None
    assert [s.stripped for s in first.out_shardings.shardings] == ["<@mesh, [{}, {}]>"]


def test_a_weight_that_is_used_as_it_is_sharded_stays() -> None:
    """The axis of the weight is an axis of the result, as in tensor parallelism."""
    product = PRODUCT.replace('[{"data"}, {}]', '[{}, {"data"}]')
    shardings = ', in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]'
    assert hoisted(step(product, result="tensor<4x64xf32>", weight=SHARDED, shardings=shardings))[1] == []


def test_a_weight_whose_columns_are_sharded_over_the_axis_of_the_rows_is_gathered_once() -> None:
    """Shardy gives the result the axis of either; XLA gathers the weight."""
    product = PRODUCT.replace('[{"data"}, {}]', '[{}, {"data"}]')
    before = step(product, result="tensor<4x64xf32>", weight=SHARDED, shardings=BATCH_SHARDED)
    assert hoisted(before)[1] == ["sdy.sharding_constraint"]


# Random programs.


def test_a_slice_that_all_microbatches_read_is_cast_once() -> None:
    """As of a layer's part of stacked weights."""
    half = "tensor<32x16xf32>"
    body = f"""
        %s = stablehlo.slice %w [0:32, 0:16] : ({W}) -> {half}
        %h = stablehlo.convert %s : ({half}) -> tensor<32x16xbf16>
        %x2 = stablehlo.convert %x : ({X}) -> tensor<4x16xbf16>
        %r = stablehlo.dot_general %x2, %h, contracting_dims = [1] x [1]
            : (tensor<4x16xbf16>, tensor<32x16xbf16>) -> tensor<4x32xf32>"""
    assert hoisted(step(body, result="tensor<4x32xf32>"))[1] == ["stablehlo.slice", "stablehlo.convert"]


def test_merged_fragments_share_weights_but_no_rows_of_a_batch() -> None:
    """A forward is merged with the backward before it: each slice of the batch is read in two fragments."""
    batch, out = "tensor<12x16xf32>", "tensor<4x64xf32>"
    compute = f"""
        %x2 = stablehlo.convert %x{{0}} : ({X}) -> tensor<4x16xbf16>
        %r{{0}} = stablehlo.dot_general %x2, %h, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, {H}) -> {out}"""

    def fragment(number: int, forward: int | None, backward: int | None) -> str:
        parts = [m for m in (forward, backward) if m is not None]
        work = [
            f"%x{m} = stablehlo.slice %b [{4 * m}:{4 * m + 4}, 0:16] : ({batch}) -> {X}"
            + compute.replace("%x2", f"%c{m}").format(m)
            for m in parts
        ]
        where = f"call_counter = {parts[0]} : ui32"
        if len(parts) == 2:
            where = f"mpmd.merged_call_counters = [{backward} : ui32, {forward} : ui32]"
        return f"""
      %{number}:{len(parts)} = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in) {{{where}}} (%w: {W}, %b: {batch}) {{
        {CAST}
        {" ".join(work)}
        mpmd.return {", ".join(f"%r{m}" for m in parts)} : {", ".join([out] * len(parts))}
      }} : ({on_mesh(W)}, {on_mesh(batch)}) -> ({", ".join([on_mesh(out)] * len(parts))})"""

    before = parse(
        PRELUDE
        + f"""
    func.func public @main(%p: {on_mesh(W)}, %in: {on_mesh(batch)}) -> ({", ".join([on_mesh(out)] * 6)})
        attributes {{topology = #meshes}} {{
      {fragment(0, 0, None)} {fragment(1, 1, 0)} {fragment(2, 2, 1)} {fragment(3, None, 2)}
      return %0, %1#0, %1#1, %2#0, %2#1, %3 : {", ".join([on_mesh(out)] * 6)}
    }}"""
    )
    assert hoisted(before)[1] == ["stablehlo.convert"]
