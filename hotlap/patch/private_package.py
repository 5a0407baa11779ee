"""Our package inside the user's process, under a name that no program uses.

The program may have a module called `hotlap`, or put one on its path later, so `import hotlap` in its code resolves as
it would without us. If that finds hotlap itself, the program gets the very package that entered. Our own modules still
say `from hotlap.records import …`: Python uses the importing module's `__import__`, and ours reads hotlap as NAME.

The standard library is shared with the program, unless the program has a module of the same name. Then the module that
we imported is ours alone, and the program's `import statistics` finds its own.

The program may also replace the clocks of `time`, so ours are those that it had at the start.

When Python, warnings and logging look for the line to attribute something to, they skip files that look like parts of
the import system. Code of ours that runs between two frames of the program is loaded with such a file name.

The boot file executes this file by its path, so it may import nothing that Python has not loaded already.
"""

from __future__ import annotations

import _imp
import _thread
import builtins
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

NAME, OURS = "_hotlap_within", "hotlap"
BORROWED = ("psutil", "pynvml")  # third-party modules, removed from sys.modules once we have them
UNSEEN_ROOMS = ("patch", "loading", "runtime", "catalog", "control", "observe", "trial")
SEEN = ("/observe/span.py", "/trial/metric.py", "/control/enable.py")  # called by the program itself
UNSEEN = " (importlib._bootstrap)"  # the end of such a file name; see is_internal_frame in CPython's warnings
_external: Any = sys.modules["_frozen_importlib_external"]
_bootstrap: Any = sys.modules["_frozen_importlib"]
_real_import = builtins.__import__


def enter(package: str) -> None:
    """Begin our visit with the package in this folder; on failure, leave nothing of it behind."""
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        _import(f"{OURS}.patch.entry", fromlist=("enter",)).enter()
    except BaseException:
        sys.meta_path.remove(finder)
        _take_out(NAME)
        raise


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 the name that Python uses
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    top = name.partition(".")[0]
    if level == 0 and top == OURS:
        name = NAME + name[len(OURS) :]
    elif level == 0 and top not in _shared and (top in sys.stdlib_module_names or top in BORROWED):
        if name not in _private:
            _load(name, top)
        if name in _private:
            return _private[name if fromlist else top]
        _shared.add(top)
    return _real_import(name, globals, locals, fromlist or (), level)


def _copied(module: ModuleType) -> ModuleType:
    copy = type(sys)(module.__name__)
    vars(copy).update(vars(module))
    return copy


# Our own copies of modules. The clocks are those of now: a program may replace them, to stop or to count.
_private: dict[str, ModuleType] = {"time": _copied(time)}
_shared: set[str] = set()  # names of modules that we share with the program


def _load(name: str, top: str) -> None:
    """Load a private copy of the module, unless the program may share the one there is."""
    there = sys.modules.get(top)
    if there is None or not (top in BORROWED or _is_of_python(there)):
        with _OfPython(top):
            _real_import(name, fromlist=("__name__",))


_BUILTINS = {**vars(builtins), "__import__": _import}


_codes: list[CodeType] = []  # kept alive because torch's profiler reads names from code objects that it does not hold


class _Loader(_external.SourceFileLoader):  # type: ignore[misc]
    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = super().get_code(fullname)
        if fullname.split(".")[1:2] and fullname.split(".")[1] in UNSEEN_ROOMS and not self.path.endswith(SEEN):
            _imp._fix_co_filename(code, self.path + UNSEEN)  # type: ignore[attr-defined]
        _codes.append(code)
        return code

    def set_data(self, path: str, data: bytes, *, _mode: int = 0o666) -> None:
        """Save bytecode whole or not at all.

        On a full disk, or where the program limits the size of files, Python would save a part of it, and neither this
        program nor any later one could import the module. What `os` has may lead to the scratch folder of a trial, so
        this is done as Python itself writes the draft.
        """
        system = _external._os
        draft = f"{path}.{os.getpid()}"
        super().set_data(draft, data, _mode=_mode)
        try:
            if system.stat(draft).st_size == len(data):
                system.replace(draft, path)
            else:
                system.unlink(draft)
        except OSError:
            return  # it could not be written

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _BUILTINS
        super().exec_module(module)


