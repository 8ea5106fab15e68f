"""Exported modules on virtual CPU devices against the reference interpreter."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import MANUAL_SUM, ONES, PAIRS, PIPELINE
from jaxlib.mlir import ir

from mpmd_trace.backend.load import LoadedProgram, load, run_module
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.mlir import new_context
from mpmd_trace_devtools.interpreter import interpret, random_args
from pipelines import mesh
from util import only_new_objects


def pipeline() -> LoadedProgram:
    return load(parse(PIPELINE), PAIRS)


def place(program: LoadedProgram, args: list[np.ndarray]) -> list[jax.Array]:
    with jax.enable_x64(True):
        return [jax.device_put(a, s) for a, s in zip(args, program.input_shardings, strict=True)]


def check(text: str, meshes: dict[str, jax.sharding.Mesh]) -> LoadedProgram:
    """The module computes what the interpreter says, twice, and measured; arguments survive unless donated."""
    module = parse(text)
    program = load(module, meshes)
    args = random_args(module)
    expected = interpret(module, args)
    for call in (program, program, lambda *a: program.measure(*a)[0]):
        arrays = place(program, args)
        found = call(*arrays)
        assert len(found) == len(expected)
        for value, wanted, spec in zip(found, expected, program.output_specs, strict=True):
            assert (value.shape, value.dtype) == (spec.shape, spec.dtype)
            assert value.sharding.is_equivalent_to(spec.sharding, value.ndim)
            assert value.sharding.memory_kind == spec.sharding.memory_kind
            np.testing.assert_array_equal(np.asarray(value), wanted)
        for i, (array, arg) in enumerate(zip(arrays, args, strict=True)):
            if i not in program.plan.donated:
                np.testing.assert_array_equal(np.asarray(array), arg)
    return program


def test_texts_modules_of_jaxlib_and_topologies_in_pairs() -> None:
    """The partitioner of jaxlib gives a module of jaxlib."""
    module = parse(PIPELINE)
    args = random_args(module)
    with new_context():
        theirs = ir.Module.parse(module.to_generic())
        results = run_module(PIPELINE, PAIRS, args), run_module(theirs, list(PAIRS.items()), args)
    for found in results:
        for value, wanted in zip(found, interpret(module, args), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5)
        assert {d.id for d in found[0].devices()} == {2, 3}


def test_what_cannot_be_run() -> None:
    for wrong in (None, 3, "meshes"):
        with pytest.raises(MpmdError, match="a topology maps the names of meshes to meshes; got"):
            run_module(PIPELINE, wrong, [])  # type: ignore[arg-type]
    for args in (None, 3, {"x": 1}):
        with pytest.raises(MpmdError, match="args are the arrays for @main, in a list or tuple, not of type"):
            run_module(PIPELINE, PAIRS, args)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a module is MLIR text, .* not bytes"):
        run_module(b"module {}", PAIRS, [])


def single(types: list[str], ops: str, result: str, extra: str = "") -> str:
    """A module with one fragment on mesh a whose result moves to mesh b."""
    args = ", ".join(f'%a{i}: !mpmd.mesh_tensor<"a", {t}>' for i, t in enumerate(types))
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    meshed = ", ".join(f'!mpmd.mesh_tensor<"a", {t}>' for t in types)
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    a, b = (f'!mpmd.mesh_tensor<"{m}", {result}>' for m in "ab")
    return f"""module {{ func.func @main({args}) -> ({a}, {b}) attributes {{
        topology = #mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>}} {{
      %0 = mpmd.fragment_call<mesh="a", origin=[]> @f({names}) : ({meshed}) -> {a}
      %1 = mpmd.transfer %0 : ({a}) -> {b}
      return %0, %1 : {a}, {b} }}
    func.func @f({params}) -> {result} attributes {{mesh_shape = #sdy.mesh<["x"=1]>}} {{ {ops} }} {extra} }}"""


@pytest.mark.parametrize(
    "element", ["f32", "bf16", "f16", "f64", "i8", "i32", "i64", "ui8", "ui32", "ui4", "complex<f32>"]
)
def test_element_types(element: str) -> None:
    t = f"tensor<3x2x{element}>"
    check(single([t, t], f"%0 = stablehlo.add %a0, %a1 : {t} return %0 : {t}", t), ONES)


def test_booleans_scalars_and_empty_arrays() -> None:
    for t in ("tensor<2xi1>", "tensor<i1>", "tensor<0xi1>", "tensor<4x0x3xi1>"):
        check(single([t, t], f"%0 = stablehlo.and %a0, %a1 : {t} return %0 : {t}", t), ONES)


def test_no_arguments() -> None:
    t = "tensor<3xui32>"
    check(single([], f"%0 = stablehlo.iota dim = 0 : {t} return %0 : {t}", t), ONES)


def test_key_data() -> None:
    """PRNG keys are their data here."""
    key = jax.random.key(3)
    ops = """%r:2 = stablehlo.rng_bit_generator %a0, algorithm = THREE_FRY : (tensor<2xui64>)
        -> (tensor<2xui64>, tensor<4xui32>) return %r#1 : tensor<4xui32>"""
    text = single(["tensor<2xui64>"], ops, "tensor<4xui32>")
    program = check(text, ONES)
    with pytest.raises(MpmdError, match=r"argument 0 is a typed PRNG key key<fry>, .*jax.random.key_data"):
        program(key)


def test_sub_axes() -> None:
    text = """
    !s = !mpmd.mesh_tensor<"a", tensor<4x4xf32>, sharding=<@mesh, [{"x":(1)2}, {"x":(2)2}]>>
    !t = !mpmd.mesh_tensor<"b", tensor<4x4xf32>, sharding=<@mesh, [{"x":(2)2}, {}]>>
    module { sdy.mesh @mesh = <["x"=4]>
    func.func @main(%x: !s) -> !t attributes {topology = #mpmd.topology<<"a" : <["x"=4]>>, <"b" : <["x"=4]>>>} {
      %0 = mpmd.fragment_call<mesh="a", origin=[]> @f(%x) : (!s) -> !s
      %1 = mpmd.transfer %0 : (!s) -> !t
      return %1 : !t }
    func.func @f(%x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=4]>} {
      %0 = stablehlo.negate %x : tensor<4x4xf32> return %0 : tensor<4x4xf32> } }
    """
    program = check(text, {"a": mesh(0, (4,), "x"), "b": mesh(4, (4,), "x")})
    assert program.input_shardings[0].shard_shape((4, 4)) == (2, 2)
    # Device 1 holds the second half of the columns, device 2 the second half of the rows.
    boxes = program.input_shardings[0].devices_indices_map((4, 4))
    starts = [tuple(s.start or 0 for s in box) for box in boxes.values()]
    assert starts == [(0, 0), (0, 2), (2, 0), (2, 2)]


def test_manual_computation() -> None:
    text = (
        """
    !a = !mpmd.mesh_tensor<"a", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
    !r = !mpmd.mesh_tensor<"a", tensor<2xf32>>
    module { sdy.mesh @mesh = <["x"=2]>
    func.func @main(%x: !a) -> !r attributes {topology = #mpmd.topology<<"a" : <["x"=2]>>>} {
      %0 = mpmd.fragment_call<mesh="a", origin=[]> @f(%x) : (!a) -> !r
      return %0 : !r }
    func.func @f(%x: tensor<4xf32>) -> tensor<2xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    """
        + MANUAL_SUM
        + "return %r : tensor<2xf32> } }"
    )
    check(text, {"a": mesh(2, (2,), "x")})


def test_host_memory() -> None:
    """Memory kinds of types and of attributes; the default memory of a device is not host memory."""
    text = """
    !d = !mpmd.mesh_tensor<"a", tensor<4xf32>>
    !h = !mpmd.mesh_tensor<"a", tensor<4xf32>, memory_kind="pinned_host">
    !b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
    module {
    func.func @main(%x: !h, %y: !d {mhlo.memory_kind = "pinned_host"}) -> (!h, !b, !d) attributes {
        topology = #mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>} {
      %0 = mpmd.transfer %x : (!h) -> !d
      %1 = mpmd.fragment_call<mesh="a", origin=[]> @f(%0) : (!d) -> !d
      %2 = mpmd.transfer %1 : (!d) -> !h
      %3 = mpmd.transfer %2 : (!h) -> !b
      return %2, %3, %1 : !h, !b, !d }
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
      %0 = stablehlo.negate %x : tensor<4xf32> return %0 : tensor<4xf32> } }
    """
    program = check(text, ONES)
    assert [s.memory_kind for s in program.input_shardings] == ["pinned_host", "pinned_host"]
    assert program.output_shardings[0].memory_kind == "pinned_host"
    assert program.output_shardings[2].memory_kind != "pinned_host"


def test_donated_arguments_are_gone_and_using_them_again_is_an_error() -> None:
    program = pipeline()
    args = place(program, random_args(parse(PIPELINE)))
    _, w = program(*args)
    assert [a.is_deleted() for a in args] == [False, True, False]
    with pytest.raises(MpmdError, match=r"argument params\['w'\] was donated to an earlier call"):
        program(*args)
    program(args[0], w, args[2])  # the result takes its place


def test_donated_arguments_are_gone_even_when_nothing_reuses_them() -> None:
    t = "tensor<2xf32>"
    text = single([t, t], f"%0 = stablehlo.add %a0, %a1 : {t} return %0 : {t}", t)
    text = text.replace("tensor<2xf32>>, %a1", "tensor<2xf32>> {jax.buffer_donor = true}, %a1", 1)
    program = load(parse(text), ONES)
    host = [np.ones(2, np.float32), np.ones(2, np.float32)]
    arrays = place(program, host)
    program(*arrays)
    assert [a.is_deleted() for a in arrays] == [True, False]
    program(*host)
    np.testing.assert_array_equal(host[0], [1, 1])


def test_a_donated_argument_that_is_returned_stays() -> None:
    text = """!a = !mpmd.mesh_tensor<"a", tensor<2xf32>>
    module { func.func @main(%x: !a {jax.buffer_donor = true}) -> !a attributes {
      topology = #mpmd.topology<<"a" : <["x"=1]>>>} { return %x : !a } }"""
    program = load(parse(text), {"a": mesh(0, (1,), "x")})
    (x,) = place(program, [np.ones(2, np.float32)])
    np.testing.assert_array_equal(program(x)[0], [1, 1])


def test_intermediate_values_are_dropped() -> None:
    """Nothing of a step stays alive but its results and arguments."""
    program = pipeline()
    with only_new_objects():
        check_what_is_dropped(program)


def check_what_is_dropped(program: LoadedProgram) -> None:
    args = place(program, random_args(parse(PIPELINE)))
    jax.block_until_ready(program(*args))
    gc.collect()
    args = place(program, random_args(parse(PIPELINE)))
    shards = [x.addressable_data(0) for x in args]  # whoever looks at a part of an argument leaves it with the argument
    known = {id(x) for x in [*jax.live_arrays(), *shards]}
    found = program(*args)
    gc.collect()
    kept = [x for x in jax.live_arrays() if id(x) not in known and not any(x is y for y in found)]
    assert kept == []
    assert sum(x.is_deleted() for x in args) == 1  # w is gone
    del shards
    x = weakref.ref(args[0])
    del args
    assert x() is None


def test_arguments_that_fit_are_taken_and_placed() -> None:
    program = pipeline()
    x, w, v = random_args(parse(PIPELINE))
    expected = interpret(parse(PIPELINE), [x, w, v])
    found = program(x, jnp.asarray(w), v.astype(np.float64))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    # Another sharding object of the same meaning.
    other = jax.sharding.NamedSharding(mesh(0, (2,), "rows"), jax.sharding.PartitionSpec("rows"))
    np.testing.assert_allclose(program(jax.device_put(x, other), w, v)[0], expected[0], rtol=1e-5)


def test_every_argument_that_does_not_fit_is_named() -> None:
    program = pipeline()
    x, w, v = random_args(parse(PIPELINE))
    arrays = place(program, [x, w, v])
    with pytest.raises(MpmdError, match=r"takes 3 arrays .* not 2"):
        program(x, w)
    with pytest.raises(MpmdError) as error:
        program(x[:2], w.astype(np.int32), "v")
    text = str(error.value)
    assert "argument x must be float32[4, 8], not float32[2, 8]" in text
    assert "argument params['w'] must be float32[8, 8], not int32[8, 8]" in text
    assert "argument params['v'] must be" in text
    with pytest.raises(MpmdError, match=r"argument params\['v'\] is on devices 0, 1.*mesh 'b' \(devices 2, 3\)"):
        own = jax.sharding.NamedSharding(mesh(0, (2,), "own"), jax.sharding.PartitionSpec())
        program(arrays[0], arrays[1], jax.device_put(v, own))
    with pytest.raises(MpmdError, match=r"argument x has sharding .*input_shardings\[0\]"):
        program(jax.device_put(x, program.input_shardings[1]), *arrays[1:])
    with pytest.raises(MpmdError, match=r"argument x is a tracer"):
        jax.jit(lambda x: program(x, w, v))(x)


def test_the_same_array_donated_and_kept_is_an_error() -> None:
    text = single(
        ["tensor<2xf32>", "tensor<2xf32>"],
        "%0 = stablehlo.add %a0, %a1 : tensor<2xf32> return %0 : tensor<2xf32>",
        "tensor<2xf32>",
    )
    text = text.replace("tensor<2xf32>>, %a1", "tensor<2xf32>> {jax.buffer_donor = true}, %a1", 1)
    program = load(parse(text), ONES)
    (x,) = place(program, [np.ones(2, np.float32), np.ones(2, np.float32)])[:1]
    with pytest.raises(MpmdError, match="argument 1 is the same array as argument 0, and argument 0 is donated"):
        program(x, x)
    program(x, jnp.copy(x))


def test_topology_errors_come_together() -> None:
    module = parse(PIPELINE)
    with pytest.raises(MpmdError) as error:
        load(module, {"a": mesh(0, (2, 2), "rows", "columns"), "other": mesh(2, (2,), "x")})
    text = str(error.value)
    assert "mesh 'a' has axes (rows=2, columns=2) with 4 devices, and the program was compiled for (x=2)" in text
    assert """runs on mesh 'b' <["x"=2]>, and the topology has no such mesh (it has 'a', 'other')""" in text
    abstract = jax.sharding.AbstractMesh((2,), ("x",))
    with pytest.raises(MpmdError, match="mesh 'b' is a AbstractMesh, which has no devices"):
        load(module, {"a": mesh(0, (2,), "x"), "b": abstract})  # type: ignore[dict-item]


def test_a_program_that_xla_refuses() -> None:
    text = single(
        ["tensor<2xf32>"],
        "%0 = stablehlo.custom_call @nobody_knows(%a0) : (tensor<2xf32>) -> tensor<2xf32> return %0 : tensor<2xf32>",
        "tensor<2xf32>",
    )
    with pytest.raises(MpmdError, match=r"XLA cannot compile @f for mesh 'a'.*nobody_knows"):
        load(parse(text), ONES)


def test_progress_and_analyses() -> None:
    seen: list[tuple[int, int, str]] = []
    program = load(parse(PIPELINE), PAIRS, progress=lambda done, total, name: seen.append((done, total, name)))
    assert [s[:2] for s in seen] == [(1, 3), (2, 3), (3, 3)]
    assert {s[2] for s in seen} == {"p0_f.step", "p1_g.step", "p2_inferred.step"}
    cost = program.cost_analysis()
    assert cost["transfers"] == 1 and cost["bytes transferred"] == 128
    assert cost["flops"] >= 2 * (2 * 4 * 8 * 8) + 64  # two matrix products and one multiplication
    assert [p["runs"] for p in cost["programs"].values()] == [1, 1, 1]
    memory = program.memory_analysis()
    assert memory["a"].arguments == 64 + 256 and memory["a"].results == 256
    assert memory["b"].peak >= 256 + 64
    assert [s.shape for s in program.input_specs] == [(4, 8), (8, 8), (8, 8)]
    assert program.output_specs[1].sharding == program.output_shardings[1]
    assert repr(program) == "<LoadedProgram plan jit_step: 2 meshes, 3 programs, 3 runs, 1 transfers>"


def test_timeline() -> None:
    program = pipeline()
    args = place(program, random_args(parse(PIPELINE)))
    _, timeline = program.measure(*args)
    assert [(e.lane, e.label) for e in timeline.entries] == [("a", "f"), ("a -> b", ""), ("a", "inferred"), ("b", "g")]
    times = {e.label: e for e in timeline.entries}
    assert times["f"].end <= times[""].start <= times[""].end <= times["g"].start
    assert all(0 <= e.start <= e.end <= timeline.seconds for e in timeline.entries)
    assert set(timeline.busy()) == {"a", "b"}
    assert [e.label for e in timeline.entries if e.lane == "a"] == ["f", "inferred"]


def test_errors_while_running_say_where() -> None:
    program = pipeline()
    _, *rest = program.runtime.steps[3]

    def broken(_: object) -> list[object]:
        raise RuntimeError("device lost")

    program.runtime.steps[3] = (broken, *rest)
    program.runtime.calls[3] = broken
    args = place(program, random_args(parse(PIPELINE)))
    with pytest.raises(RuntimeError, match="device lost") as error:
        program(*args)
    where, gone = error.value.__notes__
    assert where == "while issuing instruction 3 of the plan: run of @p1_g.step (g) on mesh 'b'"
    assert "argument params['w']" in gone  # the update on mesh a has reused it
    with pytest.raises(RuntimeError, match="device lost") as error:
        program.measure(*place(program, random_args(parse(PIPELINE))))
    assert "run of @p1_g.step (g) on mesh 'b'" in error.value.__notes__[0]
