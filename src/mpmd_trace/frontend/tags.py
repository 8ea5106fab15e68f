"""Tagged `jax.jit`s: how a name travels through JAX's transformations.

A named computation is an ordinary `jax.jit` whose function has a reserved name. JAX differentiates,
batches and rematerializes it like any other, keeps its name, and records on each equation which
transformations made it; the frontend recognizes the name afterwards. Outside `mpmd_trace.jit`
nothing else happens.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from mpmd_trace.frontend import marker_primitives, mutation
from mpmd_trace.frontend.errors import FrontendError, mistake
from mpmd_trace.frontend.explanations import leak
from mpmd_trace.frontend.functions import labels, positional_names
from mpmd_trace.frontend.statics import ARRAY, StaticLeaf, Statics, is_hashable, join, without_statics
from mpmd_trace.jax_compat import tracing

_PREFIX = "mpmd_trace."
_COUNTER = "mpmd_trace.call_counter="
#: What separates entries of a name assignment, as text.
_SEPARATORS = frozenset(',@"\\\n')


@dataclass(frozen=True, slots=True)
class Tag:
    """The meaning of a tagged jit: `kind` is `named_computation`, `call` or `loop`."""

    kind: str
    name: str

    def encode(self) -> str:
        """Return the reserved function name."""
        return f"{_PREFIX}{self.kind}[{self.name}]"


def decode(function_name: str) -> Tag | None:
    """Return the tag that `function_name` spells, or None for a name that a user gave."""
    if not function_name.startswith(_PREFIX) or not function_name.endswith("]"):
        return None
    kind, _, rest = function_name[len(_PREFIX) :].partition("[")
    return Tag(kind, rest[:-1])


def counter_scope(call_counter: int) -> str:
    """Return the name scope that carries a call counter to the frontend."""
    return f"{_COUNTER}{call_counter}"


def counter_in(scopes: Sequence[str]) -> int | None:
    """Return the innermost call counter among `scopes`, or None."""
    for scope in reversed(scopes):
        if scope.startswith(_COUNTER):
            return int(scope[len(_COUNTER) :])
    return None


def is_name(name: object) -> bool:
    """Return whether `name` can name a computation or tensor."""
    return isinstance(name, str) and bool(name) and name == name.strip() and not set(name) & _SEPARATORS


def check_name(name: object, what: str) -> str:
    """Return `name`, when it can name a computation or tensor; `what` says which in the error."""
    if not isinstance(name, str) or not name:
        raise mistake(f"{what} needs a non-empty string as its name, got {name!r}.")
    if name != name.strip():
        raise mistake(f"{what} name {name!r} starts or ends with blanks. Choose a name without them.")
    bad = sorted(set(name) & _SEPARATORS)
    if bad:
        raise mistake(
            f"{what} name {name!r} contains {', '.join(map(repr, bad))}, which separate entries "
            "of a name assignment. Choose a name without them."
        )
    return name


def layer_names(
    defaults: Sequence[str], name: str | Sequence[str] | Callable[[str], str] | None, what: str
) -> list[str]:
    """Return the names of layers: `name` for all of them, one per layer, or made of its default name.

    Raises:
        FrontendError: when there are more or fewer names than layers, and for a name that cannot be one.
    """
    if name is None:
        names = list(defaults)
    elif isinstance(name, str):
        names = [name] * len(defaults)
    elif callable(name):
        names = [name(default) for default in defaults]
    else:
        names = list(name)
    if len(names) != len(defaults):
        raise mistake(f"{what} got {len(names)} names for {len(defaults)} layers ({', '.join(defaults)}).")
    return [check_name(one, what) for one in names]


def static_names(names: object, what: str) -> tuple[str, ...]:
    """Return `names`, one or several, as a tuple; `what` says whose they are in the error."""
    return listed(names, str, f"static_argnames of {what} are names of arguments, one or several")


def listed(given: object, kind: Any, wanted: str) -> tuple[Any, ...]:
    """Return `given` (one value, several, or None) as a tuple of that kind; an error says what is `wanted`."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    result = () if given is None else tuple(cast("Iterable[Any]", given)) if several else (given,)
    if not all(isinstance(value, kind) for value in result):
        raise mistake(f"{wanted}, not {given!r}.")
    return result


