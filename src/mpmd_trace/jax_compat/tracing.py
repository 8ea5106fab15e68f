"""Reading and rebuilding jaxprs: the part of tracing that depends on JAX's internals.

Everything here hides a difference between the supported JAX releases or an attribute that JAX does
not export. The frontend works with the plain values these functions return.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax._src import config, core, pjit, source_info_util, tree_util
from jax._src import effects as effects_lib
from jax._src.interpreters import ad, batching, partial_eval
from jax._src.interpreters import mlir as jax_mlir
from jax._src.state.discharge import discharge_state
from jax._src.state.types import AbstractRef, RefEffect

from mpmd_trace.diagnostics.source_files import is_users

#: A jaxpr together with its constants. JAX 0.12 has one class for both.
Closed: TypeAlias = Any
#: An equation of a jaxpr.
Equation: TypeAlias = Any
#: A variable or a literal of a jaxpr.
Atom: TypeAlias = Any
#: The abstract value (shape, dtype, weak type) of an atom.
Aval: TypeAlias = Any
Primitive = core.Primitive
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OpenJaxpr:
    """The parts of a jaxpr, with the values of its constants beside it."""

    constvars: tuple[Atom, ...]
    invars: tuple[Atom, ...]
    outvars: tuple[Atom, ...]
    eqns: tuple[Equation, ...]
    consts: tuple[Any, ...]


def per_jaxpr(function: Callable[[Closed], _T]) -> Callable[[Closed], _T]:
    """Return `function`, whose result for a jaxpr is remembered as long as the jaxpr is there."""
    known: weakref.WeakKeyDictionary[Closed, _T] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def remembered(closed: Closed) -> _T:
        if closed not in known:
            known[closed] = function(closed)
        return known[closed]

    return remembered


def _inner(closed: Closed) -> Any:
    """Return the jaxpr inside of a closed one; JAX 0.12 has one class for both."""
    return getattr(closed, "jaxpr", closed)


@per_jaxpr
def opened(closed: Closed) -> OpenJaxpr:
    """Return the parts of `closed`; an open jaxpr (as `checkpoint` carries one) has no constants.

    Mutable arrays that live inside (`jax.new_ref`) are values of their own after each write.
    """
    if any(isinstance(effect, _STATE) for effect in closed.effects):
        closed = _without_references(closed)
    inner, consts = _inner(closed), tuple(getattr(closed, "consts", ()))
    return OpenJaxpr(tuple(inner.constvars), tuple(inner.invars), tuple(inner.outvars), tuple(inner.eqns), consts)


_STATE = (RefEffect, type(core.internal_mutable_array_effect))


def _without_references(closed: Closed) -> Closed:
    if any(isinstance(v.aval, AbstractRef) for v in _inner(closed).invars):
        return closed  # belong to what is around it
    whole = isinstance(closed, getattr(core, "ClosedJaxpr", core.Jaxpr))
    return discharge_state(closed if whole else partial_eval.close_jaxpr(closed))


def lowered(closed: Closed) -> Closed:
    """Return `closed` with primitives and types of HiJax in terms of those that they are made of."""
    return partial_eval.lower_jaxpr2(closed) if _inner(closed).is_high else closed


def in_avals(closed: Closed) -> tuple[Aval, ...]:
    """Return the abstract values of the arguments."""
    return tuple(v.aval for v in opened(closed).invars)


def out_avals(closed: Closed) -> tuple[Aval, ...]:
    """Return the abstract values of the results."""
    return tuple(v.aval for v in opened(closed).outvars)


_JAXPRS = (core.Jaxpr, getattr(core, "ClosedJaxpr", core.Jaxpr))


def is_jaxpr(value: object) -> bool:
    """Return whether `value` is a jaxpr, open or closed."""
    return isinstance(value, _JAXPRS)


def is_literal(atom: Atom) -> bool:
    """Return whether `atom` is a literal rather than a variable."""
    return isinstance(atom, core.Literal)


def is_key(value: Any) -> bool:
    """Return whether an array, or the type of one, is of typed PRNG keys."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def is_key_data(value: Any) -> bool:
    """Return whether an array has the type of what `jax.random.PRNGKey` returns: uint32[2], or another length."""
    if getattr(value, "dtype", None) != np.uint32 or getattr(value, "ndim", 0) != 1:
        return False
    # A new function: JAX remembers the shape of an old one for the generator that was the default then.
    return bool(value.shape == jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape)


def key_implementation(aval: Aval) -> str:
    """Return the name of the PRNG whose keys `aval` describes, such as `threefry2x32`."""
    return str(aval.dtype._impl.name)


def physical(aval: Aval) -> tuple[tuple[int, ...], str]:
    """Shape and dtype name of the array that represents `aval` in the compiled program."""
    lowered = core.physical_aval(aval)
    return tuple(lowered.shape), str(lowered.dtype)


