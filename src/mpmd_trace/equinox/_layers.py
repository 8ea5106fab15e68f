"""Naming the layers of a model from outside, and splitting modules into arrays and rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax

from mpmd_trace.frontend import tags
from mpmd_trace.frontend.errors import mistake

M = TypeVar("M")


def _apply(layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


class NamedLayer(eqx.Module):  # type: ignore[misc]
    """A layer whose call is a named computation. Its other attributes are the layer's own."""

    layer: Any
    name: str = eqx.field(static=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer returns; its parameters are operands of the named computation."""
        named = tags.tagged(_apply, tags.Tag("named_computation", self.name))
        return named(self.layer, *args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute == "layer":
            raise AttributeError(attribute)
        return getattr(self.layer, attribute)


def name_layers(
    model: M,
    where: Callable[[M], Any],
    *,
    name: str | Sequence[str] | Callable[[str], str] | None = None,
) -> M:
    """A copy of `model` in which the layers that `where` selects are named computations.

    The default names are the paths of the layers, as in `blocks_0` for `model.blocks[0]`.

    Args:
        model: an Equinox module, or any pytree with callable modules in it.
        where: gives, for a model, one layer or a pytree (list, tuple, dict) of layers.
        name: a name for all of them, one per layer, or a function from the default name.

    Raises:
        FrontendError: when `where` selects nothing, something that is not callable or not part of
            the model, or when the number of names differs from the number of layers.
    """
    paths = _paths(model, where)
    defaults = list(paths)
    if name is None:
        names = defaults
    elif isinstance(name, str):
        names = [name] * len(defaults)
    elif callable(name):
        names = [name(default) for default in defaults]
    else:
        names = list(name)
    if len(names) != len(defaults):
        raise mistake(
            f"name_layers got {len(names)} names for {len(defaults)} layers ({', '.join(defaults)})."
        )
    for one in names:
        tags.check_name(one, "name_layers")
    layers = list(paths.values())
    replaced = [NamedLayer(layer, n) for layer, n in zip(layers, names, strict=True)]
    return _replace(model, layers, replaced)


def _select(model: Any, where: Callable[[Any], Any]) -> list[Any]:
    selected = where(model)
    return list(jax.tree.leaves(selected, is_leaf=lambda x: callable(x) or x is None))


def _paths(model: Any, where: Callable[[Any], Any]) -> dict[str, Any]:
    """The selected layers by the names that their paths give."""
    layers = _select(model, where)
    if not layers:
        raise mistake("name_layers: `where` selects no layer.")
    for layer in layers:
        if not callable(layer):
            raise mistake(
                f"name_layers: `where` selects a {type(layer).__name__} ({layer!r}), which is not a "
                "layer: a layer can be called. Select the module around it."
            )
    flat, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: _is_one_of(x, layers))
    found: dict[int, str] = {}
    for path, leaf in flat:
        if _is_one_of(leaf, layers):
            found.setdefault(id(leaf), "_".join(_key(k) for k in path) or "model")
    for layer in layers:
        if id(layer) not in found:
            raise mistake(
                f"name_layers: the {type(layer).__name__} that `where` returns is not part of the "
                "model. Return modules as the model holds them."
            )
    return {found[id(layer)]: layer for layer in layers}


def _is_one_of(x: Any, layers: Sequence[Any]) -> bool:
    return any(x is layer for layer in layers)


def _key(key: Any) -> str:
    for attribute in ("name", "idx", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _replace(model: M, layers: Sequence[Any], replaced: Sequence[Any]) -> M:
    by_identity = {id(a): b for a, b in zip(layers, replaced, strict=True)}
    result: M = jax.tree.map(
        lambda x: by_identity.get(id(x), x), model, is_leaf=lambda x: _is_one_of(x, layers)
    )
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Statics:
    """What of a pytree is not an array: equal and hashable by value."""

    treedef: Any
    leaves: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statics):
            return NotImplemented
        return self.treedef == other.treedef and bool(self.leaves == other.leaves)

    def __hash__(self) -> int:
        return hash((self.treedef, self.leaves))


def split(tree: Any) -> tuple[list[Any], Statics]:
    """The arrays of `tree`, in order, and the rest as a hashable value.

    Raises:
        FrontendError: when a leaf is neither an array nor hashable.
    """
    flat, treedef = jax.tree_util.tree_flatten_with_path(tree)
    arrays = [leaf for _, leaf in flat if tags.is_array(leaf)]
    rest = tuple(_ARRAY if tags.is_array(leaf) else leaf for _, leaf in flat)
    for (path, _), leaf in zip(flat, rest, strict=True):
        try:
            hash(leaf)
        except TypeError as error:
            raise mistake(
                f"the leaf {jax.tree_util.keystr(path)} of type {type(leaf).__name__} is neither an "
                "array nor hashable, so it can be neither an input nor a static part of a program."
            ) from error
    return arrays, Statics(treedef, rest)


def join(arrays: Sequence[Any], statics: Statics) -> Any:
    """The pytree that `split` took apart, with `arrays` in place of its arrays."""
    fill = iter(arrays)
    leaves = [next(fill) if leaf is _ARRAY else leaf for leaf in statics.leaves]
    return jax.tree.unflatten(statics.treedef, leaves)


class _ArrayPlace:
    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _ArrayPlace()
