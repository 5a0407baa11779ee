# Runs first in every Python that the command starts, whatever its version: keep it small and its syntax old.
# It takes itself off the path, enters, and then lets another sitecustomize run as it would have.
import os
import sys


def _leave_path():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    return here


def _enter(here):
    if sys.version_info < (3, 10) or os.environ.get("HOTLAP") == "off" or not os.environ.get("HOTLAP_SESSION"):
        return
    # Nothing is imported under a name that a module of the program may have: see private_package.py.
    package = os.path.dirname(os.path.dirname(here))
    file = os.path.join(package, "patch", "private_package.py")
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader("_hotlap_private_package", file)
    private = type(sys)("_hotlap_private_package")
    private.__file__ = file
    exec(loader.get_code("_hotlap_private_package"), vars(private))
    private.enter(package)


def _boot():
    here = _leave_path()
    try:
        _enter(here)
    except Exception as error:
        sys.stderr.write("hotlap: cannot enter %s (%s); it runs without hotlap\n" % (sys.executable, error))
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401 another one, or the ImportError that site expects if there is none


_boot()
