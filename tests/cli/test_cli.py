import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from hooktrainer import cli
from hooktrainer.algorithms.registry import FUNCTIONS
from hooktrainer.cli import main
from hooktrainer.errors import ConfigError, StarvedError
from hooktrainer.run.registry import KINDS

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_plan_prints_every_signal_with_its_handlers_and_imports_no_torch() -> None:
    done = python(
        "-c",
        "import sys; from hooktrainer.cli import main; code = main(sys.argv[1:]); "
        "print([name for name in ('torch', 'rich') if name in sys.modules]); sys.exit(code)",
        "plan",
        QUICKSTART,
        "plugins.validation.every=7",
    )
    assert done.returncode == 0
    assert done.stderr == ""
    *plan, imported = done.stdout.splitlines()
    assert imported == "[]"
    signals = [line for line in plan if line and not line.startswith(" ")]
    assert signals[0] == "fit_start"
    assert signals[-1] == "fit_end"
    (evaluate,) = [line for line in plan if "validation.evaluate" in line]
    assert " ".join(evaluate.split()) == (
        "400 EVALUATE validation.evaluate needs weights.published · adds metrics.row · every 7"
    )


def test_python_m_hooktrainer_runs_the_command() -> None:
    done = python("-m", "hooktrainer", "plan", str(ROOT / "nowhere.yaml"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "there is no such file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_a_wrong_configuration_shows_all_faults_and_exits_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, QUICKSTART, "paramter_sync_step=8", "trainer.train_batch_size=30"]) == 2
    out, err = capsys.readouterr()
    heading, *lines = err.splitlines()
    assert out == ""
    assert heading == "2 faults on the command line:"
    assert lines[0].startswith("  paramter_sync_step (override paramter_sync_step=8): unknown key")
    assert lines[0].endswith("Did you mean 'trainer.parameter_sync_step'?")
    address, _, message = lines[1].partition(": ")
    assert address == "  trainer.train_batch_size (override trainer.train_batch_size=30)"
    assert message == "30 is not parameter_sync_step x ppo_mini_batch_size = 4 x 16 = 64"
    assert len(lines) == 2


def test_a_misspelt_option_of_a_plugin_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, "plugins.validation.evrey=5"]) == 2
    heading, line = capsys.readouterr().err.splitlines()
    assert heading == "1 fault on the command line:"
    assert line.startswith("  plugins[3].evrey (validation; override plugins.validation.evrey=5): unknown key 'evrey'")
    assert line.endswith("Did you mean 'every'?")


def test_faults_are_attributed_to_the_file_or_to_their_override(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(Path(QUICKSTART).read_text().replace("every: 5", "every: 0"))
    assert main(["plan", str(path), "optim.lr=-1.0", "seed.x=1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"3 faults in {path} and on the command line:",
        "  seed.x (override seed.x=1): seed is 0 (int), which has no keys; override it as a whole",
        "  optim.lr (override optim.lr=-1.0): expected a value > 0.0, found -1.0 (float)",
        "  plugins[3].every (validation): expected a value >= 1, found 0 (int)",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.total_steps=10"], "; an override has no dashes: trainer.total_steps=10"),
        (["--trainer.total_steps", "10"], "; an override has no dashes: trainer.total_steps=10"),
        (["--total_steps=10"], "; an override has no dashes: trainer.total_steps=10"),
        (["--total_steps", "10"], "; an override has no dashes: trainer.total_steps=10"),
        (["--total-steps", "10"], "; an override has no dashes: trainer.total_steps=10"),
        (["--seed", "-1", "--digits", "3"], "; an override has no dashes: seed=-1 task.digits=3"),
        (["--learning_rate", "1e-6", "--num_generations", "8"], "dashes: optim.lr=1e-6 rollout.n=8"),
        (["--run_name", "a b", QUICKSTART], "; an override has no dashes: 'run.name=a b'"),
        (["--enable_gradient_checkpointing", QUICKSTART], "dashes: model.gradient_checkpointing=true"),
        (["--verbose"], "unrecognized arguments: --verbose\n"),
        (["trainer.total_steps =10"], "an override has no blanks around its '='; write trainer.total_steps=..."),
        (["trainer.total_steps", "=", "10"], "there is no such file. An override is written key=value, without blanks"),
    ],
)
def test_an_override_in_the_form_of_another_tool_shows_the_right_form(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["plan", QUICKSTART, *arguments])
    except SystemExit as error:  # argparse
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_priority_on_an_unknown_signal_lists_signals_with_their_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, "plugins.validation.priority={step_ned: 450}"]) == 2
    assert "It handles fit_start (method take_prompts), step_end (method evaluate)." in capsys.readouterr().err


