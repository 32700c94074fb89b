"""Errors that the class or the object of a plugin raises are faults with its address and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import hostile_plugins
from helpers.config_yaml import BASE, faults, load, written
from helpers.hostile_plugins import CLASS_ATTRIBUTES, OBJECT_ATTRIBUTES
from hooktrainer.cli import main

ERRORS = {
    **{f"Class_{name.strip('_')}": f"RuntimeError: no {name} of the class" for name in CLASS_ATTRIBUTES},
    **{f"Object_{name}": f"RuntimeError: no {name} of the object" for name in OBJECT_ATTRIBUTES},
    "Calls": "RuntimeError: no call",
    "Sets": "RuntimeError: no setting of sinks",
    "Leaves": "SystemExit: 3",
}


def plugins(name: str, options: str = "") -> str:
    use = f"{hostile_plugins.__name__}:{name}"
    return BASE + f"plugins: [metric_aggregation, weight_sync, {{use: '{use}'{options}}}]\n"


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_an_error_of_a_class_or_object_is_a_fault_of_the_plugin(tmp_path: Path, name: str, enabled: str) -> None:
    options = ", sinks: [jsonl]" if name == "Sets" else ""
    on = "true" if name == "Object_check" else enabled  # a disabled plugin has no check
    (message,) = faults(tmp_path, plugins(name, f"{options}, enabled: {on}"))
    assert message.startswith(f"plugins[2]: {ERRORS[name]}")
    assert re.search(r" \(\S+hostile_plugins\.py, line \d+\)$", message)


@pytest.mark.parametrize("name", ["Class_mro", "Class_attrs_attrs"])
def test_an_error_of_a_class_hides_no_other_fault(tmp_path: Path, name: str) -> None:
    found = faults(tmp_path, plugins(name, ", rules: mine.py:Rule"), "optim.lrr=1")
    assert [message.partition(":")[0] for message in found] == ["optim.lrr", "plugins[2]"]


def test_a_limit_may_use_a_port(tmp_path: Path) -> None:
    assert load(tmp_path, plugins("Patient"))


def test_a_limit_that_is_no_number_is_a_fault_of_the_plugin(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, plugins("Waits"))
    assert message.startswith("plugins[2]: its patience_s: expected a number of seconds above 0")


def test_checks_of_a_class_that_raise_do_not_matter(tmp_path: Path) -> None:
    text = plugins("Truth").replace("[metric", f"[{{use: '{hostile_plugins.__name__}:Truth', name: other}}, metric")
    assert [entry.name for entry in load(tmp_path, text).plugins][::3] == ["other", "truth"]


def test_an_error_of_the_state_of_a_plugin_names_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, plugins("Saves").replace("weight_sync,", "weight_sync, checkpoint,"))
    assert main(["fit", str(path)]) == 1
    err = capsys.readouterr().err
    assert "RuntimeError: no state" in err
    assert "raised by state_dict of the plugin 'saves'" in err


@pytest.mark.parametrize("name", ["Class_mro", "Class_name", "Class_attrs_attrs"])
def test_a_description_of_a_class_that_raises_is_an_error_with_the_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", f"{hostile_plugins.__name__}:{name}"]) == 2
    err = capsys.readouterr().err
    assert ERRORS[name] in err
    assert re.search(r"hostile_plugins\.py, line \d+\)", err)
    assert "Traceback" not in err
