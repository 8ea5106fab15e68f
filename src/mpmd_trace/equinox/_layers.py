"""Naming the layers of a model from outside, and splitting modules into arrays and rest."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax

from mpmd_trace.frontend import tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.statics import Statics, divided, is_hashable

M = TypeVar("M")


class NamedLayer:
    """A layer that `name_layers` has named: an instance of this class and of its own.

    Its call is a named computation; everything else (fields, methods, properties, hash, leaves) is that of the layer.
    """

    #: The name of the computation.
    mpmd_name: ClassVar[str]
    _mpmd_class: ClassVar[Any]

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep hooks of the layer's class from seeing classes that its author did not write."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (_unnamed(self), self.mpmd_name)


class NamedFunction(NamedLayer, eqx.Module):  # type: ignore[misc]
    """A callable that is no module, such as an activation function, whose call is a named computation."""

    function: Any
    mpmd_name: str = eqx.field(static=True)  # type: ignore[misc]

    @property
    def __wrapped__(self) -> Any:
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns; its arrays are operands of the named computation."""
        return tags.tagged(self.function, tags.Tag("named_computation", self.mpmd_name))(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedFunction, (self.function, self.mpmd_name)


def _apply(layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


@functools.cache
def _named_class(cls: Any, name: str) -> type[eqx.Module]:
    """Return the subclass of `cls` whose instances are called `name`.

    The name is a property of the class, so that the fields (and what depends on them: `dataclasses.replace`,
    serialization, the generated `__init__`) are those of `cls`.
    """

    @functools.wraps(cls.__call__, updated=())
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = tags.tagged(_apply, tags.Tag("named_computation", name))
        return named(_unnamed(self), *args, **kwargs)

    content = {
        "__call__": call,
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": f"{cls.__qualname__}[{name!r}]",
        "mpmd_name": name,
        "_mpmd_class": cls,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Equinox has to say about `cls`, it said when that was made
        made: Any = type(cls)  # Equinox's metaclass, or one of the user's
        result: type[eqx.Module] = made(f"{cls.__name__}[{name!r}]", (NamedLayer, cls), content)
    return result


def _named(layer: Any, name: str) -> Any:
    """Return `layer` with its call named; a layer has one name, so another one replaces it."""
    layer = _unnamed(layer)
    if not _is_module(layer):
        return NamedFunction(layer, name)
    cls: Any = type(layer)
    return _as_class(layer, _named_class(cls, name))


def _unnamed(layer: Any) -> Any:
    if isinstance(layer, NamedFunction):
        return layer.function
    return _as_class(layer, layer._mpmd_class) if isinstance(layer, NamedLayer) else layer


def _is_module(layer: Any) -> bool:
    return isinstance(layer, eqx.Module)


def _as_class(module: Any, cls: type[eqx.Module]) -> Any:
    result = object.__new__(cls)
    for attribute, value in vars(module).items():
        object.__setattr__(result, attribute, value)
    return result


def name_layers(
    model: M, where: Callable[[M], Any], *, name: str | Sequence[str] | Callable[[str], str] | None = None
) -> M:
    """Return a copy of `model` in which the layers that `where` selects are named computations.

    A named layer is still an instance of its class, with the same fields and methods, so `isinstance`,
    `eqx.tree_at`, `eqx.nn.inference_mode`, stateful layers and serialization work as before. Arrays in the
    arguments of its call are operands; everything else (`inference=True`) is static, as for `eqx.filter_jit`.

    The default names are the paths of the layers, as in `blocks_0` for `model.blocks[0]`. Naming a layer again
    replaces its name (`layer.mpmd_name`). Layers inside named layers may have names, too.

    Args:
        model: an Equinox module, or any pytree with callable modules in it.
        where: a function from a model to one layer or a pytree (list, tuple, dict) of layers.
        name: one name for all layers, a list of one name per layer, or a function from the default name.

    Raises:
        FrontendError: if `where` selects nothing; if it selects something that is not callable or not part of the
            model, or a function that the model holds in several places; or if the number of names differs from the
            number of layers.
    """
    model = _apart(model, where)
    layers = _select(model, where)
    defaults = _paths(model, layers)
    names = tags.layer_names(defaults, name, "name_layers")
    named: M = _replace(model, {id(layer): n for layer, n in zip(layers, names, strict=True)})
    return named


def _selected(model: Any, where: Callable[[Any], Any]) -> list[Any]:
    result: list[Any] = jax.tree.leaves(where(model), is_leaf=lambda x: callable(x) or x is None)
    return result


def _apart(model: M, where: Callable[[M], Any]) -> M:
    """Return `model`, with a layer for each place of a function that it holds several times and `where` selects."""
    held = Counter(id(leaf) for leaf in jax.tree.leaves(model))
    several = {i for i, n in Counter(map(id, _selected(model, where))).items() if held[i] == n > 1}
    if not several:
        return model
    apart: M = jax.tree.map(lambda x: eqx.nn.Lambda(x) if id(x) in several else x, model)
    return apart


def _select(model: Any, where: Callable[[Any], Any]) -> list[Any]:
    """Return what `where` selects, each once."""
    layers = list({id(layer): layer for layer in _selected(model, where)}.values())
    if not layers:
        raise mistake("name_layers: `where` selects no layer.")
    for layer in layers:
        if not callable(layer):
            raise mistake(
                f"name_layers: `where` selects a {type(layer).__name__} ({layer!r}), which is not a "
                "layer: a layer can be called. Select the module around it."
            )
    return layers


def _paths(model: Any, layers: Sequence[Any]) -> list[str]:
    """Return the names that the paths of the layers give: of the first one, where a layer occurs several times."""
    ids = {id(layer) for layer in layers}
    paths: dict[int, list[str]] = {}

    def visit(node: Any, prefix: tuple[str, ...]) -> None:
        # Layers that are selected may be inside of others.
        flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node and id(x) in ids)
        for path, leaf in flat:
            if id(leaf) in ids and leaf is not node:
                place = (*prefix, *map(_key, path))
                paths.setdefault(id(leaf), []).append("_".join(place))
                visit(leaf, place)

    if id(model) in ids:
        paths[id(model)] = ["model"]
    visit(model, ())
    for layer in layers:
        places = paths.get(id(layer), [])
        if not places:
            raise mistake(
                f"name_layers: the {type(layer).__name__} that `where` returns is not part of the "
                "model. Return modules as the model holds them."
            )
        if len(places) > 1 and not _is_module(layer):
            what = getattr(layer, "__name__", type(layer).__name__)
            raise mistake(
                f"name_layers: `where` selects {what}, which the model holds {len(places)} times "
                f"({', '.join(places)}), so the choice is ambiguous. Put it into the model as "
                f"eqx.nn.Lambda({what})."
            )
    return [paths[id(layer)][0] for layer in layers]


def _key(key: Any) -> str:
    for attribute in ("name", "idx", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _replace(node: Any, names: Mapping[int, str]) -> Any:
    """Return `node` with each part whose identity is in `names` named so."""
    inside = node
    if not jax.tree_util.all_leaves([node]):
        inside = jax.tree.map(
            lambda x: _replace(x, names) if id(x) in names else x,
            node,
            is_leaf=lambda x: x is not node and id(x) in names,
        )
    return _named(inside, names[id(node)]) if id(node) in names else inside


def split(tree: Any) -> tuple[list[Any], Statics]:
    """Return the arrays of `tree`, in order, and the rest as a hashable value.

    Raises:
        FrontendError: when a leaf is neither an array nor hashable.
    """
    arrays, statics = divided(tree, tags.is_array)
    for (path, _), leaf in zip(jax.tree_util.tree_leaves_with_path(tree), statics.leaves, strict=True):
        if not is_hashable(leaf):
            raise mistake(
                f"the leaf {jax.tree_util.keystr(path)} of type {type(leaf).__name__} is neither an array nor "
                "hashable, so it can be neither an input nor a static part of a program."
            )
    return arrays, statics