def test_plan_with_a_read_before_the_write_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, "plugins.log_after_collect.priority={step_end: 250}"]) == 2
    assert "reads 'metrics.row' before metric_aggregation.reduce" in capsys.readouterr().err


def test_later_files_and_overrides_may_come_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = tmp_path / "more=files.yaml"
    more.write_text("plugins: [weight_sync, {use: validation, every: 2}]\n")
    assert main(["plan", QUICKSTART, "plugins.validation.every=9", str(more)]) == 0
    out = capsys.readouterr().out
    assert "every 9" in out
    assert "staleness" not in out


@pytest.mark.parametrize("plugins", ["[]", "[metric_aggregation, log_after_collect]"])
def test_plan_refuses_a_run_without_a_weight_sync_as_fit_does(plugins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, f"plugins={plugins}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("  a run requires exactly one handler that syncs the weights")
    assert err.splitlines()[-1].endswith("Add weight_sync to the plugins.")


def test_plugins_lists_every_name_with_options_defaults_and_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    for kind in KINDS:
        assert f"{kind} (entry points hooktrainer.{kind})\n" in out
        assert all(f"  {name}: " in out for name in KINDS[kind])
    for key, functions in FUNCTIONS.items():
        assert f"\n{key} (functions that this key of the section algorithm names)\n" in out
        assert all(f"\n  {name}: " in out for name in functions)
    assert "sections (keys of the YAML)\n  algorithm: " in out
    assert "cannot be used" not in out
    assert "      size: int | None = None\n          Number of held-out prompts" in out


def test_plugins_shows_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "validation"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("plugins (entry points hooktrainer.plugins)\n  validation: ")
    assert "weight_sync" not in first
    assert main(["plugins", "hooktrainer_plugins.validation:Validation"]) == 0
    assert capsys.readouterr().out.split()[5:] == first.split()[5:]


def test_plugins_shows_a_strategy_and_an_algorithm_function_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "requeue"]) == 0
    heading, first, *rest = capsys.readouterr().out.splitlines()
    assert heading == "strategies (entry points hooktrainer.strategies)"
    assert first.startswith("  requeue: Evict ")
    assert not any(": int" in line for line in rest)
    assert main(["plugins", "token-mean"]) == 0
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading == "loss_agg_mode (functions that this key of the section algorithm names)"
    assert first.startswith("  token-mean: Return the mean over tokens")


def test_plugins_shows_the_choices_of_an_option_whose_type_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "optim"]) == 0
    assert "      lr_unit: Literal['update', 'step'] = 'update'\n" in capsys.readouterr().out


def test_plugins_imports_no_torch() -> None:
    code = "import sys; from hooktrainer.cli import main; sys.exit(main(['plugins']) or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("section", ["algorithm", "optim", "trainer", "replay", "run"])
