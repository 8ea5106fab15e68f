"""Folders of Hugging Face's models onto stages, and back; their files are written here, byte by byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.api.checkpoints import save_safetensors
from mpmd_trace.api.checkpoints.safetensors_format import SafetensorsFiles
from mpmd_trace.checkpoint import StoredAs
from pipelines import topology
from util import nightly

LAYERS, WIDTH, HEADS, INNER, WORDS = 4, 8, 2, 16, 32
CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
Tensors = dict[str, np.ndarray[Any, Any]]


def hugging_face(folder: Path, tensors: Tensors, files: int) -> Path:
    """Write a folder as `transformers` does: the specification of the format, not this package's writer."""
    folder.mkdir()
    names = list(tensors)
    weight_map = {}
    for number in range(files):
        file = "model.safetensors" if files == 1 else f"model-{number + 1:05}-of-{files:05}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name in names[number::files]:
            x = tensors[name]
            offsets = [len(data), len(data) + x.nbytes]
            header[name] = {"dtype": CODES[x.dtype.name], "shape": list(x.shape), "data_offsets": offsets}
            data += x.tobytes()
            weight_map[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + data)
    if files > 1:
        index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read(folder: Path) -> Tensors:
    """The tensors in a folder, and a check of its index."""
    names = {code: np.dtype(getattr(ml_dtypes, name, name)) for name, code in CODES.items()}
    result, places = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        assert header.pop("__metadata__") == {"format": "pt"}
        assert size % 8 == 0
        for name, t in header.items():
            a, b = t["data_offsets"]
            part = data[8 + size + a : 8 + size + b]
            result[name] = np.frombuffer(part, names[t["dtype"]]).reshape(t["shape"])
            places[name] = path.name
    index = folder / "model.safetensors.index.json"
    if index.exists():
        assert json.loads(index.read_text())["weight_map"] == places
    else:
        assert set(places.values()) == {"model.safetensors"}
    return result


def random(shapes: dict[str, tuple[int, ...]], dtype: Any = np.float32) -> Tensors:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def llama(dtype: Any) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WORDS, WIDTH)}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.self_attn.{n}_proj.weight": (WIDTH, WIDTH) for n in "qkvo"}
        shapes |= {f"{at}.mlp.{n}_proj.weight": (INNER, WIDTH) for n in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (WIDTH, INNER), f"{at}.input_layernorm.weight": (WIDTH,)}
        shapes |= {f"{at}.post_attention_layernorm.weight": (WIDTH,)}
    return random(shapes | {"model.norm.weight": (WIDTH,), "lm_head.weight": (WORDS, WIDTH)}, dtype)


LLAMA = {
    r"embed": "model.embed_tokens.weight",
    r"blocks\.([qkv])": StoredAs(r"model.layers.{}.self_attn.\1_proj.weight", transpose=True, merge=(1, 2)),
    r"blocks\.o": StoredAs("model.layers.{}.self_attn.o_proj.weight", transpose=True, merge=(0, 1)),
    r"blocks\.(gate|up|down)": StoredAs(r"model.layers.{}.mlp.\1_proj.weight", transpose=True),
    r"blocks\.norm1": StoredAs("model.layers.{}.input_layernorm.weight"),
    r"blocks\.norm2": StoredAs("model.layers.{}.post_attention_layernorm.weight"),
    r"norm": "model.norm.weight",
    r"head": StoredAs("lm_head.weight", transpose=True),
}


def llama_here(dtype: Any) -> Any:
    """Parameters with layers in one array each, and heads apart."""

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros(shape, dtype)

    heads = WIDTH // HEADS
    blocks = {n: zeros(LAYERS, WIDTH, HEADS, heads) for n in "qkv"} | {"o": zeros(LAYERS, HEADS, heads, WIDTH)}
    blocks |= {"gate": zeros(LAYERS, WIDTH, INNER), "up": zeros(LAYERS, WIDTH, INNER)}
    blocks |= {"down": zeros(LAYERS, INNER, WIDTH), "norm1": zeros(LAYERS, WIDTH), "norm2": zeros(LAYERS, WIDTH)}
    return {"embed": zeros(WORDS, WIDTH), "blocks": blocks, "norm": zeros(WIDTH), "head": zeros(WIDTH, WORDS)}


