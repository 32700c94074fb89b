"""Names of classes and files that cannot be read, and code that raises while it is imported or constructed."""

from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PLUGINS, faults, load
from hooktrainer.errors import ConfigError
from hooktrainer.run.loading import load_config

CODE = {
    "getattr.py": "def __getattr__(name):\n    raise RuntimeError('no attributes today')\n",
    "silent.py": "class Bad(Exception):\n    def __str__(self):\n        raise ValueError\n\nraise Bad\n",
    "base.py": "class Bad(BaseException):\n    pass\n\nraise Bad('from the module')\n",
    "leaves.py": "raise SystemExit(3)\n",
    "bytes.py": "\N{LATIN SMALL LETTER U WITH DIAERESIS}",
    "mine.py": """
import attrs
from hooktrainer import Plugin

class Silent(Exception):
    def __str__(self):
        raise ValueError

class Base(BaseException):
    pass

@attrs.define(kw_only=True)
class Mine(Plugin):
    how: str = ""

    def __attrs_post_init__(self):
        errors = {"exit": SystemExit(3), "base": Base("own"), "generator": GeneratorExit(), "silent": Silent()}
        if self.how in errors:
            raise errors[self.how]
""",
}


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in CODE.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "folder.py").mkdir()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("~nouser/x.py:X", "there is no file "),
        ("loop.py:X", "cannot be read: Too many levels of symbolic links"),
        ("folder.py:X", "folder.py is not a file"),
        (f"{'a' * 300}.py:X", "cannot be read: File name too long"),
        ("getattr.py:Mine", "'Mine' of .*getattr.py cannot be read: RuntimeError: no attributes today"),
        ("silent.py:Mine", "failed: Bad: .the __str__ of Bad raised ValueError"),
        ("base.py:Mine", "failed: Bad: from the module"),
        ("leaves.py:Mine", "failed: SystemExit: 3"),
        ("bytes.py:Mine", "failed: SyntaxError: "),
        ("mine.py: Mine", "'.*mine.py: Mine' is not a name; .*, without blanks around the colon"),
        ("mine.py:", "'.*mine.py:' is not a name; write package.module:Class or file.py:Class"),
        ("..mine:Mine", "'..mine:Mine' is not a name"),
        (":Mine", "':Mine' is not a name"),
    ],
)
@pytest.mark.parametrize("place", ["task", "plugins"])
def test_a_name_that_cannot_be_resolved_is_a_fault(tmp_path: Path, use: str, message: str, place: str) -> None:
    if place == "task":
        found = faults(tmp_path, PLUGINS, f'task="{use}"')
    else:
        found = faults(tmp_path, BASE + f'plugins: [weight_sync, {{use: "{use}", name: a}}]\n')
    with pytest.raises(ConfigError, match=message):
        raise ConfigError("\n".join(found))
    assert [fault.partition(":")[0] for fault in found] == ["task" if place == "task" else "plugins[1]"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "SystemExit: 3"),
        ("base", "Base: own"),
        ("generator", "GeneratorExit: "),
        ("silent", "Silent: (the __str__ of Silent raised ValueError)"),
    ],
)
def test_an_error_of_a_constructor_is_a_fault_of_the_plugin(tmp_path: Path, how: str, message: str) -> None:
    (found,) = faults(tmp_path, BASE + f"plugins: [weight_sync, {{use: 'mine.py:Mine', how: {how}}}]\n")
    assert found.startswith(f"plugins[1]: {message}")


@pytest.mark.parametrize(
    "text", ["plugins:\n- weight_sync\n- mine.py: Mine\n", "plugins: [weight_sync, {mine.py: Mine}]\n"]
)
def test_a_blank_between_file_and_class_is_a_fault_with_the_name(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, BASE + text) == [
        "plugins[1]: a class is named without a blank after the colon; write 'mine.py:Mine'"
    ]


def test_a_configuration_that_is_a_link_to_itself_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot be read: .*Too many levels of symbolic links"):
        load_config(path)


@pytest.mark.parametrize("option", ["dir", "resume"])
def test_a_path_below_an_unknown_home_directory_is_a_fault(tmp_path: Path, option: str) -> None:
    (found,) = faults(tmp_path, PLUGINS, f"run.{option}=~nouser/x")
    assert found.startswith(f"run.{option}: expected ")
    assert load(tmp_path, PLUGINS, "run.dir=./~nouser").run.dir == Path("~nouser").absolute()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("alphabet = property(lambda self: int('x'))", "invalid literal for int() with base 10: 'x'"),
        ("longest_prompt = property(lambda self: 1 / 0)", "ZeroDivisionError: division by zero"),
        ("alphabet = property(lambda self: exit(0))", "SystemExit: 0"),
        ("extra: int = attrs.field(factory=lambda: 1 / 0)", "task: ZeroDivisionError: division by zero"),
    ],
)
def test_an_error_of_a_property_of_a_task_is_a_fault(tmp_path: Path, body: str, found: str) -> None:
    text = "import attrs\nfrom hooktrainer.tasks.addition import Addition\n\n"
    (tmp_path / "odd.py").write_text(f"{text}@attrs.frozen(kw_only=True)\nclass Odd(Addition):\n    {body}\n")
    assert any(found in fault for fault in faults(tmp_path, PLUGINS, "task.use=odd.py:Odd"))


def test_a_check_without_end_is_cut(tmp_path: Path) -> None:
    text = "import attrs\nfrom itertools import repeat\nfrom hooktrainer import Plugin\n\n"
    (tmp_path / "odd.py").write_text(
        f"{text}@attrs.define\nclass Odd(Plugin):\n    def check(self, config):\n        return repeat('no')\n"
    )
    assert set(faults(tmp_path, BASE + "plugins: [weight_sync, {use: 'odd.py:Odd'}]\n")) == {"plugins[1]: no"}
