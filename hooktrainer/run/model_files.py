"""Check the files of a model before a run."""

from __future__ import annotations

from collections.abc import Sequence

from hooktrainer.config.faults import Faults
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.ports import SupportsFileCheck


def file_faults(model: object) -> Sequence[Fault]:
    """Return the faults of the files that the options of a model name."""
    faults = Faults()
    try:
        if isinstance(model, SupportsFileCheck):
            model.check_files()
    except ConfigError as error:
        error.place("model")
        faults.absorb(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any error of user code)
        faults.at("model").absorb(error)
    return faults.found