def llama_layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
    h = x * p["norm1"]
    q, k, v = (jnp.einsum("sd,dhk->hsk", h, p[n]) for n in "qkv")
    x = x + jnp.einsum("hsk,hkd->sd", jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v, p["o"])
    h = x * p["norm2"]
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None


def llama_step(p: Any, words: jax.Array) -> Any:
    def loss(p: Any) -> jax.Array:
        x = mt.named_computation(lambda e, w: e[w], name="embed")(p["embed"], words)
        x, _ = mt.scan(llama_layer, x, p["blocks"], name="blocks")
        return mt.named_computation(lambda n, h, x: jnp.mean((x * n @ h) ** 2), name="head")(p["norm"], p["head"], x)

    return jax.tree.map(lambda p, g: p - g, p, jax.grad(loss)(p))


def llama_like(dtype: Any, cut: int = 2) -> Any:
    names = {"embed": "m0", f"blocks[0:{cut}]": "m0", f"blocks[{cut}:{LAYERS}]": "m1", "head": "m1"}
    step = mt.jit(llama_step, mt.make_config(topology(), names))
    return mt.abstract(step.lower(llama_here(dtype), jnp.zeros(3, jnp.int32)).compile())


def expected_llama(tensors: Tensors) -> Any:
    """The same by hand."""

    def of(name: str) -> np.ndarray[Any, Any]:
        return np.stack([tensors[f"model.layers.{i}.{name}.weight"] for i in range(LAYERS)])

    heads = WIDTH // HEADS
    blocks: Any = {n: of(f"self_attn.{n}_proj").swapaxes(1, 2).reshape(LAYERS, WIDTH, HEADS, heads) for n in "qkv"}
    blocks["o"] = of("self_attn.o_proj").swapaxes(1, 2).reshape(LAYERS, HEADS, heads, WIDTH)
    blocks |= {n: of(f"mlp.{n}_proj").swapaxes(1, 2) for n in ("gate", "up", "down")}
    blocks |= {"norm1": of("input_layernorm"), "norm2": of("post_attention_layernorm")}
    head = tensors["lm_head.weight"].T
    return {"embed": tensors["model.embed_tokens.weight"], "blocks": blocks, "norm": tensors["model.norm.weight"]} | {
        "head": head
    }


def check(restored: Any, wanted: Any) -> None:
    assert jax.tree.structure(restored) == jax.tree.structure(wanted)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), y), restored, wanted)


@pytest.mark.parametrize(("files", "cut", "dtype"), [nightly(1, 2, ml_dtypes.bfloat16), (3, 3, np.float32)])
def test_llama_with_stacked_layers(tmp_path: Path, files: int, cut: int, dtype: Any) -> None:
    tensors = llama(dtype)
    like = llama_like(dtype, cut)
    restored = mt.restore(hugging_face(tmp_path / "model", tensors, files), like, names=LLAMA)
    check(restored, expected_llama(tensors))
    assert restored["head"].sharding == like["head"].sharding
    assert type(restored["blocks"]["q"]) is (mt.stages.Pieces if cut == 3 else type(restored["head"]))
    mt.checkpoint.save_safetensors(
        tmp_path / "back", restored, names=LLAMA, max_file_bytes=1000 if files > 1 else 10**9
    )
    back = read(tmp_path / "back")
    assert back.keys() == tensors.keys()
    check(back, tensors)