_ATTRIBUTE_KEYS = (jax.tree_util.GetAttrKey, jax.tree_util.FlattenedIndexKey)


def is_array(leaf: object) -> bool:
    """Return whether `leaf` is an array or tracer (typed PRNG keys included)."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) or hasattr(leaf, "__jax_array__")


def _is_dynamic(path: Sequence[Any], leaf: object, tag: Tag) -> bool:
    if is_array(leaf):
        return True
    if tag.kind == "named_computation":
        return False  # as for equinox.filter_jit: layers branch on flags that are passed to them
    # To a call, a number is data, as for jax.jit: calls with different numbers share one function. In an object it
    # is a setting of the object (Equinox modules branch on such fields in Python).
    in_object = any(isinstance(key, _ATTRIBUTE_KEYS) for key in path)
    return isinstance(leaf, (bool, int, float, complex)) and not in_object


#: Per user function, the jits made of it: one for each tag, or one for all names of computations and a closure.
#: They refer to it weakly, so that it can go.
_jits: weakref.WeakKeyDictionary[Any, dict[Any, Callable[..., Any]]] = weakref.WeakKeyDictionary()


def _jit_of(function: Callable[..., Any] | None, tag: Tag, shared: bool = False) -> Callable[..., Any]:
    """Return a tagged jit `(statics, *arrays) -> result` that runs `function`; when it is `shared`, for all names.

    When `function` is None, it is found in the arguments (callable pytrees such as modules).
    """
    is_argument = function is None  # what runs later does not keep the function
    made: dict[Any, Callable[..., Any]] | None = None
    key = ("shared", *_closure(function)) if shared else tag
    reference: Callable[[], Any] = lambda: function  # noqa: E731 (one of two forms)
    if is_argument:
        made = _jits.setdefault(_jit_of, {}) if shared else None
    elif getattr(type(function), "__eq__", None) is object.__eq__:
        with contextlib.suppress(TypeError):  # cannot be referred to weakly: no sharing between wrappers
            made = _jits.setdefault(function, {})
            reference = weakref.ref(function)
    if made is not None and key in made:
        return made[key]

    def run(statics: Statics, *arrays: Any) -> Any:
        callee, args, kwargs = without_statics(join(arrays, statics))
        target = callee if is_argument else reference()
        with own_frames(tag.kind):
            result = mutation.kept(target, args, kwargs, tag.kind, "mpmd_trace.nnx.named_computation", owner=callee)
        # What can be no result of a jit (strings, functions) is a part of the structure.
        result = jax.tree.map(lambda leaf: leaf if _can_be_returned(leaf) else StaticLeaf(leaf), result)
        return marker_primitives.counted(result) if tag.kind == "named_computation" else result

    run.__name__ = run.__qualname__ = tag.encode()
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is not None:  # JAX's errors then give the place of the user's function
        run.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]
        run.__wrapped__ = types.SimpleNamespace(__name__=run.__name__, __code__=code)  # type: ignore[attr-defined]
    jitted: Callable[..., Any] = jax.jit(run, static_argnums=0)
    if made is not None:
        made[key] = jitted
    return jitted


class _Cell:
    """A cell of a closure, compared by identity: a loop may have changed it since the last name."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cell) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _closure(function: Callable[..., Any] | None) -> tuple[_Cell, ...]:
    cells = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            cells.append(_Cell(cell.cell_contents))
        except ValueError:  # it has no value yet
            cells.append(_Cell(cell))
    return tuple(cells)


def _can_be_returned(leaf: object) -> bool:
    return is_array(leaf) or isinstance(leaf, bool | int | float | complex)


