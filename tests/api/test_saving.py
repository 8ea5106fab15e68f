"""Checkpoints are never lost: the old one or the new one is there, whatever happens while one is written."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpmd_trace as mt
from mpmd_trace import MpmdError
from mpmd_trace.api.checkpoints import formats, saving
from mpmd_trace.diagnostics import files
from util import nightly

#: Orbax leaves coroutines when it fails.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("only_new_objects")]


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    yield
    gc.collect()


class Killed(Exception):
    """The process does nothing any more."""


class _Alarm:
    """Ends what the Python of this process does to files below a folder, from a certain step on."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.left = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or not self._changes(event, arguments):
            return
        if self.left == 0:
            raise Killed
        self.left -= 1

    def _changes(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event in ("os.remove", "os.rmdir", "os.rename", "os.mkdir", "os.chmod"):
            # Paths relative to a descriptor are those of `shutil.rmtree`.
            return not os.path.isabs(os.fspath(arguments[0])) or os.fspath(arguments[0]).startswith(self.folder or "")
        is_write = (
            event == "open" and isinstance(arguments[0], str) and arguments[1] and set(arguments[1]) & set("wax+")
        )
        return bool(is_write) and arguments[0].startswith(self.folder)

    @contextlib.contextmanager
    def after(self, steps: int, folder: Path) -> Iterator[None]:
        self.folder, self.left = str(folder), steps
        try:
            yield
        finally:
            self.folder = None


ALARM = _Alarm()


def tree(value: int) -> dict[str, Any]:
    return {"weights": jnp.full((3, 4), value, jnp.float32), "key": jax.random.key(value), "step": value}


def restored(path: Path) -> int:
    """Which of the trees is there, whole."""
    found = mt.restore(path, tree(0))
    value = int(found["step"])
    assert np.array_equal(found["weights"], tree(value)["weights"])
    assert found["key"] == tree(value)["key"]
    return value


@pytest.mark.parametrize(
    ("system_exchanges", "stride"), [(True, 8), *(nightly(exchanges, 1) for exchanges in (True, False))]
)
def test_a_kill_at_any_step_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system_exchanges: bool, stride: int
) -> None:
    if not system_exchanges:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    path = tmp_path / "state"
    mt.save(path, tree(1))
    for step in range(0, 200, stride):
        try:
            with ALARM.after(step, tmp_path):
                mt.save(path, tree(step + 2), overwrite=True)
        except Killed:
            pass
        except MpmdError as error:  # orbax may wrap what it gets
            assert "Killed" in str(error)
        now = restored(path)
        assert now in (1, step + 2)
        if system_exchanges:
            assert path.is_dir()
        if ALARM.left:  # it was not killed
            break
        for _ in range(
            5
        ):  # threads of what was killed, which here still run, may write again what the next save removed
            mt.save(path, tree(1), overwrite=True)
            if os.listdir(tmp_path) == ["state"]:
                break
        assert os.listdir(tmp_path) == ["state"], f"step {step} left something"
    assert 20 < step < 199
    assert restored(path) == step + 2


def test_a_process_that_is_killed_leaves_the_old_one(tmp_path: Path) -> None:
    script = """
import os, sys, jax.numpy as jnp, mpmd_trace as mt
path = sys.argv[1]
mt.save(path, {"a": jnp.ones(3)})
sys.addaudithook(lambda event, given: os._exit(9) if event == "os.rename" and "new" in str(given[0]) else None)
mt.save(path, {"a": jnp.zeros(3)}, overwrite=True)
"""
    path = tmp_path / "state"
    done = subprocess.run([sys.executable, "-c", script, str(path)], timeout=300)
    assert done.returncode == 9
    assert len(os.listdir(tmp_path)) == 2
    assert mt.restore(path, {"a": jnp.zeros(3)})["a"].sum() == 3
    mt.save(path, {"a": jnp.zeros(3)}, overwrite=True)
    assert os.listdir(tmp_path) == ["state"]


def test_what_an_older_version_left_is_found(tmp_path: Path) -> None:
    """It was killed between its two renamings, so that there is no folder of the name."""
    path, left = tmp_path / "state", tmp_path / ".state.new"
    mt.save(path, tree(1))
    path.rename(left)
    assert restored(path) == 1
    with pytest.raises(MpmdError, match="exists; save to another folder, or with overwrite=True"):
        mt.save(path, tree(2))
    mt.save(path, tree(2), overwrite=True)
    assert os.listdir(tmp_path) == ["state"]
    path.rename(left)
    (left / "_CHECKSUMS").unlink()  # it is not complete
    with pytest.raises(MpmdError, match=r"there is no folder .*state to restore from"):
        mt.restore(path, tree(2))


