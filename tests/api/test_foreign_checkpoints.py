"""Checkpoints that orbax, Flax and Equinox wrote, onto stages and onto one mesh."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from pipelines import loss_of, topology
from util import normal

WIDTH, LAYERS = 4, 4
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


class Both(NamedTuple):
    params: Any
    opt: Any


def params() -> list[dict[str, jax.Array]]:
    return [{"w": normal(i, WIDTH, WIDTH), "b": jnp.full(WIDTH, float(i))} for i in range(LAYERS)]


def trained() -> tuple[Any, Any]:
    """Parameters and a state of an optimizer that is not that of the start."""
    ps = params()
    _, state = OPTIMIZER.update(jax.tree.map(jnp.ones_like, ps), OPTIMIZER.init(ps), ps)
    return ps, state


def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w"] + p["b"])


def step(ps: Any, state: Any, x: jax.Array) -> Any:
    updates, state = OPTIMIZER.update(jax.grad(loss_of(layer))(ps, x), state, ps)
    return optax.apply_updates(ps, updates), state


def compiled() -> Any:
    names = {f"f{i}": f"m{i // 2}" for i in range(LAYERS)}
    return mt.jit(step, mt.make_config(topology(), names)).lower(*trained(), jnp.ones((2, WIDTH))).compile()


def fully_sharded(tree: Any) -> Any:
    """Types of the arrays, as plain FSDP has them on one mesh."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))

    def of(x: Any) -> Any:
        spec = PartitionSpec("x") if np.ndim(x) else PartitionSpec()
        return jax.ShapeDtypeStruct(np.shape(x), jnp.asarray(x).dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(of, tree)


def check(restored: Any, like: Any, wanted: Any) -> None:
    assert jax.tree.structure(restored) == jax.tree.structure(wanted)
    for x, spec, y in zip(*map(jax.tree.leaves, (restored, like, wanted)), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        if isinstance(spec, jax.ShapeDtypeStruct):
            assert x.sharding.is_equivalent_to(spec.sharding, x.ndim)
            assert x.dtype == spec.dtype


def standard(path: Path, tree: Any) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return path


def pytree(path: Path, tree: Any) -> Path:
    ocp.PyTreeCheckpointer().save(path, tree)
    return path


def manager(path: Path, tree: Any) -> Path:
    with ocp.CheckpointManager(path) as made:
        for number in (2, 10):
            args = jax.tree.map(lambda x, number=number: x if number == 10 else 0 * x, tree)
            made.save(number, args=ocp.args.StandardSave(args))
    return path


def last_step(path: Path, tree: Any) -> Path:
    return manager(path, tree) / "10"


ROOTS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda ps, state: {"params": ps, "opt": state},
    "tuple": lambda ps, state: (ps, state),
    "list": lambda ps, state: [ps, state],
    "NamedTuple": Both,
}


@pytest.mark.parametrize(
    ("write", "root"), [*zip([standard, pytree, manager, last_step], ROOTS, strict=True)], ids=[*ROOTS]
)
def test_orbax_onto_stages(tmp_path: Path, write: Callable[[Path, Any], Path], root: str) -> None:
    make = ROOTS[root]
    tree = make(*trained())
    like = make(*mt.abstract(compiled(), (0, 1)))
    check(mt.restore(write(tmp_path / "checkpoint", tree), like), like, tree)


@pytest.mark.parametrize("root", ["dict", "NamedTuple"])
def test_orbax_onto_one_mesh(tmp_path: Path, root: str) -> None:
    tree = ROOTS[root](*trained())
    like = fully_sharded(tree)
    check(mt.restore(standard(tmp_path / "checkpoint", tree), like), like, tree)


def test_what_stages_save_orbax_and_one_mesh_read(tmp_path: Path) -> None:
    program = compiled()
    tree = mt.place(program, *trained())
    mt.save(tmp_path / "ours", tree)
    like = fully_sharded(tree)
    check(mt.restore(tmp_path / "ours", like), like, tree)
    ocp.PyTreeCheckpointer().save(tmp_path / "theirs", tree)
    check(mt.restore(tmp_path / "theirs", like), like, tree)


def test_a_manager_with_several_items(tmp_path: Path) -> None:
    ps, state = trained()
    with ocp.CheckpointManager(tmp_path / "run") as made:
        args = ocp.args
        meta = args.JsonSave({"seed": 1})
        made.save(7, args=args.Composite(params=args.StandardSave(ps), opt=args.PyTreeSave(state), meta=meta))
    like_params, like_state = mt.abstract(compiled(), (0, 1))
    both = {"params": like_params, "opt": like_state}
    check(mt.restore(tmp_path / "run", both), both, {"params": ps, "opt": state})
    with pytest.warns(mt.MpmdWarning, match=r"also has opt\.1\.0\.count"):
        restored = mt.restore(tmp_path / "run", like_params)
    check(restored, like_params, ps)
    check(mt.restore(tmp_path / "run" / "7" / "opt", like_state), like_state, state)


def test_numbers_keys_and_static_leaves(tmp_path: Path) -> None:
    tree = {"step": 3, "rate": 0.5, "w": jnp.ones(3), "key": jax.random.key_data(jax.random.key(7))}
    standard(tmp_path / "c", tree)
    like = {"step": 0, "rate": jnp.zeros(()), "w": jnp.zeros(3), "key": jax.random.key(0), "name": "x"}
    restored = mt.restore(tmp_path / "c", like)
    assert restored["step"] == 3
    assert type(restored["step"]) is int
    assert restored["rate"] == 0.5
    assert restored["name"] == "x"
    assert jax.random.normal(restored["key"]) == jax.random.normal(jax.random.key(7))


def test_what_is_not_there_or_does_not_fit(tmp_path: Path) -> None:
    standard(tmp_path / "c", {"params": params()})
    like = {"params": [{"w": x["w"], "bias": x["b"]} for x in params()]}
    with pytest.raises(mt.MpmdError, match=r"c has no params\.0\.bias"):
        mt.restore(tmp_path / "c", like)
    like = {"params": [{"w": jnp.zeros((2, 2)), "b": x["b"].astype(jnp.bfloat16)} for x in params()]}
    with pytest.raises(mt.MpmdError) as error:
        mt.restore(tmp_path / "c", like)
    assert "params.0.w is stored as float32[4, 4], and float32[2, 2] is wanted" in str(error.value)
    assert "params.0.b is stored as float32[4], and bfloat16[4] is wanted; restore(..., cast=True)" in str(error.value)
    like = {"params": [{"w": x["w"], "b": x["b"].astype(jnp.bfloat16)} for x in params()]}
    assert mt.restore(tmp_path / "c", like, cast=True)["params"][3]["b"].dtype == jnp.bfloat16
    (tmp_path / "empty").mkdir()
    with pytest.raises(mt.MpmdError, match="empty is not a checkpoint: neither one"):
        mt.restore(tmp_path / "empty", like)


STACKED = {r"(w|b)": mt.checkpoint.StoredAs(r"{}.\1")}
UNROLLED = {r"(\d+)\.(w|b)": mt.checkpoint.StoredAs(r"\2", row=r"\1")}


def stack(ps: Any) -> Any:
    return jax.tree.map(lambda *xs: jnp.stack(xs), *ps)


@pytest.mark.parametrize("write", [standard, lambda path, tree: mt.save(path, tree) or path], ids=["orbax", "ours"])
def test_layers_in_one_array_here_and_apart_there(tmp_path: Path, write: Callable[[Path, Any], Path]) -> None:
    def loss(ps: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(mt.scan(lambda x, p: (layer(p, x), None), x, ps, name="blocks")[0] ** 2)

    apart, joined = write(tmp_path / "apart", params()), write(tmp_path / "joined", stack(params()))
    for cut in (2, 3):  # equal parts are one array, others are pieces
        names = {f"blocks[0:{cut}]": "m0", f"blocks[{cut}:4]": "m1"}
        gradient = mt.jit(jax.grad(loss), mt.make_config(topology(), names))
        like = mt.abstract(gradient.lower(stack(params()), jnp.ones((2, WIDTH))).compile())
        restored = mt.restore(apart, like, names=STACKED)
        for name, x in stack(params()).items():
            np.testing.assert_array_equal(np.asarray(restored[name]), x)
            assert type(restored[name]) is (mt.stages.Pieces if cut == 3 else type(x))
    like = mt.abstract(compiled())
    check(mt.restore(joined, like, names=UNROLLED), like, params())


def test_names_that_do_not_fit(tmp_path: Path) -> None:
    standard(tmp_path / "c", params())
    with pytest.raises(
        mt.MpmdError, match=re.escape(r"names has 'blocks', which matches no array; they are called 0.b")
    ):
        mt.restore(tmp_path / "c", params(), names={"blocks": "x"})
    with pytest.raises(mt.MpmdError, match=r"names\['w'\] does not fit w of shape \[4\]: transpose="):
        mt.restore(tmp_path / "c", {"w": jnp.zeros(4)}, names={"w": mt.checkpoint.StoredAs("0.b", transpose=(1, 0))})
    with pytest.raises(mt.MpmdError, match=r"0\.w is stored as float32\[4, 4\], which does not fit|0\.w is stored as"):
        mt.restore(tmp_path / "c", {"w": jnp.zeros(4)}, names={"w": mt.checkpoint.StoredAs("0.w", row=7)})


def test_variables_of_nnx(tmp_path: Path) -> None:
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 3, rngs=nnx.Rngs(1)))
    state = nnx.state(model)
    standard(tmp_path / "state", state)
    zeros = jax.tree.map(jnp.zeros_like, state)
    check(mt.restore(tmp_path / "state", zeros), zeros, state)
    standard(tmp_path / "pure", nnx.to_pure_dict(state))
    check(mt.restore(tmp_path / "pure", zeros), zeros, state)


