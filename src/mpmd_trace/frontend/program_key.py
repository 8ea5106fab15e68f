"""A key of a traced program: equal keys mean that the same modules would be made of it, also in another process.

What a key cannot be sure of (functions of the user's, objects without a value) has none.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from mpmd_trace.frontend import marker_primitives
from mpmd_trace.frontend.fingerprint import Written
from mpmd_trace.frontend.jaxpr_queries import is_large
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation


class Unknown(Exception):
    """There is something in the program that no key can tell from something else."""


#: What is computed by code that may change while the jaxpr stays what it is.
_FOREIGN = ("ffi", "callback", "custom_call")


def key_of(closed: Closed, *more: Any) -> str:
    """Return the key of a jaxpr and of other values.  Raises `Unknown`."""
    keys = _Keys()
    return keys.digest("program", keys.jaxpr(closed), *(keys.value(one) for one in more))


class _Keys(Written):
    """Keys of jaxprs, each computed once; large constants count by their type and identity, not by their values."""

    def __init__(self) -> None:
        self._memo: dict[Closed, str] = {}
        self._large: dict[int, tuple[Any, int]] = {}
        self._types: dict[Any, str] = {}

    @staticmethod
    def digest(*parts: Any) -> str:
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def jaxpr(self, closed: Closed) -> str:
        if closed not in self._memo:
            self._memo[closed] = self.digest(*self.lines(closed))
        return self._memo[closed]

    def type(self, aval: Any) -> str:
        if aval not in self._types:  # few types, and JAX takes its time to write one
            self._types[aval] = f"{aval}{'*' if getattr(aval, 'weak_type', False) else ''}"
        return self._types[aval]

    def equation(self, eqn: Equation) -> Any:
        primitive = eqn.primitive
        if id(primitive) not in _known_primitives() or any(word in primitive.name for word in _FOREIGN):
            raise Unknown(f"the primitive {primitive.name}")
        return primitive.name, str(eqn.source_info.name_stack), tracing.settings_of(eqn)

    def value(self, value: Any) -> Any:
        """Return what stands for a value: equal in all processes for equal ones."""
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes):
            return kind.__name__, repr(value)
        if isinstance(value, enum.Enum):
            return kind.__qualname__, value.name
        if tracing.is_jaxpr(value):
            return "jaxpr", self.jaxpr(value)
        if isinstance(value, np.dtype):
            return "dtype", str(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value)
        if isinstance(value, Mapping | MappingProxyType):
            return "mapping", [(self.value(k), self.value(v)) for k, v in value.items()]
        if isinstance(value, tuple | list):
            return kind.__qualname__, [self.value(v) for v in value]
        if isinstance(value, set | frozenset):
            return "set", sorted(repr(self.value(v)) for v in value)
        if isinstance(value, Mesh):
            devices = [(d.id, d.platform, d.device_kind) for d in value.devices.flat if d]
            return "mesh", list(value.shape.items()), str(value.axis_types), devices
        if isinstance(value, AbstractMesh):
            return "abstract mesh", list(value.shape.items()), str(value.axis_types)
        if isinstance(value, NamedSharding):
            return "sharding", self.value(value.mesh), str(value.spec), str(value.memory_kind)
        return self._object(value)

    def _array(self, value: Any) -> Any:
        if isinstance(value, jax.core.Tracer):
            raise Unknown("a tracer")
        described = (str(value.dtype), tuple(value.shape), bool(getattr(value, "weak_type", False)))
        if is_large(value):
            return "large", described, self._large.setdefault(id(value), (value, len(self._large)))[1]
        if tracing.is_key(value):
            value = jax.random.key_data(value)
        return "array", described, np.asarray(value).tobytes()

    def _object(self, value: Any) -> Any:
        kind = type(value)
        module = str(kind.__module__).partition(".")[0]
        if module not in ("jax", "jaxlib", "mpmd_trace", "numpy"):
            raise Unknown(f"a {kind.__module__}.{kind.__qualname__}")
        if dataclasses.is_dataclass(value):
            return kind.__qualname__, [(f.name, self.value(getattr(value, f.name))) for f in dataclasses.fields(value)]
        text = repr(value)
        if callable(value) or " at 0x" in text or "..." in text:
            raise Unknown(f"a {kind.__module__}.{kind.__qualname__}")
        return kind.__qualname__, text


def _known_primitives() -> frozenset[int]:
    """Return the primitives of JAX and of this package (by id): their lowering changes with the versions alone."""
    return _primitives_in(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _primitives_in(_modules: int) -> frozenset[int]:
    result = set(map(id, (*marker_primitives.MARKERS, marker_primitives.transposes_p)))
    for name, module in list(sys.modules.items()):
        if name.startswith("jax."):
            result.update(id(v) for v in vars(module).values() if isinstance(v, tracing.Primitive))
    return frozenset(result)


@functools.cache
def sources() -> str:
    """Return a key of the files of this package, for what one version of it has made is not that of another."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    texts = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for file in sorted(f for f in files if f.endswith(".py")):
            stat = os.stat(os.path.join(path, file))
            texts.append((os.path.relpath(os.path.join(path, file), folder), stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(texts).encode()).hexdigest()
