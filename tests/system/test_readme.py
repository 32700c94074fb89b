"""What the README shows is what is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import attrs
import pytest

from hooktrainer import Plugin, Priority, load_config, on
from hooktrainer.bus.plan_text import describe
from hooktrainer.events import StepEnd
from hooktrainer.run.parts import build_parts
from hooktrainer.testing import FakeBus

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_its_configuration_composes(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "kl_stop.py", tmp_path)
    (tmp_path / "readme.yaml").write_text(blocks("yaml")[0])

    entries = build_parts(load_config(tmp_path / "readme.yaml")).plan.entries

    assert [entry.name for entry in entries][-2:] == ["kl_stop", "log_after_collect"]


def test_its_plugin_passes_its_test() -> None:
    names = {"attrs": attrs, "Plugin": Plugin, "Priority": Priority, "on": on, "StepEnd": StepEnd, "FakeBus": FakeBus}
    plugin, test = blocks("python")[:2]
    exec(plugin + test, names)

    names["test_it_stops_above_its_limit"]()  # type: ignore[operator]


def test_its_plan_is_a_part_of_the_quickstarts() -> None:
    shown = README.split("$ hooktrainer plan configs/quickstart.yaml\n...\n")[1].split("```")[0]

    plan = describe(build_parts(load_config(ROOT / "configs" / "quickstart.yaml")).plan)

    assert shown in plan


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(((?!http)[^)]+)\)", README))))
def test_what_it_links_to_exists(link: str) -> None:
    if not (ROOT / "LICENSE").exists():
        pytest.skip("only the tests are here, not the whole project")
    assert (ROOT / link).exists()