def test_a_file_of_equinox(tmp_path: Path) -> None:
    model = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(0), dtype=jnp.bfloat16)
    tree = (model, 5, optax.adam(1e-3).init(eqx.filter(model, eqx.is_array)))
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", tree)
    zeros = jax.tree.map(lambda x: 0 * x if eqx.is_array(x) else x, tree)
    restored = mt.restore(tmp_path / "model.eqx", (zeros[0], 0, zeros[2]))
    assert eqx.tree_equal(restored, tree)
    with pytest.raises(mt.MpmdError, match="more than the 6 arrays that are wanted: it is of another model"):
        mt.restore(tmp_path / "model.eqx", model)
    with pytest.raises(mt.MpmdError, match="leave out names="):
        mt.restore(tmp_path / "model.eqx", tree, names={"0": "1"})


def test_a_file_of_equinox_with_flags(tmp_path: Path) -> None:
    """Equinox writes all arrays and numbers, flags among them; flags are of the program here, and stay."""

    def tree(seed: int, inference: bool) -> Any:
        key = jax.random.key(seed)
        attention = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.5, inference=inference, key=key)
        return (
            attention,
            eqx.nn.Dropout(0.25 + seed, inference=inference),
            np.float32(seed),
            eqx.nn.Linear(2, 2, key=key),
        )

    eqx.tree_serialise_leaves(tmp_path / "model.eqx", tree(1, True))
    restored = mt.restore(tmp_path / "model.eqx", tree(0, False))
    assert eqx.tree_equal(jax.tree.map(np.asarray, restored), jax.tree.map(np.asarray, tree(1, False)))
    assert restored[1].inference is False