def tagged(function: Callable[..., Any], tag: Tag, static_argnames: str | Sequence[str] = ()) -> Callable[..., Any]:
    """Return `function` as a tagged jit.

    Arrays anywhere in the arguments, and in `function` itself when it is a pytree or a method of
    one, become operands; every other leaf is static and must be hashable (but for numbers given to
    a call or loop, which are operands as well). `static_argnames` lists arguments that are static as
    a whole. What is no array in the result is passed through.

    Raises:
        FrontendError: when `function` is not callable, a static name does not exist, or a static
            value cannot be hashed.
    """
    if not callable(function):
        raise mistake(f"{tag.kind} needs a function, got {type(function).__name__}: {function!r}.")
    names = static_names(static_argnames, f"{tag.kind} {tag.name!r}")
    signature = _signature(function, names, tag)
    owner: Any = None
    target: Callable[..., Any] | None = function
    if isinstance(function, types.MethodType) and not jax.tree_util.all_leaves([function.__self__]):
        owner, target = function.__self__, function.__func__
    elif not jax.tree_util.all_leaves([function]):
        target = None

    # A wrapper keeps its jit, and so its cache, even where it is not shared between wrappers.
    jitted = _jit_of(target, tag)

    @functools.wraps(function, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            args, kwargs = _mark_static(signature, names, args, kwargs)
        if owner is not None:
            args = (owner, *args)
        callee = function if target is None else None
        flat, treedef = jax.tree_util.tree_flatten_with_path((callee, args, kwargs))
        arrays: list[Any] = []
        rest: list[Any] = []
        for path, leaf in flat:
            dynamic = _is_dynamic(path, leaf, tag)
            arrays += [leaf] if dynamic else []
            rest.append(ARRAY if dynamic else StaticLeaf(leaf))
        _check_hashable((*args, *kwargs.values()), rest, tag)
        statics = Statics(treedef, tuple(rest))
        run = jitted
        try:
            if tag.kind == "named_computation":  # traced once, however many layers have names of their own
                run = _jit_of(target, tag, shared=True)
                outputs = tracing.call_as(run, tag.encode(), statics, *arrays)
                if outputs is not None:
                    return without_statics(outputs[0])
                run = jitted
            return without_statics(run(statics, *arrays))
        except jax.errors.UnexpectedTracerError as error:
            raise leak(function, error) from error
        except (TypeError, IndexError) as error:  # as JAX's errors about values that are not known are
            if f"while tracing the function {run.__name__} " in str(error):
                paths = [path for (path, _), kept in zip(flat, rest, strict=True) if kept is ARRAY]
                _name_arguments(error, function if target is None else target, paths, len(args))
            raise

    return wrapper


def _name_arguments(
    error: Exception, function: Callable[..., Any], paths: Sequence[tuple[Any, ...]], given: int
) -> None:
    """Name the arguments of the user's function in an error of JAX, which numbers the arrays of the jit."""
    names = labels(function, given)

    def name(match: re.Match[str]) -> str:
        part, *path = paths[int(match[1])]
        if part.idx == 0:
            return f"self{jax.tree_util.keystr(tuple(path))}"
        key, *path = path
        return f"{key.key if part.idx == 2 else names[key.idx]}{jax.tree_util.keystr(tuple(path))}"

    error.args = tuple(re.sub(r"\barrays\[(\d+)\]", name, x) if isinstance(x, str) else x for x in error.args)


def _check_hashable(arguments: Sequence[Any], leaves: Sequence[Any], tag: Tag) -> None:
    """Raise `FrontendError` for an argument or leaf that is static and not hashable."""
    for leaf in (*arguments, *leaves):
        if isinstance(leaf, StaticLeaf) and not is_hashable(leaf):
            raise mistake(
                f"{tag.kind} {tag.name!r}: the argument leaf {leaf!r} of type {type(leaf.value).__name__} "
                + (
                    "is static (static_argnames) and cannot be hashed. Make it hashable."
                    if any(leaf is argument for argument in arguments)
                    else "is neither an array nor hashable. Pass arrays, or make it hashable."
                )
            )


def _signature(function: Callable[..., Any], names: tuple[str, ...], tag: Tag) -> inspect.Signature | None:
    if not names:
        return None
    signature = inspect.signature(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    missing = [n for n in names if n not in signature.parameters and not takes_any]
    if missing:
        raise mistake(
            f"{tag.kind} {tag.name!r}: static_argnames {missing} are not arguments of the "
            f"function, which takes {list(signature.parameters)}."
        )
    return signature


def _mark_static(
    signature: inspect.Signature, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    static = [name in names for name in positional_names(signature.parameters.values())]
    marked = tuple(StaticLeaf(a) if i < len(static) and static[i] else a for i, a in enumerate(args))
    return marked, {k: StaticLeaf(v) if k in names else v for k, v in kwargs.items()}


# Modules of Haiku and Flax Linen whose parameters are those of a transformation around a named part.  There they are
# made, read and counted by a frame or scope that is no argument of the part.  JAX would keep what it read first for
# every later part of the same function, and what it made would be lost; so this is an error.


def own_frames(what: str) -> AbstractContextManager[Any]:
    """Within, what `what` runs uses no parameters, states or random numbers of a module around it.

    Raises:
        FrontendError: at the line that uses them, with what to do.
    """
    stack = ExitStack()
    haiku, linen = sys.modules.get("haiku"), sys.modules.get("flax.linen")
    if haiku is not None and _in_haiku(haiku):
        stack.enter_context(_haiku(haiku, what))
    if linen is not None:
        modules = [module for module in linen.module._context.module_stack if module is not None]
        scopes = {id(module.scope.root) for module in modules if module.scope is not None}
        if scopes:
            stack.enter_context(linen.intercept_methods(_refuse_scopes(scopes, what)))
    return stack


def _in_haiku(haiku: Any) -> bool:
    try:
        haiku.running_init()
    except ValueError:
        return False
    return True


@contextmanager
def _haiku(haiku: Any, what: str) -> Iterator[None]:
    around = {id(x) for x in jax.tree.leaves((haiku.get_params(), haiku.get_current_state()))}

    def getter(get: Callable[[Any], Any], value: Any, context: Any) -> Any:
        if id(value) in around or haiku.running_init():  # else it is of a transformation inside
            raise _uses(f"{context.full_name!r}", what, "Haiku", _HAIKU)
        return get(value)

    keys = jax.tree.leaves(haiku.maybe_get_rng_sequence_state())
    with haiku.custom_getter(getter, state=True):
        yield
    left = jax.tree.leaves(haiku.maybe_get_rng_sequence_state())
    if len(keys) != len(left) or any(a is not b for a, b in zip(keys, left, strict=True)):
        raise _uses("random numbers", what, "Haiku", _HAIKU)


def _refuse_scopes(scopes: set[int], what: str) -> Callable[..., Any]:
    def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if module.scope is not None and id(module.scope.root) in scopes:
            raise _uses(f"{'.'.join(module.path)!r}", what, "Linen", _LINEN)
        return call(*args, **kwargs)

    return intercept


_HAIKU = (
    "Transform the part by itself, `init, apply = hk.transform(part)`, name it with "
    "mpmd_trace.named_computation(apply, name=...), and pass it its parameters. For stacked layers use "
    "mpmd_trace.name_scans on the function that is transformed (docs/flax.md)."
)
_LINEN = (
    "Name layers from outside, with mpmd_trace.linen.name_layers(model.apply, ...), and stacked ones with "
    "mpmd_trace.name_scans(model.apply, ...) (docs/flax.md)."
)


def _uses(used: str, what: str, library: str, instead: str) -> FrontendError:
    return mistake(
        f"{what} uses {used} of the {library} module around it, which is not an argument of it: what it makes would be "
        f"lost, and the next one of the same function would get the parameters of the first. {instead}"
    )