def gpt2() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (WORDS, WIDTH), "wpe.weight": (6, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"h.{i}.{n}.{kind}": (WIDTH,) for n in ("ln_1", "ln_2") for kind in ("weight", "bias")}
        sizes = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
        sizes |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
        shapes |= {f"h.{i}.{n}.weight": size for n, size in sizes.items()}
        shapes |= {f"h.{i}.{n}.bias": size[1:] for n, size in sizes.items()}
    return random(shapes | {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)})


def test_gpt2_with_a_list_of_layers(tmp_path: Path) -> None:
    """Weights are laid out as in JAX there, and queries, keys and values are one array."""
    tensors = gpt2()
    kinds = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    names = {rf"layers\.(\d+)\.(.*)\.{here}": rf"h.\1.\2.{there}" for here, there in kinds.items()}
    names |= {
        r"embed": "wte.weight",
        r"positions": "wpe.weight",
        r"norm\.scale": "ln_f.weight",
        r"norm\.bias": "ln_f.bias",
    }
    mesh = topology()["m1"]
    spread = NamedSharding(mesh, PartitionSpec("x"))

    def like(name: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tensors[name].shape, np.float32, sharding=spread)

    def norm(name: str) -> Any:
        return {"scale": like(f"{name}.weight"), "bias": like(f"{name}.bias")}

    def linear(at: str, *names: str) -> Any:
        return {name: {"kernel": like(f"{at}.{name}.weight"), "bias": like(f"{at}.{name}.bias")} for name in names}

    def layer(at: str) -> Any:
        inner = {"attn": linear(f"{at}.attn", "c_attn", "c_proj"), "mlp": linear(f"{at}.mlp", "c_fc", "c_proj")}
        return {"ln_1": norm(f"{at}.ln_1"), "ln_2": norm(f"{at}.ln_2"), **inner}

    tree = {"embed": like("wte.weight"), "positions": like("wpe.weight"), "norm": norm("ln_f")}
    tree["layers"] = [layer(f"h.{i}") for i in range(LAYERS)]
    restored = mt.restore(hugging_face(tmp_path / "model", tensors, 2), tree, names=names)
    np.testing.assert_array_equal(restored["layers"][2]["attn"]["c_attn"]["kernel"], tensors["h.2.attn.c_attn.weight"])
    assert all(x.sharding == spread for x in jax.tree.leaves(restored))
    mt.checkpoint.save_safetensors(tmp_path / "back", restored, names=names)
    check(read(tmp_path / "back"), tensors)


def test_layers_that_are_one_array_there(tmp_path: Path) -> None:
    stacked = random({"w": (3, WIDTH, WIDTH)})
    names = {r"(\d)\.w": StoredAs("w", row=r"\1", transpose=True)}
    like = [{"w": jnp.zeros((WIDTH, WIDTH))} for _ in range(3)]
    restored = mt.restore(hugging_face(tmp_path / "model", stacked, 1), like, names=names)
    np.testing.assert_array_equal(restored[2]["w"], stacked["w"][2].T)
    mt.checkpoint.save_safetensors(tmp_path / "back", restored, names=names)
    check(read(tmp_path / "back"), stacked)
    with pytest.raises(mt.MpmdError, match=r"w is what 0.w, 1.w, 2.w are stored as: give each a name of its own"):
        mt.checkpoint.save_safetensors(tmp_path / "no", restored, names={r"\d\.w": "w"})