def test_a_file_of_equinox_that_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "model.eqx"
    tree = {"a": jnp.arange(3.0), "b": True, "c": jnp.ones((2, 2))}
    eqx.tree_serialise_leaves(file, tree)
    data = file.read_bytes()
    for size in range(8, len(data), 7):
        file.write_bytes(data[:size])
        with pytest.raises(mt.MpmdError, match=r"model\.eqx (is damaged|has \d arrays)"):
            mt.restore(file, tree)
    with file.open("wb") as opened:
        np.save(opened, np.array([object()]), allow_pickle=True)
    with pytest.raises(mt.MpmdError, match="is damaged: it has Python objects"):
        mt.restore(file, {"a": jnp.zeros(1)})


def test_folders_beside_the_steps(tmp_path: Path) -> None:
    manager(tmp_path / "run", params())
    (tmp_path / "run" / "logs_20261126").mkdir()
    (tmp_path / "run" / "cache_99" / "x").mkdir(parents=True)
    check(mt.restore(tmp_path / "run", params()), params(), params())
    for other, folder in (("best_3", "best_3"), ("eval_3", "eval_3/default")):
        standard(tmp_path / "run" / folder, params())
        with pytest.raises(mt.MpmdError, match=f"run has checkpoints of several kinds, such as 10 and {other}"):
            mt.restore(tmp_path / "run", params())
        shutil.rmtree(tmp_path / "run" / other)
    with pytest.raises(mt.MpmdError, match="not a checkpoint"):
        mt.restore(tmp_path / "run" / "cache_99", params())