def struct(aval: Aval) -> jax.ShapeDtypeStruct:
    """Return `aval` as an argument for tracing."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(aval.weak_type))


def subjaxprs(eqn: Equation) -> Iterator[Closed]:
    """Yield the jaxprs among the parameters of `eqn`, in the order of the parameters."""
    for value in eqn.params.values():
        if isinstance(value, _JAXPRS):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (item for item in value if isinstance(item, _JAXPRS))


def jaxprs(closed: Closed) -> Iterator[Closed]:
    """Yield `closed` and the jaxprs inside of it, at any depth; each of them once."""
    seen: set[Closed] = set()
    left = [closed]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            yield one
            left += [inner for eqn in opened(one).eqns for inner in subjaxprs(eqn)]


def equations(closed: Closed) -> Iterator[Equation]:
    """Yield the equations of `closed` and of the jaxprs inside of it, at any depth; those of each jaxpr once."""
    return (eqn for one in jaxprs(closed) for eqn in opened(one).eqns)


def raw_equations(closed: Closed) -> Sequence[Equation]:
    """Return the equations of `closed` itself, those on Refs included."""
    return tuple(_inner(closed).eqns)


def transposes(eqn: Equation) -> int:
    """Return how many times `eqn` itself went through a transposition."""
    stack = eqn.source_info.name_stack.stack
    # Stacks are as long as functions are nested, and each equation has one: no calls per entry.
    return len([True for e in stack if type(e) is source_info_util.Transform and e.name == "transpose"])


def describe(fn: Callable[..., Any], name: str, place: str | None, arguments: Sequence[str]) -> None:
    """Set what JAX's errors say of `fn` when it is traced: its name, the place of its definition, its arguments."""
    source = name if place is None else f"{name} at {place}"
    fn.__name__ = name
    fn.__fun_debug_info__ = core.DebugInfo(  # type: ignore[attr-defined]
        "jit", source, tuple(arguments), core.initial_result_paths
    )


def scopes(eqn: Equation) -> tuple[str, ...]:
    """Return the named scopes that `eqn` was made in, outermost first."""
    stack = eqn.source_info.name_stack.stack
    return tuple([e.name for e in stack if type(e) is source_info_util.Scope])


def location(eqn: Equation) -> str | None:
    """Return `file:line` of the user's code that made `eqn`, that of a library where there is none of the user."""
    frames = list(source_info_util.user_frames(eqn.source_info.traceback))
    frame = next((frame for frame in frames if is_users(frame.file_name)), frames[0] if frames else None)
    return None if frame is None else f"{frame.file_name}:{frame.start_line}"


def hide_from_locations(folder: str) -> None:
    """Leave the frames of files below `folder` out of source locations, as JAX's own are."""
    source_info_util.register_exclusion(folder)


@contextlib.contextmanager
def source_of(eqn: Equation) -> Iterator[None]:
    """Give what is traced inside the source location, name scopes and settings of `eqn`."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def settings_of(eqn: Equation) -> str:
    """Return the settings that `eqn` was made under and is lowered with, as text."""
    names = [n for n in type(eqn.ctx).__slots__ if n != "configs" and not n.startswith("_")]
    return " ".join(str(getattr(eqn.ctx, name)) for name in names)


def rebind(eqn: Equation, args: Sequence[Any], params: dict[str, Any] | None = None) -> list[Any]:
    """Return the results of `eqn`'s primitive on `args`, with other parameters where `params` is given."""
    bound = eqn.primitive.get_bind_params(eqn.params if params is None else params)
    if isinstance(bound, tuple):
        functions, bound = bound
        results = eqn.primitive.bind(*functions, *args, **bound)
    else:
        results = eqn.primitive.bind(*args, **bound)
    return list(results) if eqn.primitive.multiple_results else [results]


def staged(eqn: Equation, args: Sequence[Any]) -> list[Any] | None:
    """Return what `rebind` does for an equation without effects, if `args` are of the current trace and its types.

    Then the types of its results are known, and its primitive need not be asked for them.  None where that does not
    hold, or where JAX does more for this primitive.
    """
    trace, primitive = core.trace_ctx.trace, eqn.primitive
    if type(trace) is not partial_eval.DynamicJaxprTrace or primitive in partial_eval.custom_staging_rules:
        return None
    around, source = source_info_util.current_name_stack(), eqn.source_info
    if around.stack:
        source = source.replace(name_stack=around + source.name_stack)
    operands = []
    for atom, arg in zip(eqn.invars, args, strict=True):
        if isinstance(atom, core.Literal) and arg is atom.val:
            operands.append(partial_eval.DynamicJaxprTracer(trace, atom.aval, atom, source))
        elif isinstance(arg, partial_eval.DynamicJaxprTracer) and arg._trace is trace and arg.aval == atom.aval:
            operands.append(arg)
        else:
            return None
    types = [v.aval for v in eqn.outvars]
    if primitive in partial_eval.const_fold_rules and any(x.get_const() is not None for x in operands):
        return None
    if primitive in partial_eval.forwarding_rules and types == [x.aval for x in operands]:
        return None  # it may do nothing
    return list(trace.emit_eqn(operands, types, primitive, eqn.params, eqn.effects, source, eqn.ctx))