def test_places_where_nothing_can_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MpmdError, match="exists; save to another folder"):
        mt.save(tmp_path / "file", tree(1))
    with pytest.raises(MpmdError, match="it is a file; name a folder"):
        mt.save(tmp_path / "file", tree(1), overwrite=True)
    with pytest.raises(MpmdError, match=r"cannot save to .*in/it: (Not a directory|File exists)"):
        mt.save(tmp_path / "file" / "in" / "it", tree(1))
    with pytest.raises(
        MpmdError, match=r"it is no checkpoint, and would be removed with what it has \(file\); name an"
    ):
        mt.save(tmp_path, tree(1), overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"
    mt.save(tmp_path / "more" / "folders" / "state", tree(1))
    assert restored(tmp_path / "more" / "folders" / "state") == 1


def test_a_link_stays(tmp_path: Path) -> None:
    mt.save(tmp_path / "real", tree(1))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mt.save(tmp_path / "link", tree(2), overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert restored(tmp_path / "real") == 2


def test_a_type_without_a_sharding_that_is_not_here(tmp_path: Path) -> None:
    """Where the devices of the one that was saved are not there, the error says what to do."""
    path = tmp_path / "state"
    mt.save(path, {"a": jax.device_put(jnp.ones(8), jax.devices()[-1])})
    like = {"a": jax.ShapeDtypeStruct((8,), jnp.float32)}
    assert mt.restore(path, like)["a"].sum() == 8
    (path / "_sharding").unlink()
    with pytest.raises(MpmdError, match=r"the type of \['a'\] has no sharding: give it one"):
        mt.restore(path, like, verify=False)
    here = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert mt.restore(path, {"a": here}, verify=False)["a"].sum() == 8


def test_a_save_during_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two jobs with one folder: each puts a whole checkpoint there."""
    path = tmp_path / "state"
    found = []

    class Meanwhile:
        def __enter__(self) -> Meanwhile:
            return self

        def __exit__(self, *error: object) -> None: ...

        def save(self, folder: str, arrays: Any) -> None:
            monkeypatch.undo()
            with saving.checkpointer_of_job() as checkpointer:
                checkpointer.save(folder, arrays)
            mt.save(path, tree(2))
            found.append(restored(path))

    monkeypatch.setattr(saving, "checkpointer_of_job", Meanwhile)
    mt.save(path, tree(1))
    assert [*found, restored(path)] == [2, 1]
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("times", [1, 1000])
def test_a_save_while_it_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    path = tmp_path / "state"
    mt.save(path, tree(0))
    saved = 0
    read = formats.OrbaxTree.read

    def late(self: Any, rules: Any, wanted: Any, where_saved: Any) -> Any:
        nonlocal saved
        result = read(self, rules, wanted, where_saved) if saved % 2 else {}  # of the old one, or an error
        if saved < times:
            saved += 1
            mt.save(path, tree(saved), overwrite=True)
        return result or read(self, rules, wanted, where_saved)

    monkeypatch.setattr(formats.OrbaxTree, "read", late)
    if times == 1:
        assert restored(path) == 1
        return
    with pytest.raises(
        MpmdError, match=r"state was replaced 10 times while it was read: read it when nothing saves to"
    ):
        restored(path)
    assert saved == 10


def test_arrays_of_numpy_stay_what_they_are(tmp_path: Path) -> None:
    state = {"position": np.int64(2**40), "losses": np.linspace(0, 1, 5), "mask": np.array([True, False])}
    mt.save(tmp_path / "state", {"weights": jnp.ones(3), **state})
    for like in (state, jax.tree.map(np.zeros_like, state)):
        found = mt.restore(tmp_path / "state", {"weights": jnp.zeros(3), **like})
        assert isinstance(found.pop("weights"), jax.Array)
        for name, x in state.items():
            assert isinstance(found[name], np.ndarray)
            assert found[name].dtype == x.dtype
            np.testing.assert_array_equal(found[name], x)
    mt.save(tmp_path / "jax", {"x": jnp.arange(3.0)})
    assert isinstance(mt.restore(tmp_path / "jax", {"x": np.zeros(3, np.float32)})["x"], np.ndarray)


def test_a_dtype_that_orbax_cannot_write_is_told_before_anything_is_written(tmp_path: Path) -> None:
    mt.save(tmp_path / "state", tree(1))
    for x in (jnp.ones(4, jnp.uint4), np.array(["a", "b"])):
        with pytest.raises(
            MpmdError, match=r"\['layer'\]\['w'\] is (uint4|str32), a dtype that Orbax cannot write: conv"
        ):
            mt.save(tmp_path / "state", {"layer": {"w": x}}, overwrite=True)
    assert os.listdir(tmp_path) == ["state"]
    assert restored(tmp_path / "state") == 1
    mt.save(tmp_path / "four bits", {"w": jnp.arange(4, dtype=jnp.int4)})
    assert mt.restore(tmp_path / "four bits", {"w": jnp.zeros(4, jnp.int4)})["w"].astype(int).tolist() == [0, 1, 2, 3]


def test_damage_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "state"
    mt.save(path, tree(1))
    generator = random.Random(0)
    for file in sorted(f for f in path.rglob("*") if f.is_file()):
        good = file.read_bytes()
        for bad in (_flipped(good, generator), good[: len(good) // 2], b"", None):
            if bad is None:
                file.unlink()
            else:
                file.write_bytes(bad)
            if bad is not None or file.name != "_CHECKSUMS":
                with pytest.raises(MpmdError, match=re.escape(f"the checkpoint {path} is damaged")):
                    mt.restore(path, tree(1))
            with contextlib.suppress(MpmdError):  # it may be read, or not
                mt.restore(path, tree(1), verify=False)
            file.write_bytes(good)
    assert restored(path) == 1


@pytest.mark.parametrize("prefix", ["", "step_"])
def test_the_last_step_is_verified_in_its_folder(prefix: str, tmp_path: Path) -> None:
    for step in (5, 10):
        mt.save(tmp_path / f"{prefix}{step}", tree(step))
    last = tmp_path / f"{prefix}10"
    file = max((f for f in last.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    good = file.read_bytes()
    file.write_bytes(_flipped(good, random.Random(0)))
    with pytest.raises(MpmdError, match=re.escape(f"the checkpoint {last} is damaged")):
        mt.restore(tmp_path, tree(1))
    file.write_bytes(good)
    for one in ("_CHECKSUMS", "_METADATA"):
        (tmp_path / f"{prefix}5" / one).unlink()  # an earlier step is not read
        assert restored(tmp_path) == 10


def _flipped(data: bytes, generator: random.Random) -> bytes:
    at = generator.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << generator.randrange(8)]) + data[at + 1 :]


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "program.mpmd"
    files.write_file(path, b"old" * 1000)
    path.chmod(0o640)
    for step in range(20):
        try:
            with ALARM.after(step, tmp_path):
                files.write_file(path, b"new" * 1000)
        except Killed:
            assert path.read_bytes() == b"old" * 1000
            continue
        break
    assert step > 1
    assert path.read_bytes() == b"new" * 1000
    assert path.stat().st_mode & 0o777 == 0o640
    (tmp_path / ".program.mpmd.part").write_bytes(b"left by a killed process" * 1000)
    files.write_file(path, "text")
    assert path.read_bytes() == b"text"
    assert os.listdir(tmp_path) == ["program.mpmd"]


def test_a_full_disk_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.mpmd"
    path.write_bytes(b"old")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MpmdError, match=r"cannot write .*program\.mpmd: No space left on device"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["program.mpmd"]
    with pytest.raises(MpmdError, match="it is a folder; name a file in it"):
        files.write_file(tmp_path, b"new")
    with pytest.raises(MpmdError, match="there is no folder"):
        files.write_file(tmp_path / "none" / "file", b"new")


def test_processes_that_write_one_file_do_not_mix(tmp_path: Path) -> None:
    script = (
        "import sys; from mpmd_trace.diagnostics.files import write_file\n"
        "for _ in range(100): write_file(sys.argv[1], sys.argv[2].encode() * 100_000)"
    )
    path = str(tmp_path / "file")
    files.write_file(path, b"a" * 100_000)
    running = [subprocess.Popen([sys.executable, "-c", script, path, letter]) for letter in "abc"]
    while any(one.poll() is None for one in running):
        seen = Path(path).read_bytes()
        assert seen in (b"a" * 100_000, b"b" * 100_000, b"c" * 100_000)
    assert [one.returncode for one in running] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["file"]


def test_a_number_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    mt.save(tmp_path / "state", {"a": jnp.ones(2), "rate": 0.5, "count": 2.0})
    like = {"a": jnp.zeros(2), "rate": 1.0, "count": 1}
    assert mt.restore(tmp_path / "state", like) == {"a": pytest.approx(1), "rate": 0.5, "count": 2}
    with pytest.raises(MpmdError, match=r"\['rate'\] is stored as 0\.5, which is no int"):
        mt.restore(tmp_path / "state", {**like, "rate": 1})
