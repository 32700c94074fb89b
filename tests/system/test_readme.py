"""Every README of the project: its blocks run, and its links and paths exist."""

from __future__ import annotations

import inspect
import runpy
import sys
import types
from pathlib import Path

import pytest
import yaml

from helpers import readme_tables
from helpers.readmes import (
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    defined_tests,
    fill,
    links,
    missing_line,
    named,
    pages,
    paths,
)
from hooktrainer import load_config
from hooktrainer.cli import main
from hooktrainer.events import StepEnd
from hooktrainer.run.composition import composition_of
from hooktrainer.testing import FakeBus

BASE = ROOT / "configs" / "quickstart.yaml"
whole_project = pytest.mark.skipif(not (ROOT / "LICENSE").exists(), reason="only the tests are here")


def with_blocks(*languages: str) -> list[Path]:
    return [page for page in pages() if blocks(page, *languages)]


@pytest.mark.parametrize("page", with_blocks("python"), ids=named)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"readme_of_{page.parent.name}")
    module.__file__ = str(written(page, tmp_path))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    given = {"tmp_path": tmp_path, "monkeypatch": monkeypatch, "fake_bus": FakeBus}

    for block in blocks(page, "python"):
        run(block, module)
        for name in defined_tests(block):
            test = vars(module)[name]
            test(**{parameter: given[parameter] for parameter in inspect.signature(test).parameters})


def written(page: Path, folder: Path) -> Path:
    """Write the Python of a page to a file, each block at its line of the page, for tracebacks and `inspect`."""
    source = ""
    for block in blocks(page, "python"):
        source += "\n" * (block.line - 1 - source.count("\n")) + block.text
    path = folder / f"{page.stem}.py"
    path.write_text(source)
    return path


def run(block: Block, module: types.ModuleType) -> None:
    source = "\n" * (block.line - 1) + block.text
    exec(compile(source, str(module.__file__), "exec", dont_inherit=True), vars(module))


@pytest.mark.parametrize("block", [block for page in pages() for block in blocks(page, "yaml")], ids=str)
def test_yaml_blocks_compose(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, block.path)
    monkeypatch.chdir(tmp_path)
    data = yaml.safe_load(block.text)
    if isinstance(data, list):  # entries of a list of plugins
        names = {entry if isinstance(entry, str) else entry.get("name", entry.get("use")) for entry in data}
        kept = [entry for entry in yaml.safe_load(BASE.read_text())["plugins"] if name_of(entry) not in names]
        data = {"plugins": [*kept, *data]}
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    whole = {"task", "model", "trainer"} <= data.keys()

    config = load_config(*([] if whole else [BASE]), tmp_path / "shown.yaml")

    assert composition_of(config).plan.plugins or not config.plugins


def name_of(entry: object) -> object:
    return entry if isinstance(entry, str) else dict(entry).get("name", dict(entry).get("use"))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.parent.name == "simulation" else [])
        for page in with_blocks("console")
    ],
    ids=named,
)
def test_console_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "path", [*sys.path])

    for block in blocks(page, "console"):
        for command in commands(block):
            check(block, command, capfd)