@pytest.mark.parametrize("write", [standard, lambda path, tree: mt.save(path, tree) or path], ids=["orbax", "ours"])
def test_numbers_that_do_not_fit(tmp_path: Path, write: Callable[[Path, Any], Path]) -> None:
    write(tmp_path / "c", {"n": 2**40, "x": 1e300, "w": jnp.ones(3)})
    on_mesh = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec())
    placed = jax.ShapeDtypeStruct((), jnp.int32, sharding=on_mesh)
    for n in (jnp.zeros((), jnp.int32), placed):
        with pytest.raises(mt.MpmdError, match=r"n.* is stored as 1099511627776, which is no int32"):
            mt.restore(tmp_path / "c", {"n": n, "x": 0.0, "w": jnp.zeros(3)})
    with pytest.raises(mt.MpmdError, match=r"x.* is stored as 1e\+300, which is no float32"):
        mt.restore(tmp_path / "c", {"n": 0, "x": jnp.zeros(()), "w": jnp.zeros(3)})
    restored = mt.restore(tmp_path / "c", {"n": 0, "x": 0.0, "w": jnp.zeros(3)})
    assert (restored["n"], restored["x"]) == (2**40, 1e300)


def test_a_pattern_that_is_none(tmp_path: Path) -> None:
    standard(tmp_path / "c", params())
    with pytest.raises(mt.MpmdError, match=r"names has '\(w', which is not a regular expression: missing \)"):
        mt.restore(tmp_path / "c", params(), names={"(w": "x"})


class Pair:
    """A node without names of its children."""

    def __init__(self, first: Any, second: Any) -> None:
        self.children = (first, second)


jax.tree_util.register_pytree_node(Pair, lambda pair: (pair.children, None), lambda _, children: Pair(*children))

KEYS: dict[str, Callable[[Any], Any]] = {
    "node": lambda x: {"m": Pair(x, 2 * x)},
    "quote": lambda x: {"it's": x},
    "quotes": lambda x: {"a\"'b": x},
    "bracket": lambda x: {"a]['b": x},
    "line": lambda x: {"a\nb": x},
    "empty": lambda x: {"": x},
    "negative": lambda x: {-1: x},
    "float": lambda x: {1.5: x},
    "tuple": lambda x: {("a", "b"): x},
    "none": lambda x: {None: x},
    "alone": lambda x: x,
    "prefix": lambda x: {"rows 0:1 of axis 0 of x": x},
    "mixed": lambda x: [{("a", 0): Pair({"it's": x}, Both(x, {-1: 2 * x}))}],
}


