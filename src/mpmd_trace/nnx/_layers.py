"""Naming the layers of an NNX model from outside."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from flax import nnx

from mpmd_trace.frontend import scan_names, tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.name_checks import is_path
from mpmd_trace.nnx import _objects

__all__ = ["NamedLayer", "name_layers", "name_scans", "named_computation"]

M = TypeVar("M")
_TAG = "mpmd_trace.nnx"


class NamedLayer:
    """A layer that `name_layers` has named: an instance of this class and of its own.

    Its call is a named computation; everything else (attributes, methods, variables and their paths) is that of the
    layer.
    """

    #: The name of the computation.
    mpmd_name: ClassVar[str]
    _mpmd_class: ClassVar[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        plain = object.__new__(self._mpmd_class)
        vars(plain).update(vars(self))
        return _named, (plain, self.mpmd_name)


def named_computation(fn: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    """Name the computation of a function of NNX objects; see `mpmd_trace.named_computation`.

    The function may update the objects.

    Args:
        fn: a function, a method of an object, or a module. All objects that it uses are among its arguments.
        name: the name of the computation.

    Raises:
        FrontendError: as `mpmd_trace.named_computation`.
    """
    tags.check_name(name, "named_computation")
    if not callable(fn):
        raise mistake(f"named_computation needs a function, got {type(fn).__name__}: {fn!r}.")
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, nnx.Module):
        return functools.wraps(fn.__call__, updated=())(functools.partial(_run(_called, name), fn))
    if owner is not None and _objects.is_object(owner):
        return functools.wraps(fn, updated=())(functools.partial(_run(fn.__func__, name), owner))  # type: ignore[attr-defined]
    return functools.wraps(fn, updated=())(_run(fn, name))


@functools.cache
def _pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """One pure function for all calls, so that equal layers are traced once."""
    return _objects.changing(fn, _TAG)


def _run(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    pure = _pure(fn) if "<locals>" not in getattr(fn, "__qualname__", "<locals>") else _objects.changing(fn, _TAG)
    return _objects.lifted(tags.tagged(pure, tags.Tag("named_computation", name)), _TAG)


def _called(layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


@functools.cache
def _named_class(cls: Any, name: str) -> Any:
    """Return the subclass of `cls` whose instances are called `name`."""
    run = _run(_called, name)

    @functools.wraps(cls.__call__, updated=())
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # As an instance of its own class, so that layers which are equal but for their names are equal.
        named = type(self)
        object.__setattr__(self, "__class__", cls)
        try:
            return run(self, *args, **kwargs)
        finally:
            object.__setattr__(self, "__class__", named)

    content = {
        "__call__": call,
        "__reduce__": NamedLayer.__reduce__,
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": f"{cls.__qualname__}[{name!r}]",
        "mpmd_name": name,
        "_mpmd_class": cls,
    }
    options = {"pytree": cls._pytree__is_pytree}
    return types.new_class(f"{cls.__name__}[{name!r}]", (cls, NamedLayer), options, lambda space: space.update(content))


def _named(layer: Any, name: str) -> Any:
    """Return `layer` with its call named; a layer has one name, so another one replaces it."""
    cls: Any = type(layer)
    object.__setattr__(layer, "__class__", _named_class(getattr(cls, "_mpmd_class", cls), name))
    return layer


def name_layers(
    model: M,
    where: str | type | Sequence[str | type] | Callable[[M], Any],
    *,
    name: str | Sequence[str] | Callable[[str], str] | None = None,
) -> M:
    """Name layers of `model` in place, so that their calls are named computations; return `model`.

        name_layers(model, "blocks")                     # model.blocks[0], model.blocks[1], ...: blocks_0, blocks_1
        name_layers(model, ["embed", "blocks[*]", "head"])
        name_layers(model, Block)                        # all modules of a class
        name_layers(model, lambda m: [m.embed, *m.blocks])

    A named layer is still an instance of its class, with the same attributes and methods; the paths of variables do
    not change, so optimizers, checkpoints, `nnx.state` and `nnx.split` see no difference.  Layers update their
    variables (running averages, random streams, counts) in place as before.  Naming a layer again replaces its name.

    Args:
        model: a module.
        where: paths in Python syntax, where `*` stands for anything, and the path of a list or dict stands for the
            layers in it; classes; or a function from the model to one layer or a pytree of layers.
        name: one name for all layers, a list of one name per layer, or a function from the default name, which is
            the path with "_".

    Raises:
        FrontendError: if `where` selects nothing, or something that cannot be called or is not part of the model, or
            if the number of names differs from the number of layers.
    """
    paths = {id(module): path for path, module in reversed(list(_modules(model)))}
    layers = _select(model, where)
    for layer in layers:
        if id(layer) not in paths:
            raise mistake(
                f"name_layers: the {type(layer).__name__} that `where` returns is not part of the model. Return "
                "modules as the model holds them."
            )
    defaults = ["_".join(map(str, paths[id(layer)])) or "model" for layer in layers]
    names = tags.layer_names(defaults, name, "name_layers")
    if any(map(_objects.is_lent, layers)):
        raise mistake(
            "name_layers: the model belongs to the caller of a function under a transformation of flax.nnx (nnx.jit, "
            "nnx.grad, mpmd_trace.nnx.jit, ...), which takes back the arrays of objects but not their names. Name the "
            "layers before, where the model is made: model = name_layers(Model(rngs), ...)."
        )
    for layer, one in zip(layers, names, strict=True):
        _named(layer, one)
    return model


def _modules(model: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for path, node in nnx.iter_graph(model, graph=True):
        if isinstance(node, nnx.Module):
            yield path, node


def _select(model: Any, where: Any) -> list[Any]:
    """Return what `where` selects, each once."""
    several = where if isinstance(where, list | tuple) else [where]
    selected: list[Any] = []
    for one in several:
        if isinstance(one, str | type):
            here = [node for path, node in _modules(model) if _fits(one, path, node)]
        elif callable(one):
            here = [one(model)]
        else:
            raise mistake(f"name_layers: `where` is made of paths, classes or a function, not {one!r}.")
        if not here:
            raise mistake(f"name_layers: `where` selects no layer{_hint(model, one)}.")
        selected += here
    layers = list({id(layer): layer for one in selected for layer in _layers_in(one)}.values())
    if not layers:
        raise mistake("name_layers: `where` selects no layer.")
    return layers


def _fits(wanted: str | type, path: tuple[Any, ...], node: Any) -> bool:
    if isinstance(wanted, type):
        return isinstance(node, wanted)
    return is_path(wanted, path)


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _hint(model: Any, wanted: object) -> str:
    paths = [_dotted(path) for path, node in _modules(model) if path]
    what = wanted.__name__ if isinstance(wanted, type) else wanted
    return f": there is no {what!r} in the {type(model).__name__}, which has {', '.join(paths[:12])}"


def _layers_in(value: Any) -> Iterator[Any]:
    """Yield the layers of a list, dict or other container of them."""
    if isinstance(value, nnx.Module) and callable(value):
        yield value
        return
    children = list(nnx.iter_children(value, graph=True)) if isinstance(value, nnx.Module) else None
    if children is None and isinstance(value, list | tuple | dict):
        children = list(value.items() if isinstance(value, dict) else enumerate(value))
    if not children or (isinstance(value, nnx.Module) and not isinstance(value, nnx.List | nnx.Dict)):
        raise mistake(
            f"name_layers: `where` selects a {type(value).__name__}, which is not a layer: a layer is a module that "
            "can be called. Select the module around it."
        )
    for _, child in children:
        yield from _layers_in(child)


def name_scans(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Name the `nnx.scan` over layers in a function of NNX objects or a module; see `mpmd_trace.name_scans`.

    Args:
        fn: a module, a method of one, or a function whose objects are among its arguments.
        name: the name of the layers.

    Raises:
        FrontendError: as `mpmd_trace.name_scans`.
    """
    if not callable(fn):
        raise mistake(f"name_scans takes a function, not {fn!r} of type {type(fn).__name__}.")
    owner = fn if isinstance(fn, nnx.Module) else getattr(fn, "__self__", None)
    is_method = isinstance(owner, nnx.Module)
    target = _called if isinstance(fn, nnx.Module) else fn.__func__ if is_method else fn  # type: ignore[attr-defined]
    run = _objects.lifted(scan_names.name_scans(_objects.changing(target, _TAG), name), _TAG)
    return functools.partial(run, owner) if is_method else functools.wraps(fn, updated=())(run)
