"""The main module, which every worker process imports again."""

from __future__ import annotations

import importlib.util
import os
import sys
from multiprocessing import process

from hooktrainer.errors import ConfigError


def require_importable_main() -> None:
    """Raise `ConfigError` if worker processes could not import the main module, as for a script from standard input."""
    if getattr(process.current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker process is importing this script, which would start a run there too. A script must call "
            "`build_trainer` and `fit` under `if __name__ == '__main__':`"
        )
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        if name.rpartition(".")[2] != "__main__" and importlib.util.find_spec(name) is None:
            raise _refused(f"the module '{name}' of `python -m {name}` no longer exists")
    elif path == "<stdin>" or (path is not None and path.startswith(("/dev/", "/proc/"))):
        raise _refused("the script was read from standard input or a pipe, and has no file")
    elif path is not None and not os.path.exists(os.path.join(_directory(), path)):  # noqa: PTH110,PTH118 (as spawn does)
        raise _refused(f"the script {path} no longer exists")


def is_importable(module: str) -> bool:
    """Return whether a worker process has a module of this name; `python -c` and notebooks have no file to import."""
    main = sys.modules["__main__"]
    return module != "__main__" or getattr(main, "__spec__", None) is not None or hasattr(main, "__file__")


def _refused(cause: str) -> ConfigError:
    return ConfigError(
        f"worker processes import the main module again, but {cause}. Run a script that is saved as a file, or use "
        "`rollout: {use: thread}`, which starts no processes"
    )


def _directory() -> str:
    """Return the directory that `multiprocessing` resolves the path of the script in."""
    return process.ORIGINAL_DIR or os.getcwd()  # type: ignore[attr-defined] # noqa: PTH109
