"""A program as a file: the step, example arguments and configuration that the command line works on."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .config import Config
from .ir.diagnostics import Diagnostic, MpmdError
from .ir.location import Location

__all__ = ["Program", "load_program"]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What `mpmd-trace run FILE` and its siblings need to know.

    A file defines one at module level, as `program` (or any name, given as `FILE:name`), or a function of
    that name without arguments that returns one.
    """

    #: The step: a function of `args`.
    fn: Callable[..., Any]
    #: Example arguments, also those of the first step.
    args: tuple[Any, ...]
    config: Config
    #: How many steps `run` makes.
    steps: int = 1
    #: `(step, args, result) -> args` of the next step; by default every step gets the same arguments.
    advance: Callable[[int, tuple[Any, ...], Any], tuple[Any, ...]] | None = None
    #: The number in a result that the curves show.
    loss: Callable[[Any], Any] | None = None
    #: The gradients in a result, compared leaf by leaf with those of the plain program in the first step.
    gradients: Callable[[Any], Any] | None = None
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    #: Relative tolerances of the comparison with plain `jax.jit`.
    gradient_tolerance: float = 1e-5
    loss_tolerance: float = 1e-4
    name: str = "program"

    def jitted(self, engine: str = "python") -> Any:
        """The step under `mpmd_trace.jit`."""
        from .api import jit

        return jit(
            self.fn,
            self.config,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donate_argnums,
            static_argnums=self.static_argnums,
            engine=engine,
        )


def load_program(where: str, settings: Sequence[str] = ()) -> Program:
    """The program in `FILE.py`, `FILE.py:name` or `package.module:name`.

    `settings`, as `name=value`, overwrite fields of the program (steps=3).  Raises `MpmdError` that says what
    is wrong with the file, with the place in it, and no traceback of ours.
    """
    named = ":" in where and not os.path.exists(where)
    path, _, attribute = where.rpartition(":") if named else (where, "", "")
    module = _import(path)
    if attribute:
        if not hasattr(module, attribute):
            raise MpmdError(f"{path} defines no '{attribute}'")
        found = getattr(module, attribute)
    else:
        found = getattr(module, "program", None)
        if found is None:
            programs = [n for n, v in vars(module).items() if isinstance(v, Program)]
            if len(programs) != 1:
                names = f"it has {', '.join(programs)}; say {path}:NAME" if programs else "it has none"
                raise MpmdError(
                    f"{path} should define `program = mpmd_trace.Program(fn, args, config)`; {names}"
                )
            found = getattr(module, programs[0])
    if callable(found) and not isinstance(found, Program):
        found = _guarded(found, path)
    if not isinstance(found, Program):
        raise MpmdError(f"{where} is a {type(found).__name__}, not an mpmd_trace.Program")
    return _with_settings(found, settings)


def _with_settings(program: Program, settings: Sequence[str]) -> Program:
    changes: dict[str, Any] = {}
    for setting in settings:
        name, sep, text = setting.partition("=")
        current = getattr(program, name, None)
        if not sep or not isinstance(current, int | float | str) or name == "name":
            raise MpmdError(f"'{setting}' is not a setting; write steps=N, for example")
        try:
            changes[name] = type(current)(text)
        except ValueError:
            raise MpmdError(f"'{text}' is no {type(current).__name__} for '{name}'") from None
    return dataclasses.replace(program, **changes)


def _import(path: str) -> Any:
    if path.endswith(".py") or os.path.sep in path:
        if not os.path.isfile(path):
            raise MpmdError(f"there is no file {path}")
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise MpmdError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        loader = spec.loader
        _guarded(lambda: loader.exec_module(module), path)
        return module
    sys.path.insert(0, os.getcwd())
    return _guarded(lambda: importlib.import_module(path), path)


def _guarded(action: Callable[[], Any], path: str) -> Any:
    """Run the user's code; what it raises becomes one message with the place in their file."""
    try:
        return action()
    except MpmdError:
        raise
    except SyntaxError as error:
        place = Location(f'"{error.filename}":{error.lineno or 1}:{error.offset or 1}')
        raise MpmdError([Diagnostic("error", f"cannot read the program: {error.msg}", place)]) from None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == os.path.abspath(path) or f.filename == path]
        last = (own or frames)[-1]
        raise MpmdError([_raised(error, last)]) from error


def user_error(error: Exception) -> Diagnostic | None:
    """What the user's code raised while we traced or ran it, with its last place there, or None."""
    from .frontend.errors import is_users

    own = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    return _raised(error, own[-1]) if own else None


def _raised(error: Exception, frame: traceback.FrameSummary) -> Diagnostic:
    place = Location(f'"{os.path.relpath(frame.filename)}":{frame.lineno}:1')
    return Diagnostic("error", f"the program raised {type(error).__name__}: {error}", place)
