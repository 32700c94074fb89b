"""Public names, and the modules that importing them imports."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

import hooktrainer
from hooktrainer import errors


@pytest.mark.parametrize(
    "module",
    ["hooktrainer", "hooktrainer.config", "hooktrainer.run.report", "hooktrainer.simulation", "hooktrainer.testing"],
)
def test_all_is_sorted_complete_and_importable(module: str) -> None:
    found = importlib.import_module(module)

    assert list(found.__all__) == sorted(found.__all__)
    for name in found.__all__:
        assert hasattr(found, name) or importlib.import_module(f"{module}.{name}")


def test_drawn_tree_of_errors_matches_the_classes() -> None:
    made = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.HookTrainerError)
    }

    assert set(re.findall(r"\w+Error", str(errors.__doc__))) == made


def test_dir_shows_the_public_names() -> None:
    assert dir(hooktrainer) == hooktrainer.__all__
    with pytest.raises(AttributeError, match="no attribute 'Tainer'"):
        hooktrainer.Tainer  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "import hooktrainer",
        "from hooktrainer import Bus, Plugin, Priority, Trainer, build_trainer, load_config, on, port, state",
        "import hooktrainer.events, hooktrainer.metrics, hooktrainer.ports, hooktrainer.bus, hooktrainer.config",
        "import hooktrainer.simulation, hooktrainer.testing.contract, hooktrainer.run.composition",
        "import hooktrainer.run.report.page, hooktrainer.run.report.comparison, hooktrainer.run.report.studies",
        "import hooktrainer.sinks.console, hooktrainer.sinks.jsonl",
        "import hooktrainer_plugins.log_after_collect, hooktrainer_plugins.metric_aggregation",
        "import hooktrainer_plugins.staleness, hooktrainer_plugins.validation, hooktrainer_plugins.weight_sync",
    ],
)
def test_importing_public_modules_needs_no_torch(statement: str) -> None:
    subprocess.run([sys.executable, "-c", f"{statement}\nimport sys; assert 'torch' not in sys.modules"], check=True)