@pytest.mark.parametrize(("root", "sums"), [*((root, True) for root in KEYS), ("mixed", False)])
def test_what_save_wrote_with_any_keys(tmp_path: Path, root: str, sums: bool) -> None:
    tree, zeros = (KEYS[root](x) for x in (jnp.arange(3.0), jnp.zeros(3)))
    mt.save(tmp_path / "c", (tree, 5))
    if not sums:  # of versions that wrote none
        (tmp_path / "c" / "_CHECKSUMS").unlink()
    check(mt.restore(tmp_path / "c", (zeros, 0)), (zeros, 0), (tree, 5))
    check(mt.restore(tmp_path / "c", (zeros, 0), cast=True), (zeros, 0), (tree, 5))


def test_names_of_what_save_wrote_with_other_keys(tmp_path: Path) -> None:
    mt.save(tmp_path / "c", {"it's": Pair({-1: jnp.ones(3)}, 0)})
    restored = mt.restore(tmp_path / "c", {"x": jnp.zeros(3), "n": 1}, names={"x": "it's.0.-1", "n": "it's.1"})
    np.testing.assert_array_equal(restored["x"], np.ones(3))
    assert restored["n"] == 0


def test_a_file_of_flax(tmp_path: Path) -> None:
    ps, state = trained()
    (tmp_path / "m.msgpack").write_bytes(flax.serialization.to_bytes({"params": ps, "opt": state}))
    like = dict(zip(("params", "opt"), mt.abstract(compiled(), (0, 1)), strict=True))
    check(mt.restore(tmp_path / "m.msgpack", like), like, {"params": ps, "opt": state})
    (tmp_path / "text").write_text("hello")
    with pytest.raises(mt.MpmdError, match=r"cannot restore from .*text"):
        mt.restore(tmp_path / "text", like)