@dataclass(frozen=True, slots=True)
class ScanLayout:
    """The division of the operands of a `scan` equation: constants, carries, scanned arrays."""

    body: Closed
    length: int
    reverse: bool
    constants: int
    carries: int

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Something of each operand, divided so."""
        first = self.constants + self.carries
        return values[: self.constants], values[self.constants : first], values[first:]


def scan_layout(eqn: Equation) -> ScanLayout:
    """Return the layout of a `scan` equation."""
    p = eqn.params
    if "num_consts" in p:
        constants, carries = p["num_consts"], p["num_carry"]
    else:
        constants, carries, _ = (len(part) for part in p["ft_in"].unpack())
    return ScanLayout(p["jaxpr"], p["length"], bool(p["reverse"]), constants, carries)


def make_closed(function: Callable[..., Any], avals: Sequence[Aval]) -> Closed:
    """Return the jaxpr of `function` on arguments of the types `avals`."""
    return jax.make_jaxpr(function)(*map(struct, avals))


def call_as(jitted: Any, name: str, *args: Any) -> tuple[Any] | None:
    """Return the result of `jitted(*args)`, made by a jit called `name`, in a tuple; its first argument is static.

    However many names there are, the function is traced once, and JAX's caches know the jaxpr when it is
    differentiated.  None where nothing is being traced, or for what is not made of ordinary arrays.
    """
    arrays = args[1:]
    if core.trace_state_clean() or not all(isinstance(a, jax.Array | np.ndarray | np.generic) for a in arrays):
        return None
    traced = jitted.trace(*args)
    if _inner(traced._params["jaxpr"]).is_high:
        return None
    results = pjit.jit_p.bind(*traced._consts, *arrays, **{**traced._params, "name": name})
    return (jax.tree_util.tree_unflatten(traced.out_tree, results),)


def make_program(function: Callable[..., Any], avals: Sequence[Aval], name: str, without_unused: bool = False) -> Any:
    """Return `function` on arguments of the types `avals`, traced as a program of this name, unused arguments included.

    Its `jaxpr` can be read, and `lowering.lower` makes a module of it without tracing it again.  `without_unused`
    equations: those that no result depends on, and that have no effects, are left out.
    """
    if without_unused:
        function = _without_unused(make_closed(function, avals))
    function.__name__ = name
    return jax.jit(function, keep_unused=True).trace(*map(struct, avals))


def _without_unused(closed: Closed) -> Callable[..., list[Any]]:
    """Return `closed` as a function, without the equations that no result depends on and nothing happens in."""

    def acts(eqn: Equation) -> bool:
        return bool(eqn.effects) or any(acts(one) for inner in subjaxprs(eqn) for one in opened(inner).eqns)

    inner = _inner(closed)
    needed = {v for v in inner.outvars if not is_literal(v)}
    kept: list[Any] = []
    for eqn in reversed(inner.eqns):
        if not needed.isdisjoint(eqn.outvars) or acts(eqn):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if not is_literal(v))
    smaller = inner.replace(eqns=kept[::-1])
    return lambda *args: core.eval_jaxpr(smaller, closed.consts, *args)


def structure_differences(wanted: Any, second: Any) -> list[tuple[tuple[Any, ...], str]]:
    """Return where two structures of pytrees differ: the path, and what is wanted and found there."""
    return [
        (tuple(path), f"{_plain(one)}, not {_plain(other)}")
        for path, one, other, _ in tree_util.equality_errors_pytreedef(wanted, second)
    ]


def _plain(described: str) -> str:
    """Return what JAX says of a node of a pytree, in fewer words: `<class 'dict'> with pytree metadata ('k',)`."""
    text = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", described).replace("with pytree metadata", "with")
    return (
        re.sub(r"with (\d+) child(ren)?", r"of length \1", text)
        .replace("pytree leaf", "an array")
        .replace("StaticLeaf with ", "the static value ")
        .replace("StaticLeaf", "a static value")
    )


def leak_error(tracer: Any) -> Exception:
    """JAX's error about a tracer that is used outside of its trace."""
    error: Exception = core.escaped_tracer_error(tracer)
    return error


