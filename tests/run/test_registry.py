import pickle
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import DistributionFinder, PathDistribution
from pathlib import Path
from typing import ClassVar

import attrs
import pytest
import yaml

from hooktrainer import Plugin
from hooktrainer._util.registry import Kind, registered_in
from hooktrainer.errors import ConfigError
from hooktrainer.run import registry
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping, load_config
from hooktrainer.run.registry import KINDS

RUN = """
task: sort_digits
model: decoder
rollout: inline
trainer: {total_steps: 1, train_batch_size: 8, ppo_mini_batch_size: 8}
"""
PLUGIN = """
from __future__ import annotations
import attrs
from hooktrainer import Plugin

@attrs.define(kw_only=True)
class Mine(Plugin):
    every: int = 3

@attrs.define(kw_only=True)
class Other(Mine):
    pass

class Bare(Plugin):
    every: int = 3

class Forgotten(Mine):
    size: int = 3

@attrs.define
class NoPlugin:
    pass

number = 3
"""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Return a function that writes a module; remove imported modules afterwards."""
    before = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refusal(use: str, kind: str = "plugins") -> str:
    with pytest.raises(ConfigError) as caught:
        KINDS[kind].resolve(use)
    return str(caught.value)


def test_every_registered_name_resolves_to_its_target() -> None:
    for kind in KINDS:
        assert KINDS[kind]
        for name, registered in KINDS[kind].items():
            assert KINDS[kind].resolve(name).__qualname__ == registered.target.rpartition(":")[2]


def test_registered_names_are_sorted_and_have_their_distribution() -> None:
    assert list(KINDS["plugins"]) == sorted(KINDS["plugins"])
    assert KINDS["plugins"]["weight_sync"].target == "hooktrainer_plugins.weight_sync:WeightSync"
    assert KINDS["plugins"]["weight_sync"].distribution == "hooktrainer"


def test_unknown_name_is_refused_with_the_registered_names() -> None:
    message = refusal("stalenes")
    assert message.startswith("no plugin has the name 'stalenes'; there are ")
    assert message.endswith(" Did you mean 'staleness'?")
    assert all(name in message for name in KINDS["plugins"])
    assert refusal("sort_digit", "tasks").startswith("no task has the name 'sort_digit'")


def test_plugin_is_resolved_by_module_and_class() -> None:
    by_module = KINDS["plugins"].resolve("hooktrainer_plugins.validation:Validation")
    assert by_module is KINDS["plugins"].resolve("validation")


def test_missing_module_is_distinguished_from_a_failing_one(
    write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write("broken_module.py", "import attrs\nimport not_installed_anywhere\n").parent
    monkeypatch.syspath_prepend(folder)
    there = "there is no module 'nowhere'; a file is written with its extension, as in my_file.py:Name"
    assert refusal("nowhere.deep:Mine") == there
    message = refusal("broken_module:Mine")
    assert message.startswith("importing broken_module failed: ModuleNotFoundError: No module named 'not_installed_any")
    assert message.endswith("broken_module.py, line 2)")
    write("raising_module.py", "1 / 0\n")
    assert refusal("raising_module:Mine").startswith("importing raising_module failed: ZeroDivisionError: ")


def test_error_of_a_module_is_the_cause_of_the_config_error(write: Callable[[str, str], Path]) -> None:
    path = write("raises.py", "import attrs\n\n\ndef f():\n    raise KeyError('k')\n\n\nf()\n")
    with pytest.raises(ConfigError, match=r"raises\.py failed: KeyError: 'k' \(.*raises\.py, line 5\)$") as caught:
        KINDS["plugins"].resolve(f"{path}:Mine")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ConfigError, match=r"^plugins\[1\]: importing ") as caught:
        config_from_mapping(yaml.safe_load(RUN) | {"plugins": ["weight_sync", f"{path}:Mine"]})
    assert isinstance(caught.value.__cause__, KeyError)
    assert not [name for name in sys.modules if name.startswith("hooktrainer_file_raises")]


def test_a_syntax_error_in_a_file_is_shown_with_its_line(write: Callable[[str, str], Path]) -> None:
    path = write("wrong.py", "import attrs\nclass Mine(\n")
    assert "SyntaxError" in refusal(f"{path}:Mine")
    assert refusal(f"{path}:Mine").endswith("wrong.py, line 2)")


def test_a_file_is_executed_once_and_its_classes_can_be_pickled(write: Callable[[str, str], Path]) -> None:
    path = write("mine.py", PLUGIN)
    mine, other = KINDS["plugins"].resolve(f"{path}:Mine"), KINDS["plugins"].resolve(f"{path}:Other")
    assert issubclass(other, mine)
    assert KINDS["plugins"].resolve(f"{path.parent / 'x' / '..' / 'mine.py'}:Mine") is mine
    assert pickle.loads(pickle.dumps(mine(every=5))) == mine(every=5)


def test_files_with_one_name_in_two_folders_are_two_modules(write: Callable[[str, str], Path]) -> None:
    first, second = write("a/mine.py", PLUGIN), write("b/mine.py", PLUGIN)
    assert KINDS["plugins"].resolve(f"{first}:Mine") is not KINDS["plugins"].resolve(f"{second}:Mine")


def test_file_relative_to_the_yaml_is_found_from_any_directory(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a/mine.py", PLUGIN)
    write("b/mine.py", PLUGIN)
    first = write("a/run.yaml", RUN + "plugins: [{use: mine.py:Mine, every: 4}]\n")
    second = write("b/more.yaml", "plugins: ['mine.py:Mine']\n")
    monkeypatch.chdir(tmp_path)
    for paths, folder, every in (((first,), "a", 4), ((Path("a/run.yaml"), second), "b", 3)):
        config = load_config(*paths)
        assert config.plugins[0].use == f"{tmp_path / folder / 'mine.py'}:Mine"
        (entry,) = composition_of(config).plan.plugins
        assert (entry.name, entry.plugin.every) == ("mine", every)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mien", "mine.py has no class 'Mien'. Did you mean 'Mine'?"),
        ("number", "mine.py has no class 'number', but an object of type int."),
        ("NoPlugin", "is not a plugin: it must be a subclass of hooktrainer.Plugin"),
        ("Bare", "is not an attrs class, so it has no options: write @attrs.define above it"),
        ("Forgotten", "is not an attrs class, so it has no options: write @attrs.define above it"),
    ],
)
def test_class_that_is_not_a_plugin_is_refused_with_a_fix(
    write: Callable[[str, str], Path], name: str, message: str
) -> None:
    assert refusal(f"{write('mine.py', PLUGIN)}:{name}").endswith(message)


def test_missing_file_is_refused_with_a_suggestion(write: Callable[[str, str], Path]) -> None:
    path = write("mine.py", PLUGIN)
    assert (
        refusal(f"{path.parent / 'mime.py'}:Mine")
        == f"there is no file {path.parent / 'mime.py'}. Did you mean 'mine.py'?"
    )


def test_file_without_a_class_name_is_refused_with_an_example() -> None:
    assert refusal("early_row.py") == (
        "'early_row.py' is a file; append the name of the class in it, as in early_row.py:MyClass"
    )


def test_unannotated_attribute_as_option_is_a_fault_that_shows_the_annotation() -> None:
    plugins = [{"use": f"{__name__}:Untyped", "limit": 5}]
    with pytest.raises(ConfigError, match=r"limit: int = 3") as caught:
        config_from_mapping(yaml.safe_load(RUN) | {"plugins": plugins})
    assert str(caught.value) == (
        "plugins[0].limit: unknown key 'limit'; untyped takes every. "
        "Untyped has it as an attribute without a type, which is not an option; annotate it: limit: int = 3"
    )
    with pytest.raises(ConfigError, match="takes every\\. Did you") as caught:
        config_from_mapping(yaml.safe_load(RUN) | {"plugins": [{"use": f"{__name__}:Untyped", "fixed": 5}]})
    assert "annotate" not in str(caught.value)


@attrs.define
class Untyped(Plugin):
    """Has an option, and two attributes that are not options."""

    every: int = 1
    limit = 3
    fixed: ClassVar[int] = 3


@attrs.define
class Namesake(Plugin):
    """Registered by two distributions."""


class TwoMore(DistributionFinder):
    """Finds two distributions that register the same plugin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for owner in ("alpha", "beta"):
            info = folder / f"{owner}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(
                f"[hooktrainer.plugins]\nnamesake = {__name__}:Namesake\n{owner} = {__name__}:Namesake\n"
            )

    def find_spec(self, *args: object) -> None:
        return None

    def find_distributions(self, context: object = None) -> Iterator[PathDistribution]:
        return map(PathDistribution, self._folder.iterdir())


def test_name_registered_by_two_distributions_is_refused_and_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, TwoMore(tmp_path)])
    registered_in.cache_clear()
    try:
        assert KINDS["plugins"].resolve("alpha") is Namesake
        assert refusal("namesake") == (
            f"'namesake' is registered by alpha and beta; name the class itself, as in {__name__}:Namesake"
        )
    finally:
        registered_in.cache_clear()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (registry.TASKS, "is not a task: it has no train, heldout, score"),
        (registry.MODELS, "is not a model: it has no tokenizer, build"),
        (registry.ENGINES, "is not an engine: it has no build"),
    ],
    ids=["task", "model", "engine"],
)
def test_a_class_of_another_kind_is_refused(kind: Kind[type], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind.resolve("hooktrainer_plugins.validation:Validation")
