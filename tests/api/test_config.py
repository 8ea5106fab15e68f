"""`make_config` checks everything it can, and says all that is wrong at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

from mpmd_trace import MpmdError, make_config
from mpmd_trace.config import Config
from mpmd_trace.frontend import FrontendError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.schedules import get_schedule

MESH = AbstractMesh((2,), ("data",))
TOPOLOGY = {"m0": MESH, "m1": MESH}


def test_forms_of_assignments() -> None:
    config = make_config(
        list(TOPOLOGY.items()),
        {"a": "m0/0", "b": ("m0", 0), "c": "m1", "t": "m1#pinned_host", "u": ("m1", None)},
        name_to_stage_assignment={"c": 1},
    )
    assert config.assignments == {
        "a": Assignment("m0", 0),
        "b": Assignment("m0", 0),
        "c": Assignment("m1", 1),
        "t": Assignment("m1", None, "pinned_host"),
        "u": Assignment("m1"),
    }
    assert config.name_to_mesh_assignment["t"] == "m1#pinned_host"
    assert config.name_to_stage_assignment == {"a": 0, "b": 0, "c": 1}
    assert list(config.topology) == ["m0", "m1"]
    assert config.is_abstract


def test_prefixes_of_arguments_and_results() -> None:
    config = make_config(
        TOPOLOGY, {}, input_mesh_assignment=({"w": "m0", "b": None}, "m1#pinned_host"), output_mesh_assignment="m1"
    )
    in_tree = jax.tree.structure((({"w": [0, 0], "b": 0}, [0]), {"k": 0}))
    assert config.input_meshes(in_tree) == {
        1: Assignment("m0"),
        2: Assignment("m0"),
        3: Assignment("m1", None, "pinned_host"),
    }
    assert set(config.output_meshes(jax.tree.structure([0, 0]))) == {0, 1}
    assert make_config(TOPOLOGY, {}).input_meshes(in_tree) == {}
    with pytest.raises(FrontendError, match="not a pytree prefix of the dynamic arguments"):
        config.input_meshes(jax.tree.structure(((0,), {})))


@pytest.mark.parametrize(
    ("topology", "assignment", "options", "message"),
    [
        ({}, {}, {}, "the topology has no mesh"),
        ({"m0": 3}, {}, {}, "the mesh 'm0' is a int"),
        ({"a@b": MESH}, {}, {}, "cannot name a mesh"),
        ([("m0", MESH), ("m0", MESH)], {}, {}, "two meshes called 'm0'"),
        (
            {"m0": MESH, "m1": AbstractMesh((4,), ("data",))},
            {},
            {"partitioning_options": {"enable_heterogeneous_meshes": False}},
            "the mesh 'm1' has axes {'data': 4}, the mesh 'm0' {'data': 2}",
        ),
        (TOPOLOGY, {"a": "m2"}, {}, "'m2', which the topology lacks. Did you mean 'm"),
        (TOPOLOGY, {"a": "x"}, {}, "Known: 'm0', 'm1'."),
        (TOPOLOGY, {"a": 3}, {}, "is assigned to 3"),
        (TOPOLOGY, {"a": "m0#disk"}, {}, "memory 'disk' of mesh 'm0'"),
        (TOPOLOGY, {"a": ("m0/1", 2)}, {}, "gives two stages"),
        (TOPOLOGY, {"a": ("m0", -1)}, {}, "stage -1"),
        (TOPOLOGY, {"a": "m0/1", "b": "m1/1"}, {}, "stage 1 is on two meshes"),
        (TOPOLOGY, {"a": "m0/1"}, {"name_to_stage_assignment": {"a": 2}}, "Give it once"),
        (TOPOLOGY, {"abc": "m0"}, {"name_to_stage_assignment": {"abd": 2}}, "a stage but no mesh"),
        (TOPOLOGY, {}, {"input_mesh_assignment": ("m0", ["m3"])}, r"assignment\[1\]\[0\]"),
        (TOPOLOGY, {}, {"output_mesh_assignment": "m0/1"}, "only computations have stages"),
        (None, {}, {}, "a topology lists .name, mesh. pairs or maps names to meshes; got None"),
        (MESH, {}, {}, "a topology of one mesh needs stage_axis"),
        ({"a/0": MESH}, {}, {}, "'a/0' cannot name a mesh"),
        ({"a\n": MESH}, {}, {}, "cannot name a mesh"),
        ({"m0": AbstractMesh((2,), ("é",))}, {}, {}, "the mesh 'm0' has an axis named 'é'"),
        (TOPOLOGY, None, {}, "name_to_mesh_assignment maps names to values, as {name: value}; got None"),
        (TOPOLOGY, ["a0"], {}, "name_to_mesh_assignment maps names to values"),
        (TOPOLOGY, {"a0", "b0"}, {}, "name_to_mesh_assignment maps names to values"),
        (TOPOLOGY, {1: "m0"}, {}, "name_to_mesh_assignment has the key 1, which cannot be a name"),
        (TOPOLOGY, {"a,b": "m0"}, {}, "has the key 'a,b', which cannot be a name"),
        (TOPOLOGY, {"a": "m0"}, {"name_to_stage_assignment": {2: 0}}, "has the key 2, which cannot be a name"),
        (TOPOLOGY, {"a": "m0"}, {"name_to_stage_assignment": "a"}, "name_to_stage_assignment maps names"),
        (TOPOLOGY, {}, {"partitioning_options": 3}, "partitioning_options maps names to values"),
        (TOPOLOGY, {}, {"partitioning_options": {"enable_heterogeneous_meshes": "no"}}, "is True or False, not 'no'"),
        (TOPOLOGY, {}, {"partitioning_options": {"mpmd_infer_transfer": True}}, "did you mean mpmd_infer_transfers"),
        (TOPOLOGY, {}, {"partitioning_options": {"heterogeneous_meshes": True}}, "did you mean enable_heterog"),
        (TOPOLOGY, {}, {"partitioning_options": {"mpmd_infer_transfers": 1}}, "mpmd_infer_transfers' is True or"),
        (TOPOLOGY, {}, {"pipeline_schedule": "1F2B"}, "unknown schedule '1F2B'; did you mean 1f1b"),
        (TOPOLOGY, {}, {"pipeline_schedule": 3}, "pipeline_schedule is a name, a Schedule or a comparator"),
        (TOPOLOGY, {}, {"pipeline_schedule": lambda a: True}, "this one cannot be called so"),
        (TOPOLOGY, {}, {"fragment_merge_rules": None}, "fragment_merge_rules is a list of rules, not None"),
        (TOPOLOGY, {}, {"fragment_schedule_rules": "rule"}, "fragment_schedule_rules is a list of rules, not 'rule'"),
    ],
)
def test_mistakes(topology: Any, assignment: Any, options: Any, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        make_config(topology, assignment, **options)


def test_a_device_twice_in_a_mesh() -> None:
    device = jax.devices()[0]
    with pytest.raises(FrontendError, match=r"the mesh 'm0' has .* 2 times\. Each device belongs once"):
        make_config({"m0": Mesh(np.array([device, device]), ("data",))}, {})


def test_names_of_host_meshes() -> None:
    assert list(make_config({"m0": MESH, "m0/cpu": MESH}, {"a": "m0/cpu"}).topology) == ["m0", "m0/cpu"]


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(FrontendError) as error:
        make_config(TOPOLOGY, {"a": "m7", "b": ("m0", -2)}, output_mesh_assignment="m9")
    assert len(error.value.diagnostics) == 3
    options = {"mpmd_infer_transfer": True, "mpmd_pipeline_schedule": "GPip"}
    with pytest.raises(FrontendError) as error:
        make_config(TOPOLOGY, {"a": "m7"}, partitioning_options=options, pipeline_schedule="1F2B")
    assert len(error.value.diagnostics) == 4, str(error.value)
    with pytest.raises(FrontendError) as error:
        make_config(TOPOLOGY, ["abc"])
    assert len(error.value.diagnostics) == 1, str(error.value)


def test_two_schedules() -> None:
    same = {"mpmd_pipeline_schedule": "1f1b"}
    make_config(TOPOLOGY, {}, pipeline_schedule="1F1B", partitioning_options=same)
    for wanted in ("ZeroBubbleH1", "auto", "zb-h1", lambda a, b: False):
        with pytest.raises(FrontendError, match=r"two schedules are asked for: .* 'GPipe' by the option") as error:
            make_config(
                TOPOLOGY, {}, pipeline_schedule=wanted, partitioning_options={"mpmd_pipeline_schedule": "GPipe"}
            )
        assert "test_config.py:" in str(error.value)


@pytest.mark.parametrize("schedule", ["ZeroBubbleH1", "zb-h1", get_schedule("zb-h1", 2, 4)])
def test_a_schedule_that_splits_backwards_which_are_to_be_whole(schedule: Any) -> None:
    options = {"mpmd_split_bwd_fragments": False}
    with pytest.raises(FrontendError, match="are split, but the option mpmd_split_bwd_fragments is False"):
        make_config(TOPOLOGY, {}, pipeline_schedule=schedule, partitioning_options=options)
    make_config(TOPOLOGY, {}, pipeline_schedule="1F1B", partitioning_options=options)


def test_a_config_cannot_be_changed() -> None:
    config = make_config(TOPOLOGY, {"a": "m0"})
    with pytest.raises(TypeError):
        config.assignments["b"] = Assignment("m1")  # type: ignore[index]


def test_arguments_may_be_given_among_the_options() -> None:
    config = make_config(TOPOLOGY, {}, partitioning_options={"gather": "phase", "optimizer_sharding": "data"})
    assert config.options == make_config(TOPOLOGY, {}, gather="phase", optimizer_sharding="data").options
    assert config.options.gather == "phase" and config.options.optimizer_sharding == ("data",)
    assert "gather='phase'" in repr(config)
    with pytest.raises(FrontendError, match=r"gather is 'step', and 'phase' in partitioning_options\. Give it once"):
        make_config(TOPOLOGY, {}, gather="step", partitioning_options={"gather": "phase"})
    with pytest.raises(FrontendError, match=r"placement is 'cut', and 'reference' in partitioning_options\."):
        make_config(TOPOLOGY, {}, placement="cut", partitioning_options={"placement": "reference"})
    with pytest.raises(FrontendError, match=r"optimizer_sharding is 'data', and \(\) in partitioning_options\."):
        make_config(TOPOLOGY, {}, optimizer_sharding="data", partitioning_options={"optimizer_sharding": ()})
    with pytest.raises(FrontendError, match="gather is 'auto', 'step', 'phase' or 'microbatch', not 'often'"):
        make_config(TOPOLOGY, {}, partitioning_options={"gather": "often"})


def test_options_that_do_not_go_together_cannot_be_made() -> None:
    config = make_config(TOPOLOGY, {}, remat="auto")
    with pytest.raises(MpmdError, match="remat='auto' and the option mpmd_fragment_remat both recompute"):
        config.with_options(mpmd_fragment_remat=True)
    assert config.with_options(remat=None, mpmd_fragment_remat=True).options.mpmd_fragment_remat


def test_names_of_options_from_before() -> None:
    config = make_config(TOPOLOGY, {}, placement="reference", partitioning_options={"mpmd_infer_transfers": True})
    with pytest.warns(DeprecationWarning, match=r"config\.placement is config\.options\.placement"):
        assert config.placement == "reference"
    with pytest.warns(DeprecationWarning, match=r"config\.options"):
        assert config.partitioning_options == {"mpmd_infer_transfers": True}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = config.nothing


def test_partitioning_options_are_those_that_were_given() -> None:
    given = {"mpmd_fragment_remat": False, "mpmd_pipeline_schedule": "1F1B", "enable_heterogeneous_meshes": True}
    config = make_config(TOPOLOGY, {}, device_memory=10**9, partitioning_options=given | {"placement": "reference"})
    with pytest.warns(DeprecationWarning, match=r"config\.options"):
        assert config.partitioning_options == given
    with pytest.warns(DeprecationWarning, match=r"config\.options"):
        changed = config.with_options(mpmd_fragment_remat=True).partitioning_options
    assert changed == given | {"mpmd_fragment_remat": True}


def test_options_are_keywords_of_configurations_as_before() -> None:
    config = make_config(TOPOLOGY, {}, gather="step", partitioning_options={"mpmd_fragment_remat": True})
    with pytest.warns(DeprecationWarning, match="with_options") as warned:
        other = dataclasses.replace(config, placement="reference")
    assert [one.filename for one in warned] == [__file__]
    assert other.options == dataclasses.replace(config.options, placement="reference")
    with pytest.warns(DeprecationWarning, match="with_options"):
        other = dataclasses.replace(config, partitioning_options={"mpmd_infer_transfers": True})
    assert other.options == CompileOptions(gather="step", mpmd_infer_transfers=True)
    with pytest.warns(DeprecationWarning), pytest.raises(MpmdError, match="no partitioning option 'mpmd_nothing'"):
        dataclasses.replace(config, partitioning_options={"mpmd_nothing": True})
    with pytest.warns(DeprecationWarning, match="CompileOptions") as warned:
        made = Config(topology=TOPOLOGY, placement="reference", partitioning_options={"mpmd_fragment_remat": True})
    assert [one.filename for one in warned] == [__file__]
    assert made.options == CompileOptions(placement="reference", mpmd_fragment_remat=True)


@pytest.mark.parametrize("name", ["hoist_invariants", "mpmd_fragment_remat"])
def test_none_is_no_value_of_a_flag(name: str) -> None:
    with pytest.raises(FrontendError, match=f"{name}'? is True or False, not None"):
        make_config(TOPOLOGY, {}, partitioning_options={name: None})
    assert make_config(TOPOLOGY, {}, partitioning_options={"enable_heterogeneous_meshes": None}).options.changed() == {}