def test_only_what_is_wanted_is_looked_at(tmp_path: Path) -> None:
    """Other files of the folder may be missing: those with the tensors of other processes are not opened either."""
    tensors = random({"a": (2, 3), "b": (3,)})
    folder = hugging_face(tmp_path / "model", tensors, 2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.warns(mt.MpmdWarning, match="also has b"):
        restored = mt.restore(folder, {"a": jnp.zeros((2, 3))})
    np.testing.assert_array_equal(restored["a"], tensors["a"])
    with pytest.raises(mt.MpmdError, match=r"cannot read .*model-00002-of-00002.safetensors: No such file"):
        mt.restore(folder, {"b": jnp.zeros(3)})


def test_mistakes(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "model", random({"layer.0.weight": (2, 3)}), 1)
    with pytest.raises(mt.MpmdError, match=r"model has no layer\.0\.weights; it has layer\.0\.weight"):
        mt.restore(folder, {"layer": [{"weights": jnp.zeros((2, 3))}]})
    with pytest.raises(
        mt.MpmdError, match=r"is stored as float32\[2, 3\], which gives \[3, 2\] here, and float32\[2, 3\] is wanted"
    ):
        mt.restore(folder, {"w": jnp.zeros((2, 3))}, names={"w": StoredAs("layer.0.weight", transpose=True)})
    data = (folder / "model.safetensors").read_bytes()
    for bad in (data[:-1], b"\xff" * 100, b""):
        (folder / "model.safetensors").write_bytes(bad)
        with pytest.raises(mt.MpmdError, match=r"model\.safetensors is not a safetensors file, or it is damaged"):
            mt.restore(folder, {"w": jnp.zeros((2, 3))})


def write_raw(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_headers_that_say_too_much(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for bad in (
        [],
        "text",
        {"w": good | {"data_offsets": [-8, 0]}},
        {"w": good | {"data_offsets": [8, 0], "shape": [-2]}},
        {"w": good | {"data_offsets": [0.0, 8.0]}},
        {"w": good | {"data_offsets": [8, 16]}},
        {"w": good | {"shape": [2.0]}},
        {"w": good | {"data_offsets": 8}},
        {"w": []},
    ):
        write_raw(file, bad, bytes(8))
        with pytest.raises(mt.MpmdError, match=r"m\.safetensors is not a safetensors file, or it is damaged"):
            mt.restore(file, {"w": jnp.zeros(2)})


def test_dtypes_that_are_not_wanted(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    header = {
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "q": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [8, 11]},
        "scale": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [11, 12]},
    }
    write_raw(file, header, np.array([1, 2], np.float32).tobytes() + bytes(3) + b"\x80")
    with pytest.warns(mt.MpmdWarning, match="also has q"):
        restored = mt.restore(file, {"w": jnp.zeros(2), "scale": np.zeros(1, ml_dtypes.float8_e8m0fnu)})
    np.testing.assert_array_equal(restored["w"], [1, 2])
    assert restored["scale"].astype(np.float32) == 2
    with pytest.raises(mt.MpmdError, match=r"q in .* has the dtype F6_E2M3, which JAX does not have"):
        mt.restore(file, {"q": jnp.zeros(4)})


def test_an_index_names_files_of_its_folder(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "model", random({"w": (2,)}), 1)
    write_raw(tmp_path / "other.safetensors", {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8))
    for file in ("../other.safetensors", str(tmp_path / "other.safetensors"), ""):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": file}}))
        with pytest.raises(mt.MpmdError, match="which is not a file in its folder"):
            mt.restore(folder, {"w": jnp.zeros(2)})


@pytest.mark.parametrize("on_mesh", [False, True])
def test_what_is_restored_does_not_change_with_the_file(tmp_path: Path, on_mesh: bool) -> None:
    file = tmp_path / "m.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 256], "data_offsets": [0, 4096]}}).encode().ljust(120)
    stored = np.arange(1024, dtype=np.float32).reshape(4, 256)
    file.write_bytes((120).to_bytes(8, "little") + header + stored.tobytes())  # at 128, as JAX takes memory over
    like: Any = jnp.zeros((4, 256))
    if on_mesh:
        sharding = NamedSharding(topology()["m0"], PartitionSpec())
        like = jax.ShapeDtypeStruct((4, 256), jnp.float32, sharding=sharding)
    restored = mt.restore(file, {"w": like})["w"]
    with file.open("r+b") as opened:
        opened.seek(128)
        opened.write(bytes(4096))
    np.testing.assert_array_equal(np.asarray(restored), stored)


def test_saving_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    many = {f"t{i}": jnp.full((4,), float(i)) for i in range(5)}
    mt.checkpoint.save_safetensors(folder, many, max_file_bytes=32)
    assert len(list(folder.glob("model-*-of-00003.safetensors"))) == 3
    with pytest.raises(mt.MpmdError, match=r"overwrite=True"):
        mt.checkpoint.save_safetensors(folder, many)
    mt.checkpoint.save_safetensors(folder, many | {"n": 3}, overwrite=True)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    check(read(folder), many | {"n": np.int64(3)})
    with pytest.raises(mt.MpmdError, match="safetensors do not have the dtype of x"):
        mt.checkpoint.save_safetensors(folder, {"x": np.zeros(2, np.complex128)}, overwrite=True)


def test_files_of_others_stay(tmp_path: Path) -> None:
    others = [
        "model_ema.safetensors",
        "model-00001.safetensors",
        "model.fp16.safetensors",
        "model_ema.safetensors.part",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    mt.checkpoint.save_safetensors(tmp_path, {"w": jnp.zeros(3), "v": jnp.zeros(3)}, max_file_bytes=12)
    mt.checkpoint.save_safetensors(tmp_path, {"w": jnp.ones(3)}, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "model.safetensors"])
    assert all((tmp_path / name).read_bytes() == b"x" for name in others)
    np.testing.assert_array_equal(mt.restore(tmp_path, {"w": jnp.zeros(3)})["w"], np.ones(3))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("sizes", [(12, 36), (36, 12), (12, 24), (12, 12), (36, 36)])
def test_saving_again_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    """Killed before any change of a folder, it has the old model or the new one; also if the next save is killed."""
    like = {name: jnp.zeros(3) for name in "abc"}
    left = 0

    def changing(change: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return change(*args, **kwargs)

        return changed

    def is_killed(folder: Path, value: int, before: int, size: int) -> bool:
        nonlocal left
        left = before
        with monkeypatch.context() as patch:
            for name in ("replace", "remove", "fsync"):
                patch.setattr(f"os.{name}", changing(getattr(os, name)))
            patch.setattr("os.unlink", lambda path: None)  # what a process that is killed does not do
            try:
                mt.checkpoint.save_safetensors(
                    folder, jax.tree.map(lambda x: x + value, like), max_file_bytes=size, overwrite=True
                )
            except Killed:
                return True
        return False

    def value_in(folder: Path) -> float:
        (value,) = {float(x) for y in mt.restore(folder, like).values() for x in y}
        return value

    def values_in(file: Path) -> list[float]:
        tensors = SafetensorsFiles(str(file))
        return [x for name in tensors for x in tensors[name].tolist()]

    values = []
    killed = True
    while killed:
        folder = tmp_path / str(len(values))
        mt.checkpoint.save_safetensors(folder, jax.tree.map(lambda x: x + 1, like), max_file_bytes=sizes[0])
        killed = is_killed(folder, 2, len(values), sizes[1])
        for_others = [float(x) for path in folder.glob("*.safetensors") for x in values_in(path)]
        assert len(set(for_others)) <= 1
        assert for_others or sizes != (36, 36)
        values.append(value_in(folder))
        with pytest.raises(mt.MpmdError, match="overwrite=True"):
            mt.checkpoint.save_safetensors(folder, like)
        again = 0
        while is_killed(folder, 3, again, sizes[0]):
            assert value_in(folder) in (values[-1], 3)
            again += 1
        assert value_in(folder) == 3
        mt.checkpoint.save_safetensors(folder, like, overwrite=True)
        assert [p.name for p in folder.iterdir()] == ["model.safetensors"]
    assert values == sorted(values)
    assert set(values) == {1, 2}


@pytest.mark.parametrize("sizes", [(12, 12), (36, 36), (12, 36)])
def test_a_model_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    """Whatever the writer does before the first look at a tensor or the second, all are of one model."""
    like = {name: jnp.zeros(3) for name in "abc"}
    new = {name: jnp.ones(3) for name in "abc"}
    get = SafetensorsFiles.__getitem__
    for at in range(1, 7):
        mt.checkpoint.save_safetensors(tmp_path, like, max_file_bytes=sizes[0], overwrite=True)
        looks = 0

        def late(self: Any, name: str, at: int = at) -> Any:
            nonlocal looks
            looks += 1
            if looks == at:
                mt.checkpoint.save_safetensors(tmp_path, new, max_file_bytes=sizes[1], overwrite=True)
            return get(self, name)

        with monkeypatch.context() as patch:
            patch.setattr(SafetensorsFiles, "__getitem__", late)
            found = mt.restore(tmp_path, like)
        assert {float(x) for y in found.values() for x in y} == ({1} if looks >= at else {0})
        assert looks >= at or at > 3


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    like = {name: jnp.zeros(3) for name in "abc"}
    mt.checkpoint.save_safetensors(tmp_path, like, max_file_bytes=12)
    files = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    calls = []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(mt.MpmdError, match=r"cannot save to .*: No space left on device"):
        mt.checkpoint.save_safetensors(tmp_path, jax.tree.map(lambda x: x + 1, like), max_file_bytes=12, overwrite=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files


def test_what_would_be_lost_in_writing(tmp_path: Path) -> None:
    both = {"a.b": jnp.zeros(3), "a": {"b": jnp.ones(3)}}
    with pytest.raises(mt.MpmdError, match=r"two arrays are called a\.b"):
        mt.checkpoint.save_safetensors(tmp_path / "no", both)
    mt.checkpoint.save_safetensors(tmp_path / "one", {"a.b": jnp.ones(3)})
    with pytest.raises(mt.MpmdError, match=r"two arrays are called a\.b"):
        mt.restore(tmp_path / "one", both)
    rows = {r"(\d)\.w": StoredAs("w", row=r"\1")}
    for other in (jnp.zeros(3, jnp.int32), jnp.zeros(4), jnp.zeros((1, 3))):
        with pytest.raises(mt.MpmdError, match=r"w would have rows of float32\[3\] along axis 0, such as 0\.w, and of"):
            mt.checkpoint.save_safetensors(tmp_path / "no", [{"w": jnp.zeros(3)}, {"w": other}], names=rows)


def test_big_endian_arrays(tmp_path: Path) -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    mt.checkpoint.save_safetensors(tmp_path / "one", {"x": x, "n": x.astype(">i8")})
    restored = mt.restore(tmp_path / "one", {"x": np.zeros((2, 3), np.float32), "n": np.zeros((2, 3), np.int64)})
    np.testing.assert_array_equal(restored["x"], x)
    np.testing.assert_array_equal(restored["n"], x)
    rows = {r"(\d)": StoredAs("w", row=r"\1")}
    mt.checkpoint.save_safetensors(tmp_path / "rows", [x, jnp.asarray(x.astype(np.float32)) + 1], names=rows)
    np.testing.assert_array_equal(mt.restore(tmp_path / "rows", {"w": jnp.zeros((2, 2, 3))})["w"], np.stack([x, x + 1]))


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = save_safetensors.write
    tree = {"w": jnp.ones(3)}

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(
            mt.MpmdError, match=r"another process saves to .*model: wait until it has ended, or save to"
        ):
            mt.checkpoint.save_safetensors(tmp_path / "model", {"w": jnp.zeros(3)}, overwrite=True)
        return write(*arguments)

    monkeypatch.setattr(save_safetensors, "write", meanwhile)
    mt.checkpoint.save_safetensors(tmp_path / "model", tree)
    assert mt.restore(tmp_path / "model", {"w": jnp.zeros(3)})["w"].sum() == 3
    mt.checkpoint.save_safetensors(tmp_path / "model", tree, overwrite=True)