def check(block: Block, command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a command of hooktrainer; others are only shown."""
    name, *arguments = command.arguments
    if name != "hooktrainer":
        return
    fits = arguments[0] == "fit"
    if fits:
        arguments = [*arguments, *block.overrides] if block.overrides is not None else ["plan", *arguments[1:]]
    code = exit_code_of(arguments)
    out, err = capfd.readouterr()
    assert code == block.exit_code, f"{block}: {' '.join(command.arguments)} gave {code}\n{out}{err}"
    if fits and block.overrides is None:
        return
    missing = missing_line(command.shown, out + err, numbers=not fits)
    assert missing is None, f"{block}: not in the output, or not in this order: {missing!r}\n{out}{err}"


def exit_code_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as error:  # of argparse
        return error.code if isinstance(error.code, int) else 1


@whole_project
def test_the_plugin_of_the_readme_is_the_example() -> None:
    start = "@attrs.define(kw_only=True)\nclass KLStop(Plugin):"
    example = start + (ROOT / "examples" / "kl_stop.py").read_text().partition(start)[2]
    assert f"{example.strip()}\n```" in (ROOT / "README.md").read_text()


@whole_project
@pytest.mark.parametrize(
    ("value", "stops"), [(0.5, True), (-0.5, True), (float("nan"), True), (float("-inf"), True), (-0.2, False)]
)
def test_the_guard_of_the_readme_watches_both_sides(value: float, stops: bool) -> None:
    guard = runpy.run_path(str(ROOT / "examples" / "kl_stop.py"))["KLStop"]
    bus = FakeBus(guard(limit=0.2), provides=["metrics.row"])
    bus.fire(StepEnd, step=1, row={"actor/ppo_kl": value})

    assert bus.control.reason == ("ppo_kl above 0.2" if stops else None)


@whole_project
@pytest.mark.parametrize("page", [*pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_links_have_a_target(page: Path) -> None:
    wrong = []
    for link in links(page):
        where, _, anchor = link.partition("#")
        target = page.parent / where if where else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)

    assert not wrong


@whole_project
@pytest.mark.parametrize("page", [*pages(), ROOT / "CONTRIBUTING.md"], ids=named)
def test_named_paths_exist(page: Path) -> None:
    assert [path for path in paths(page) if not (ROOT / path).exists() and not (page.parent / path).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=named)
def test_generated_tables_match_the_code(page: Path) -> None:
    text = page.read_text()

    assert readme_tables.updated(text) == text, "run `make readme`"


class TestReadmeParser:
    """Parse a README written for the test."""

    PAGE = """# Title: `code` and more

<!-- run: trainer.total_steps=2 -->
```console
$ hooktrainer fit run.yaml \\
    seed=1  # a comment
step 1 ... 0.25
...
done in 12.5 s
$ ls
```

Text.

<!-- exit: 2 -->

```console
$ hooktrainer plan run.yaml
```

## Title: `code` and more

See [there](#title-code-and-more-1) and [here](https://example.org); `tests/no_such_file.py`.

```python
# shown.py
def test_it(): ...
[no](link)
```
"""

    @pytest.fixture
    def page(self, tmp_path: Path) -> Path:
        path = tmp_path / "README.md"
        path.write_text(self.PAGE)
        return path

    def test_blocks_are_found_with_their_comments(self, page: Path) -> None:
        first, second = blocks(page, "console")
        (python,) = blocks(page, "python")

        assert (first.overrides, first.exit_code, first.line) == (("trainer.total_steps=2",), 0, 5)
        assert (second.overrides, second.exit_code) == (None, 2)
        assert (python.file_name, [*defined_tests(python)]) == ("shown.py", ["test_it"])

    def test_console_blocks_are_split_into_commands_and_output(self, page: Path) -> None:
        fit, listing = commands(blocks(page, "console")[0])

        assert fit.arguments == ("hooktrainer", "fit", "run.yaml", "seed=1")
        assert fit.shown == ("step 1 ... 0.25", "...", "done in 12.5 s")
        assert listing == Command(("ls",), ())

    def test_links_anchors_and_paths_are_found(self, page: Path) -> None:
        assert links(page) == ["#title-code-and-more-1"]
        assert anchors(page) == {"title-code-and-more", "title-code-and-more-1"}
        assert paths(page) == ["tests/no_such_file.py"]

    def test_shown_lines_are_compared_in_order(self) -> None:
        output = "a\nstep 1 of 9: 0.25\nother\ndone in 3.25 s\n"

        assert missing_line(["step 1 ... 0.25", "...", "done in 3.25 s"], output) is None
        assert missing_line(["done in 12.5 s"], output) == "done in 12.5 s"
        assert missing_line(["done in 12.5 s"], output, numbers=False) is None
        assert missing_line(["done in 3.25 s", "a"], output) == "a"


def test_table_is_replaced_between_its_comments() -> None:
    text = "before\n\n<!-- generated: bands -->\nold\n<!-- end -->\n\nafter\n"

    new = readme_tables.updated(text)

    assert new.startswith("before\n\n<!-- generated: bands -->\n\n| band |")
    assert new.endswith(" |\n\n<!-- end -->\n\nafter\n")
    assert "old" not in new
    assert readme_tables.updated(new) == new


@pytest.mark.parametrize("name", ["no_such_table", "options no_such_plugin", "bands of_what"])
def test_unknown_table_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"<!-- generated: {name} -->"):
        readme_tables.updated(f"<!-- generated: {name} -->\n<!-- end -->\n")


def test_table_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- end -->"):
        readme_tables.updated("<!-- generated: bands -->\n| |\n")


@pytest.mark.parametrize("name", readme_tables.EXAMPLES)
def test_every_kind_of_table_can_be_made(name: str) -> None:
    if name.startswith("files") and not (ROOT / "hooktrainer").exists():
        pytest.skip("only the tests are here")
    table = readme_tables.table(name)
    head, rule, *rows = table.splitlines()

    assert rows
    assert {line.replace(r"\|", "").count("|") for line in (head, rule, *rows)} == {head.count("|")}


def test_the_command_rewrites_tables(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- generated: bands -->\n<!-- end -->\n")

    assert readme_tables.main([str(page)]) == 1
    assert readme_tables.main(["--write", str(page)]) == 0
    assert readme_tables.main([str(page)]) == 0
    assert "COLLECT" in page.read_text()
