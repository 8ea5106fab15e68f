"""A program as a file: reading it, and telling what is wrong with it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpmd_trace.api.program import Program
from mpmd_trace.api.targets import for_target, target_devices
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.diagnostics.source_files import is_users
from mpmd_trace.frontend.errors import place_of, problem, raise_problems
from mpmd_trace_cli.status import CallError, ProgramFailed


def copied(args: Any) -> Any:
    """Return the arguments as arrays of their own, since the step may give them away."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, args)


def load_program(where: str, settings: Sequence[str] = (), target: str | None = None) -> Program:
    """Return the program in `FILE.py`, `FILE.py:name` or `package.module:name`, for the devices of a `target`.

    `settings`, as `name=value`, overwrite fields of the program (steps=3).  Raises `MpmdError` that says what
    is wrong with the file, with the place in it, and no traceback of ours.
    """
    if target is not None:
        try:
            target_devices(target)  # is wrong or missing before the program is read
        except MpmdError as unknown:
            raise CallError(unknown.diagnostics) from unknown
        return for_target(load_program(where, settings), target)
    named = ":" in where and not os.path.exists(where)
    path, _, attribute = where.rpartition(":") if named else (where, "", "")
    program = _defined(import_code(path), path, attribute)
    name = attribute or "program"
    if callable(program) and not isinstance(program, Program):
        error = _misfit(program)
        if error is not None:
            text = f"'{name}' makes the program and is called without arguments: {error}; give them defaults"
            raise_problems([problem(text)], place_of(program))
        program = _guarded(program, path)
    if not isinstance(program, Program):
        raise CallError(
            f"'{name}' of {path} is of type {type(program).__name__}, not an mpmd_trace.Program; define "
            f"`{name} = mpmd_trace.Program(fn, args, config)`"
        )
    _check(program)
    return _with_settings(program, settings)


def _defined(module: Any, path: str, attribute: str) -> Any:
    """Return what a module defines under a name or, without one, `program` or else its only program."""
    if attribute:
        if not hasattr(module, attribute):
            raise CallError(f"{path} defines no '{attribute}'")
        return getattr(module, attribute)
    program = getattr(module, "program", None)
    if program is not None:
        return program
    programs = {n: v for n, v in vars(module).items() if isinstance(v, Program)}
    if len(programs) != 1:
        names = f"it has {', '.join(programs)}; say {path}:NAME" if programs else "it has none"
        raise CallError(f"{path} should define `program = mpmd_trace.Program(fn, args, config)`; {names}")
    return next(iter(programs.values()))


def _misfit(fn: Callable[..., Any], *args: Any) -> TypeError | None:
    """Return why a function cannot be called with these arguments."""
    try:
        inspect.signature(fn).bind(*args)
    except ValueError:
        pass  # its signature is unknown
    except TypeError as error:
        return error
    return None


def _check(program: Program) -> None:
    """Raise `MpmdError` for fields of a program that cannot be right."""
    wrong = []
    if not callable(program.fn):
        wrong.append(f"fn is the step, a function, not {_kind(program.fn)}")
    if not isinstance(program.args, tuple):
        wrong.append(f"args is the tuple of the step's arguments, not {_kind(program.args)}")
    if not isinstance(program.config, Config):
        wrong.append(f"config is made by mpmd_trace.make_config; it is not {_kind(program.config)}")
    if not isinstance(program.steps, int) or program.steps < 1:
        wrong.append(f"steps is {program.steps!r}; it is a number of steps, 1 or more")
    for name in ("gradient_tolerance", "loss_tolerance"):
        if not isinstance(getattr(program, name), int | float):
            wrong.append(f"{name} is a number, not {_kind(getattr(program, name))}")
    for name, parameters in {"advance": ("i", "args", "result"), "loss": ("result",), "gradients": ("result",)}.items():
        function = getattr(program, name)
        if function is not None and not callable(function):
            wrong.append(f"{name} is a function or None, not {_kind(function)}")
        elif function is not None and (error := _misfit(function, *parameters)) is not None:
            wrong.append(f"{name} is called as {name}({', '.join(parameters)}), and this one cannot be: {error}")
    raise_problems([problem(f"a field of the mpmd_trace.Program is wrong: {text}") for text in wrong], program.where)
    check_arguments(program, program.args, "the arguments of the mpmd_trace.Program", program.where)