class _Finder:
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top == NAME:
            own: ModuleSpec | None = self._own(name, path)
            return own
        if top != OURS:
            return None
        if name == OURS:
            return self._first(_elsewhere(self, name, path, target))
        return self._alias(name) if sys.modules.get(OURS) is sys.modules[NAME] else None

    def _own(self, name: str, path: Sequence[str] | None) -> Any:
        if name == NAME:
            file = os.path.join(self._package, "__init__.py")  # noqa: PTH118 pathlib is not loaded yet
            loader, places = _Loader(name, file), [self._package]
            return _external.spec_from_file_location(name, file, loader=loader, submodule_search_locations=places)
        return _external.FileFinder((path or [""])[0], (_Loader, [".py"])).find_spec(name)

    def _first(self, found: ModuleSpec | None) -> ModuleSpec | None:
        """Return the program's own `hotlap` as found, or this package in place of another copy of it."""
        places = found.submodule_search_locations if found is not None else None
        boot = [os.path.join(place, "patch", "boot", "sitecustomize.py") for place in places or ()]  # noqa: PTH118
        return self._alias(OURS) if any(map(os.path.exists, boot)) else found

    def _alias(self, name: str) -> ModuleSpec | None:
        own = NAME + name[len(OURS) :]
        parent = sys.modules.get(own.rpartition(".")[0])
        real = self._own(own, getattr(parent, "__path__", None))
        if real is None:
            return None
        spec: ModuleSpec = _bootstrap.ModuleSpec(name, _Alias(real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec


class _Alias:
    """Provides a module of ours under the name that the program knows."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, _: ModuleSpec) -> ModuleType:
        name = self._real.name
        module: ModuleType = _real_import(name, fromlist=("__name__",))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

    def get_code(self, _: str) -> CodeType:
        """Return the code to run for `python -m hotlap`."""
        loader: Any = self._real.loader
        code: CodeType = loader.get_code(self._real.name)
        return code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real.loader, name)


def _elsewhere(finder: Any, name: str, path: Any, target: Any) -> Any:
    """Return the spec that the other finders find."""
    for candidate in list(sys.meta_path):
        find = getattr(candidate, "find_spec", None)
        found = find(name, path, target) if candidate is not finder and find is not None else None
        if found is not None:
            return found
    return None


class _OfPython:
    """Imports a module of the standard library, not one of the program with the same name."""

    def __init__(self, top: str) -> None:
        self._thread, self._theirs = _thread.get_ident(), _take_out(top)
        self._before = set(sys.modules)

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if path is not None or name not in sys.stdlib_module_names or _thread.get_ident() != self._thread:
            return None
        own = _bootstrap.BuiltinImporter.find_spec(name) or _bootstrap.FrozenImporter.find_spec(name)
        return own or _external.PathFinder.find_spec(name, _of_python())

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        new = {name.partition(".")[0] for name in set(sys.modules) - self._before}
        alone = {name.partition(".")[0] for name in self._theirs} | new & set(BORROWED)
        for top in (*alone, *_shadowed((new & sys.stdlib_module_names) - alone)):
            _private.update(_take_out(top))
        sys.modules.update(self._theirs)


def _take_out(top: str) -> dict[str, ModuleType]:
    """Remove the modules of this name from sys.modules and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == top}


def _is_of_python(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or (file.startswith(os.path.dirname(os.__file__)) and "-packages" not in file)  # noqa: PTH120


def _of_python() -> list[str]:
    """Return the folders of the standard library, as they appear on the path."""
    home = os.path.dirname(os.__file__)  # noqa: PTH120
    return [home, *(place for place in sys.path if place.startswith(home) and place.endswith("lib-dynload"))]


def _shadowed(names: Iterable[str]) -> list[str]:
    """Return the names that the program would find in its own folders."""
    home = os.path.dirname(os.__file__)  # noqa: PTH120
    path = sys.path[: sys.path.index(home)] if home in sys.path else sys.path
    places = [*_folder_of_the_program(), *path]
    found = ((name, _external.PathFinder.find_spec(name, places)) for name in names)
    return [name for name, spec in found if spec is not None and spec.loader is not None]


def _folder_of_the_program() -> list[str]:
    """Return what Python will put at the front of the path when it starts the program."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-" or not word.startswith("-"):
            script = os.path.realpath(word)
            return [script if os.path.isdir(script) else os.path.dirname(script)]  # noqa: PTH112, PTH120
        if word.startswith("--"):
            next(words, None)  # only --check-hash-based-pycs takes a value
            continue
        letters = word[1:]
        ending = next((place for place, letter in enumerate(letters) if letter in "cmWX"), None)
        if ending is not None and letters[ending] in "cm":
            return [""]
        if ending == len(letters) - 1:
            next(words, None)
    return [""]