def test_plugins_shows_the_options_of_a_section(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", section]) == 0
    heading, first, option, doc, *_ = capsys.readouterr().out.splitlines()
    assert heading == "sections (keys of the YAML)"
    assert first.startswith(f"  {section}: ")
    assert option.startswith("      ")
    assert ": " in option
    assert doc.startswith("          ")


@pytest.mark.parametrize("name", ["validation", "nowhere:Mine", "mine.py"])
def test_plugins_with_an_unusable_name_exits_2(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "hooktrainer_plugins.validation"
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    assert main(["plugins", name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("1 fault:\n  ")


def test_plugins_refuses_an_unknown_name_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "validaton"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("1 fault:\n  nothing has the name 'validaton'; there are ")
    assert err.endswith(" Did you mean 'validation'?\n")


def test_closed_pipe_ends_a_command_without_a_message() -> None:
    code = "import sys; from hooktrainer.cli import main; sys.stdin.read(); sys.exit(main(['plugins']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=120)
    assert err == b""
    assert process.returncode == 1


def _raising(error: BaseException) -> object:
    def run(_args: object) -> int:
        raise error

    return run


def _noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (_noted(StarvedError("waited 5 s"), "in staleness"), 1, "the run failed: waited 5 s\n  in staleness\n"),
        (ConfigError("wrong"), 2, "1 fault:\n  wrong\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_of_a_command_becomes_a_message_and_an_exit_code(
    error: BaseException, code: int, err: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hooktrainer.cli.plugins.run", _raising(error))
    assert main(["plugins"]) == code
    assert capsys.readouterr().err == err


@pytest.mark.parametrize(
    "error", [_noted(ValueError("odd"), "in my_plugin"), _caused(StarvedError("dead"), ValueError("odd"))]
)
def test_unexpected_error_is_shown_with_its_traceback(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hooktrainer.cli.plugins.run", _raising(error))
    assert main(["plugins"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "ValueError: odd" in err
    assert all(note in err for note in getattr(error, "__notes__", ()))


COMMANDS = [[], *([found.name] for found in pkgutil.iter_modules(cli.__path__) if not found.name.startswith("_"))]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("fit", "plan", "plugins"))


def test_help_of_every_command_is_printed_without_heavy_imports() -> None:
    script = f"""
import sys
from hooktrainer.cli import main

for command in {COMMANDS}:
    try:
        main([*command, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, command
    heavy = {{"torch", "numpy", "transformers", "plotly", "ray"}} & sys.modules.keys()
    assert not heavy, (command, heavy)
"""
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["fti"], ["fit"], ["plan", "--verbose"]])
def test_invalid_command_line_exits_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


OWN = """
import attrs
from hooktrainer.models.options import DecoderOptions
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.tasks.sort_digits import SortDigits


@attrs.frozen(kw_only=True)
class Task(SortDigits):
    \"\"\"Sort other digits.\"\"\"

    base: int = 10
    \"\"\"Number of different digits.\"\"\"


@attrs.frozen(kw_only=True)
class Model(DecoderOptions):
    \"\"\"A model.\"\"\"


@attrs.frozen(kw_only=True)
class Engine(ThreadOptions):
    \"\"\"An engine.\"\"\"


@attrs.define
class Sink:
    \"\"\"A sink.\"\"\"

    flush_s: float = 5.0
    \"\"\"Seconds between two flushes.\"\"\"

    def open(self, run): ...
    def write(self, step, row): ...
    def close(self, status): ...


class Nothing:
    pass
"""


@pytest.mark.parametrize(
    ("name", "group", "text"),
    [
        ("Task", "tasks", "base: int = 10\n          Number of different digits."),
        ("Model", "models", "layers: int = 3"),
        ("Engine", "engines", "workers: int = 1"),
        ("Sink", "sinks", "flush_s: float = 5.0\n          Seconds between two flushes."),
    ],
)
def test_plugins_describes_a_class_of_any_kind_in_a_file(
    tmp_path: Path, name: str, group: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert main(["plugins", f"{tmp_path}/own.py:{name}"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{group} (entry points hooktrainer.{group})")
    assert text in out


def test_plugins_shows_what_each_kind_of_class_requires(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert main(["plugins", f"{tmp_path}/own.py:Nothing"]) == 2
    err = capsys.readouterr().err
    assert "is not a plugin: it must be a subclass of hooktrainer.Plugin" in err
    assert "is not a task: it has no train, heldout, score" in err
    assert main(["plugins", f"{tmp_path}/own.py:Tusk"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"  {tmp_path}/own.py has no class 'Tusk'. Did you mean 'Task'?"
    ]


def test_the_name_of_a_run_is_shown_as_optional(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "run"]) == 0
    assert "name: str = the name of the first YAML file\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "address", "override"),
    [
        (["task.use=sort_digts"], "task", "task.use=sort_digts"),
        (["task={use: sort_digts}"], "task", "task={use: sort_digts}"),
        (["rollout.use=inlin"], "rollout", "rollout.use=inlin"),
        (["seed=x", "seed=y"], "seed", "seed=y"),
        (["trainer.total_steps=x", "trainer={total_steps: y}"], "trainer.total_steps", "trainer={total_steps: y}"),
        (["plugins.4.sinks=[consol]"], "plugins[4].sinks[0]", "log_after_collect; override plugins.4.sinks=[consol]"),
    ],
)
def test_a_fault_of_an_override_is_on_the_command_line(
    overrides: list[str], address: str, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", QUICKSTART, *overrides]) == 2
    heading, line = capsys.readouterr().err.splitlines()
    assert heading == "1 fault on the command line:"
    assert line.startswith(f"  {address} ({override if '; ' in override else f'override {override}'}): ")


def test_a_fault_of_the_file_is_not_attributed_to_an_override_of_another_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(Path(QUICKSTART).read_text().replace("entropy_coeff: 0.1", "entropy_coeff: x"))
    assert main(["plan", str(path), "algorithm={gamma: 0.5}", "optim={lr: 1e-4}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert f"in {path}" in lines[0]
    assert "  algorithm.entropy_coeff: expected float, found 'x' (str)" in lines


@pytest.mark.parametrize("number", ["SYNC", "Priority.SYNC + 50", "99", "350.0", "true"])
def test_a_priority_that_is_no_number_of_a_band_shows_how_to_write_one(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", QUICKSTART, f"plugins.weight_sync.priority.step_end={number}"]) == 2
    _, line = capsys.readouterr().err.splitlines()
    assert line.startswith("  plugins[1].priority.step_end (weight_sync; override ")
    assert "Write a number such as 350, or Priority.SYNC + 50 in Python. The bands are PREPARE 100, COLLECT " in line