def test_layers_that_processes_wrote_in_pieces_are_restored_under_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of several processes writes each piece of stacked layers under a name of its own."""
    w = np.arange(4 * WIDTH * 3, dtype=np.float32).reshape(4, WIDTH, 3)
    pieces = mt.stages.Pieces((0, 1, 4), [jnp.asarray(w[:1]), jnp.asarray(w[1:])], 0)
    monkeypatch.setattr("mpmd_trace.api.checkpoints.entries.current", object)
    mt.save(tmp_path / "saved", {"blocks": {"w": pieces}, "nothing": jnp.zeros((0, 3)), "step": 7})
    monkeypatch.undo()
    names = {
        r"layers\.(\d+)\.weight": mt.checkpoint.StoredAs("blocks.w", row=r"\1", transpose=True),
        "empty": "nothing",
        "count": "step",
    }
    like = {"layers": [{"weight": jnp.zeros((3, WIDTH))} for _ in range(4)], "empty": jnp.zeros((0, 3)), "count": 0}
    got = mt.restore(tmp_path / "saved", like, names=names)
    for i in range(4):
        np.testing.assert_array_equal(got["layers"][i]["weight"], w[i].T)
    assert got["empty"].shape == (0, 3) and got["count"] == 7
    stacked = mt.restore(
        tmp_path / "saved",
        {"w": jnp.zeros((4, WIDTH, 3)), "nothing": jnp.zeros((0, 3)), "step": 0},
        names={"w": "blocks.w"},
    )
    np.testing.assert_array_equal(stacked["w"], w)


@pytest.mark.parametrize("in_pieces", [True, False])
def test_folders_of_save_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_pieces: bool) -> None:
    """They are items: arrays in pieces, and those without elements, are read with the name of the folder in front."""
    w = np.arange(6 * WIDTH, dtype=np.float32).reshape(6, WIDTH)
    if in_pieces:
        monkeypatch.setattr("mpmd_trace.api.checkpoints.entries.current", object)
    for item, factor in (("weights", 1), ("average", 3)):
        x = factor * w
        pieces = mt.stages.Pieces((0, 2, 6), [jnp.asarray(x[:2]), jnp.asarray(x[2:])], 0)
        mt.save(tmp_path / item, {"w": pieces, "nothing": jnp.zeros((0, 3)), "b": jnp.asarray(x[0])})
    monkeypatch.undo()
    like = {"v": jnp.zeros((6, WIDTH)), "u": jnp.zeros((6, WIDTH)), "e": jnp.zeros((0, 3)), "b": jnp.zeros(WIDTH)}
    names = {"v": "weights.w", "u": "average.w", "e": "average.nothing", "b": "average.b"}
    with pytest.warns(mt.MpmdWarning, match=r"also has weights\.b, weights\.nothing|also has weights\.nothing"):
        got = mt.restore(tmp_path, like, names=names)
    np.testing.assert_array_equal(got["v"], w)
    np.testing.assert_array_equal(got["u"], 3 * w)
    np.testing.assert_array_equal(got["b"], 3 * w[0])
    assert got["e"].shape == (0, 3)


@pytest.mark.parametrize("name", ["{}", "step_{}"])
def test_the_last_of_the_steps_that_save_wrote(tmp_path: Path, name: str) -> None:
    for step in (5, 10, 15):
        mt.save(tmp_path / name.format(step), {"w": jnp.full(3, float(step))})
    np.testing.assert_array_equal(mt.restore(tmp_path, {"w": jnp.zeros(3)})["w"], [15.0, 15, 15])


def test_a_step_that_is_being_saved_is_not_read(tmp_path: Path) -> None:
    for name in ("5", ".10.new"):
        mt.save(tmp_path / name, {"w": jnp.zeros(3)})
    assert mt.restore(tmp_path, {"w": jnp.ones(3)})["w"].sum() == 0


def test_the_model_of_a_checkpoint_that_has_the_optimizer_too(tmp_path: Path) -> None:
    model = params()
    path = tmp_path / "saved"
    mt.save(path, (model, optax.adam(1e-3).init(model)))  # type: ignore[arg-type]

    def hint(like: Any, match: str) -> dict[str, str]:
        with pytest.raises(mt.MpmdError, match=match) as error:
            mt.restore(path, like)
        assert len(error.value.diagnostics) == 1
        return dict(re.findall(r'names=\{r"(\S+)": r"(\S+)"\}', str(error.value)))

    names = hint(model, r"below 0 \(and others of these names below 1\.0\.mu, 1\.0\.nu\): restore\(")
    with pytest.warns(mt.MpmdWarning, match=r"also has 1\.0\.count"):
        check(mt.restore(path, model, names=names), model, model)
    names = hint((model,), r"also has 1\.0\.count, 1\.0\.mu\.0\.b, 1\.0\.mu\.0\.w and 14 more, which nothing")
    with pytest.warns(mt.MpmdWarning, match=r"also has 1\.0\.count"):
        check(mt.restore(path, (model,), names=names), (model,), (model,))
    hint(({"other": jnp.zeros(3)},), r"has no 0\.other; it has 0\.0\.b, 0\.0\.w, 0\.1\.b and 22 more$")
    mt.save(tmp_path / "alone", model)  # type: ignore[arg-type]
    with pytest.raises(mt.MpmdError, match=r"not saved as a tuple with one element: pass like=x instead of \(x,\), or"):
        mt.restore(tmp_path / "alone", (model,))
    check(mt.restore(tmp_path / "alone", model), model, model)
    standard(tmp_path / "orbax", {"params": model, "rest": jnp.zeros(3)})
    with pytest.raises(mt.MpmdError, match=r'below params: restore\(\.\.\., names=\{r"\(\.\*\)": r"params\.\\1"\}\)'):
        mt.restore(tmp_path / "orbax", model)
