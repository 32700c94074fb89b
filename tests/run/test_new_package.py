"""`hooktrainer new`: the packages that it writes are complete, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hooktrainer.cli import main
from hooktrainer.run.new_package import NOUNS
from hooktrainer.run.registry import KINDS
from hooktrainer.testing import check_plugin, check_sink, check_task

CHECKS: dict[str, Any] = {"plugin": check_plugin, "sink": check_sink, "task": check_task}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a command adds the working directory


def test_every_kind_of_package_has_a_check() -> None:
    assert tuple(CHECKS) == NOUNS


@pytest.mark.parametrize("noun", NOUNS)
def test_the_class_passes_the_check_of_its_kind(noun: str, tmp_path: Path) -> None:
    assert main(["new", noun, "my_part2"]) == 0

    project = tomllib.loads((tmp_path / "my_part2/pyproject.toml").read_text())
    points = project["project"]["entry-points"][f"hooktrainer.{noun}s"]
    assert points == {"my_part2": "my_part2:MyPart2"}
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] == ["my_part2.py"]
    CHECKS[noun](KINDS[f"{noun}s"].resolve("my_part2/my_part2.py:MyPart2"))


@pytest.mark.parametrize("noun", NOUNS)
def test_the_yaml_of_the_readme_can_be_planned(noun: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", noun, "my_part"])
    usage = (tmp_path / "my_part/README.md").read_text().split("```yaml\n")[1].partition("```")[0]
    base = {
        "task": "sort_digits",
        "model": "decoder",
        "rollout": "inline",
        "trainer": {"total_steps": 2, "train_batch_size": 4, "ppo_mini_batch_size": 4},
        "plugins": ["metric_aggregation", "weight_sync"],
    }
    config = base | yaml.safe_load(usage.replace("use: my_part", "use: 'my_part/my_part.py:MyPart'"))
    if noun == "sink":
        config["plugins"] = [*base["plugins"], *config["plugins"]]
    Path("run.yaml").write_text(yaml.safe_dump(config))

    assert main(["plan", "run.yaml"]) == 0, capsys.readouterr().err
    assert ("my_part.compare" in capsys.readouterr().out) == (noun == "plugin")


@pytest.mark.slow
@pytest.mark.parametrize("noun", NOUNS)
def test_the_test_of_the_package_passes_without_an_installation(noun: str, tmp_path: Path) -> None:
    main(["new", noun, "my_part", "--directory", "some/where"])

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", tmp_path / "some/where/my_part"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_files_and_the_next_commands_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "plugin", "kl_watch", "--directory", "parts"])

    out, err = capsys.readouterr()
    names = ["pyproject.toml", "README.md", "kl_watch.py", "test_kl_watch.py"]
    assert out.splitlines() == [f"parts/kl_watch/{name}" for name in names]
    assert sorted(path.name for path in Path("parts/kl_watch").iterdir()) == sorted(names)
    assert "python -m pytest parts/kl_watch\n" in err
    assert "use: parts/kl_watch/kl_watch.py:KlWatch\n" in err


@pytest.mark.parametrize("found", ["a folder", "a file"])
def test_nothing_is_overwritten(found: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("kl_watch")
    if found == "a folder":
        path.mkdir()
        (path / "kl_watch.py").write_text("mine")
    else:
        path.write_text("mine")

    assert main(["new", "plugin", "kl_watch"]) == 2

    assert "kl_watch exists, and nothing is overwritten" in capsys.readouterr().err
    assert (path / "kl_watch.py" if found == "a folder" else path).read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plugn", "kl_watch"), "'plugn' is no kind of package; there are plugin, sink, task. Did you mean 'plugin'?"),
        (("tasks", "kl_watch"), "Did you mean 'task'?"),
        (
            ("plugin", "KL-Watch"),
            "'KL-Watch' cannot be the name of a module and of its entry point; expected lower-case",
        ),
        (("plugin", "KlWatch"), "Did you mean 'kl_watch'?"),
        (("plugin", "kl watch"), "Did you mean 'kl_watch'?"),
        (("plugin", "../kl_watch"), "Did you mean 'kl_watch'?"),
        (("plugin", "class"), "and no keyword of Python."),
        (("plugin", "2"), "'2' cannot be the name of a module"),
        (("plugin", ""), "'' cannot be the name of a module"),
        (("plugin", "kl_watch\n"), "cannot be the name of a module"),
        (("plugin", "kl_wätch"), "cannot be the name of a module"),
        (("plugin", "checkpoint"), "a plugin has the name 'checkpoint': hooktrainer_plugins.checkpoint:Checkpoint."),
        (("sink", "checkpoint"), None),
        (("task", "json"), "'json' is a module already, which yours would hide"),
        (("sink", "path"), "the module of a sink imports another Path"),
    ],
)
def test_kinds_and_names_are_checked(
    arguments: tuple[str, str], message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["new", *arguments])

    assert code == (0 if message is None else 2)
    assert (message or "") in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == ([] if message else [tmp_path / arguments[1]])


def test_a_folder_that_cannot_be_created_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")

    assert main(["new", "plugin", "kl_watch", "--directory", "file"]) == 2
    assert "kl_watch cannot be created: Not a directory" in capsys.readouterr().err