@contextlib.contextmanager
def known_forms(of_user: bool = False) -> Iterator[None]:
    """Within, functions are traced to the forms that are known here, whatever is set.

    Settings of the next JAX may give others for the same numbers: loops without their number of iterations
    (`jax_scan3`), and equations that are evaluated while they are made (`eager_constant_folding`).  Keys of random
    numbers that are used twice (`jax_debug_key_reuse`) are a mistake only in the function `of_user`: what is made of
    it uses a key in forward and backward parts.
    """
    names = ["scan3", "eager_constant_folding", *([] if of_user else ["debug_key_reuse"])]
    with contextlib.ExitStack() as settings:
        for name in names:
            state = getattr(config, name, None)
            if state is not None and state.value:
                settings.enter_context(state(False))
        yield


def trace_settings() -> Any:
    """JAX's settings of this thread that change what a function is traced to; `jax.jit` compares them, too."""
    return config.trace_context()


def error_checks() -> list[str]:
    """Return the flags of JAX under which functions keep errors in a Ref that JAX makes."""
    flags = [f"error_checking_behavior_{kind}" for kind in ("nan", "divide", "oob")]
    return [f"jax_{flag}" for flag in flags if getattr(getattr(config, flag, None), "value", None) == "raise"]


def _without_constants(closed: Closed) -> tuple[Any, list[Any]]:
    """Return an open jaxpr of the constants, then the arguments, of `closed`; and the constants."""
    return partial_eval.convert_constvars_jaxpr(_inner(closed)), list(closed.consts)


def run(closed: Closed, args: Sequence[Any]) -> list[Any]:
    """Return the results of `closed` on `args`, under the current trace."""
    return list(core.eval_jaxpr(_inner(closed), closed.consts, *args))


def rebind_checkpoint(eqn: Equation, args: Sequence[Any], body: Closed) -> list[Any]:
    """Return the results of a `jax.checkpoint` equation with another body on `args`."""
    inner, constants = _without_constants(body)
    return rebind(eqn, [*constants, *args], {**eqn.params, "jaxpr": inner})


def pruned(branches: Sequence[Closed], results: Sequence[int]) -> tuple[list[int], list[Callable[..., list[Any]]]]:
    """Return the arguments that `results` of these jaxprs need, and functions of those that return these results."""
    parts = []
    for closed in branches:
        inner, constants = _without_constants(closed)
        smaller, used = partial_eval.dce_jaxpr(inner, [i in results for i in range(len(inner.outvars))])
        parts.append((smaller, constants, used))
    needed = sorted({i for _, own, used in parts for i, is_used in enumerate(used[len(own) :]) if is_used})

    def function(smaller: Any, constants: Sequence[Any], used: Sequence[bool]) -> Callable[..., list[Any]]:
        def run(*args: Any) -> list[Any]:
            known = dict(zip(needed, args, strict=True))
            given = [*constants, *(known.get(i) for i in range(len(used) - len(constants)))]
            return list(core.eval_jaxpr(smaller, (), *itertools.compress(given, used)))

        return run

    return needed, [function(*part) for part in parts]


#: The name of the logger that tells of exceptions in callbacks.
CALLBACK_LOGGER = "jax._src.callback"
_CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback"})


def calls_out(eqn: Equation) -> bool:
    """Return whether `eqn` calls a function in Python, or a library by `jax.ffi`, for what it does."""
    return eqn.primitive.name in _CALLBACKS or (eqn.primitive.name == "ffi_call" and bool(eqn.effects))


def uses_ref(eqn: Equation) -> bool:
    """Return whether `eqn` reads or writes a Ref."""
    return any(isinstance(effect, _STATE) for effect in eqn.effects)


def callback_of(eqn: Equation) -> Any:
    """Return the Python function that `eqn` calls for a value, None where it calls none."""
    return getattr(eqn.params.get("callback"), "callback_func", None)


def is_ordered(part: Closed | Equation) -> bool:
    """Return whether a jaxpr or an equation has effects that must happen in the order of the program."""
    return any(map(effects_lib.ordered_effects.contains, part.effects))


def effects(closed: Closed) -> tuple[str, ...]:
    """Return the names of the side effects of a jaxpr, sorted."""
    return tuple(sorted(str(e) for e in closed.effects))


def identity_primitive(name: str, transposed: Callable[[Any, dict[str, Any]], Any]) -> Any:
    """Return a primitive that returns its one operand, under every transformation.

    Its derivative is itself; `transposed(cotangent, params)` gives its transpose.
    """
    primitive = core.Primitive(name)
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda x, **_: x)

    def transpose_rule(cotangent: Any, _operand: Any, **params: Any) -> list[Any]:
        if type(cotangent) is ad.Zero:
            return [cotangent]
        return [transposed(cotangent, params)]

    ad.deflinear2(primitive, transpose_rule)

    def batch_rule(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return primitive.bind(args[0], **params), dims[0]

    batching.primitive_batchers[primitive] = batch_rule
    jax_mlir.register_lowering(primitive, lambda _ctx, x, **_: [x])
    return primitive