def check_arguments(program: Program, args: object, what: str, where: str | None) -> tuple[Any, ...]:
    """Return the arguments of a step, if the step can be called with them; else raises `MpmdError` at `where`."""
    if not isinstance(args, tuple):
        raise_problems([problem(f"{what}: {_kind(args)}, but they are a tuple")], where)
    assert isinstance(args, tuple)
    error = _misfit(program.fn, *args)
    if error is not None:
        name = getattr(program.fn, "__name__", "fn")
        place = place_of(program.fn)
        step = f"'{name}' ({_relative(place)})" if place is not None else f"'{name}'"
        raise_problems([problem(f"{what}: they do not fit the step {step}: {error}")], where)
    return args


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _relative(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{os.path.relpath(file)}:{line}"


def _with_settings(program: Program, settings: Sequence[str]) -> Program:
    """Return the program with the fields that settings `name=value` overwrite."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, sep, text = setting.partition("=")
        current = getattr(program, name, None)
        if not sep or not isinstance(current, int | float) or isinstance(current, bool):
            known = ", ".join(f.name for f in dataclasses.fields(program) if f.type in ("int", "float"))
            raise CallError(f"--set {setting} sets nothing; write FIELD=NUMBER, where FIELD is one of {known}")
        try:
            changes[name] = type(current)(text)
        except ValueError:
            kind = "a whole number" if isinstance(current, int) else "a number"
            raise CallError(f"--set {setting}: '{text}' is not {kind}") from None
    changed = dataclasses.replace(program, **changes)
    if changed.steps < 1:
        raise CallError(f"--set steps={changed.steps}: there must be 1 step or more")
    return changed


def import_code(path: str) -> Any:
    """Return the module in `FILE.py` or `package.module`.  Raises `MpmdError` with the place in the user's file."""
    if path.endswith(".py") or os.path.sep in path:
        if os.path.isdir(path):
            raise CallError(f"{path} is a folder; name a Python file in it")
        if not os.path.isfile(path):
            raise CallError(f"there is no file {path}")
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise CallError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        loader = spec.loader
        _guarded(lambda: loader.exec_module(module), path)
        return module
    sys.path.insert(0, os.getcwd())
    spec = _guarded(lambda: _spec_of(path), path)
    if os.path.isdir(path) and (spec is None or spec.origin is None):  # not a package
        raise CallError(f"{path} is a folder; name a Python file in it")
    if spec is None:
        if os.path.isfile(path):
            raise CallError(f"{path} is not a Python file; its name does not end in .py")
        raise CallError(
            f"there is no module '{path}'; a program is FILE.py, FILE.py:name or package.module:name"
            + (f" (there is a file {path}.py)" if os.path.isfile(f"{path}.py") else "")
        )
    return _guarded(lambda: importlib.import_module(path), path)


def _spec_of(module: str) -> Any:
    """Return how to import a module, None when there is none of that name."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        if user_error(error) is not None:
            raise  # a package above it is there, and does not work
        return None  # a package above it is missing, or the name is none


def _guarded(action: Callable[[], Any], path: str) -> Any:
    """Run the user's code; what it raises becomes one message with the place in their file."""
    try:
        return action()
    except MpmdError:
        raise
    except SyntaxError as error:
        place = Location(f'"{error.filename or path}":{error.lineno or 1}:{error.offset or 1}')
        raise ProgramFailed([Diagnostic("error", f"cannot read the program: {error.msg}", place)]) from None
    except SystemExit as error:
        failure = _raised(error, _own_frame(error, path))
        message = (
            f"the program ended itself with sys.exit({error.code!r}) before it was loaded; it is imported, not run as "
            'a script, so put what parses arguments or exits below if __name__ == "__main__"'
        )
        raise ProgramFailed([dataclasses.replace(failure, message=message)]) from None
    except Exception as error:
        failure = _raised(error, _own_frame(error, path))
        if isinstance(error, ImportError) and "no known parent package" in str(error):
            parts = os.path.splitext(os.path.relpath(path))[0].split(os.sep)
            module = ".".join(parts) if len(parts) > 1 and parts[0] != os.pardir else "package.module"
            text = f"{failure.message}. A single file is not part of a package; name it as {module}:program instead"
            failure = dataclasses.replace(failure, message=text)
        raise ProgramFailed([failure]) from error


def _own_frame(error: BaseException, path: str) -> traceback.FrameSummary:
    """Return the innermost place in the user's files, which is what to look at first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users(f.filename) or os.path.abspath(f.filename) == os.path.abspath(path)]
    return (own or frames)[-1]


def user_error(error: BaseException) -> Diagnostic | None:
    """Return what the user's code raised while we traced or ran it, with its last place there, or None."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    return _raised(error, own[-1]) if own else None


_CALLED_BACK = re.compile(r'File "([^"\n]+)", line (\d+)')


def failed_while_running(error: Exception, where: str | None) -> MpmdError:
    """Return the error for what JAX raises when a step fails to run; only callbacks have frames of the user's code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    own = [frame for frame in _CALLED_BACK.findall(str(error)) if is_users(frame[0])]
    if "Traceback" in lines[0] and own:
        message, where = f"a callback of the program raised {lines[-1]}", ":".join(own[-1])
    else:
        message = f"the step does not run: {type(error).__name__}: {lines[0]}"
    return ProgramFailed([problem(message, where)])


def _raised(error: BaseException, frame: traceback.FrameSummary) -> Diagnostic:
    place = Location(f'"{os.path.relpath(frame.filename)}":{frame.lineno}:1')
    return Diagnostic("error", f"the program raised {type(error).__name__}: {error}", place)
