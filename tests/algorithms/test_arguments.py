"""Arguments of registered functions are checked without torch; the tables equal the signatures of the functions."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from helpers.fault_texts import without_sources
from hooktrainer.algorithms import registry
from hooktrainer.algorithms.arguments import ARGUMENTS, BOUNDS
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.cli import main

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
INPUTS = {
    "rewards", "groups", "lengths", "mask", "token_rewards", "reduce", "values", "bootstrap", "logprobs", "proximal",
    "behaviour", "advantages",
}  # fmt: skip
SECTION = {field.name for field in attrs.fields(AlgorithmOptions)}


@pytest.mark.parametrize("key", ["adv_estimator", "policy_loss"])
def test_the_arguments_are_those_of_the_signatures(key: str) -> None:
    for name, kind in ((name, registry.FUNCTIONS[key]) for name in registry.FUNCTIONS[key]):
        parameters = inspect.signature(kind.resolve(name)).parameters
        own = {name: found.default for name, found in parameters.items() if name not in INPUTS | SECTION}
        assert own == {argument: rule.default for argument, rule in ARGUMENTS.get(name, {}).items()}


def test_the_bounds_are_those_of_the_signatures() -> None:
    for name in registry.BEHAVIOUR_WEIGHTS:
        parameters = inspect.signature(registry.BEHAVIOUR_WEIGHTS.resolve(name)).parameters
        assert (parameters["low"].default, parameters["high"].default) == BOUNDS[name]
    cispo = inspect.signature(registry.POLICY_LOSSES.resolve("cispo"))
    assert cispo.parameters["cispo_max_ratio"].default == 5.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.adv_args={x: 1}"], "adv_args.x: unknown argument 'x'; 'grpo' takes epsilon."),
        (["algorithm.adv_args={epsilom: 1}"], "Did you mean 'epsilon'?"),
        (["algorithm.policy_loss_args={y: 2}"], "policy_loss_args.y: unknown argument 'y'; 'ppo_clip' takes none."),
        (["algorithm.adv_args={epsilon: -1}"], "adv_args.epsilon: expected a finite number of at least 0, found -1"),
        (["algorithm.adv_args={epsilon: much}"], "adv_args.epsilon: 'epsilon' of 'grpo' must be of type float"),
        (["algorithm.adv_args={gamma: 1}"], "adv_args.gamma: 'gamma' is a key of the algorithm section itself"),
        (
            ["algorithm.policy_loss=cispo", "algorithm.policy_loss_args={cispo_min_ratio: 9}"],
            "policy_loss_args.cispo_min_ratio: expected 0 <= cispo_min_ratio <= cispo_max_ratio, found 9",
        ),
        (
            ["algorithm.adv_estimator=gae", "critic.use=value_head", "algorithm.adv_args={bootstrap: 1}"],
            "adv_args.bootstrap: unknown argument 'bootstrap'",
        ),
        (
            [
                "algorithm.proximal_policy=recompute",
                "algorithm.behaviour_weight=icepop",
                "algorithm.behaviour_weight_high=0.1",
            ],
            "behaviour_weight_high: expected low <= high; with icepop, low is 0.5 and high is 0.1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_plan_refuses_arguments_that_the_function_does_not_take(
    overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = ["algorithm.clip_ratio_low=null", "algorithm.clip_ratio_high=null"]
    assert main(["plan", QUICKSTART, *clip, *overrides]) == 2
    err = without_sources(capsys.readouterr().err)
    assert message in err
    assert len(err.splitlines()) == 2


def test_arguments_are_refused_without_torch() -> None:
    code = "import sys; from hooktrainer.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "plan", QUICKSTART, "algorithm.adv_args={x: 1}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "2 False\n"


LOSS = """
from hooktrainer.algorithms.policy_losses import ppo_clip

def loss(logprobs, proximal, advantages, mask, *, sharpness: float = 1.0):
    return ppo_clip(logprobs, proximal, advantages, mask)

def needs(logprobs, valuess):
    return logprobs

def demands(logprobs, sharpness):
    return logprobs

def discounts(logprobs, gamma):
    return logprobs

def advantages(rewards, *, scale: float):
    return rewards

def critical(rewards, values):
    return rewards

def aggregate(values, power):
    return values.mean()

def weight(log_ratio, mask, *, high: float = 2.0):
    return log_ratio
"""


def planned(file: Path, overrides: list[str]) -> int:
    """Return the exit code of `plan` with functions of this file, without the clipping that they do not take."""
    file.write_text(LOSS)
    clip = ["algorithm.clip_ratio_low=null", "algorithm.clip_ratio_high=null"]
    given = [f"algorithm.{override.replace('{file}', str(file))}" for override in overrides]
    return main(["plan", QUICKSTART, *clip, *given])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy_loss={file}:los"], "algorithm.policy_loss: {file} has no function 'los'. Did you mean 'loss'?"),
        (
            ["policy_loss={file}:loss", "policy_loss_args={y: 2}"],
            "algorithm.policy_loss_args.y: unknown argument 'y'; '{file}:loss' takes sharpness.",
        ),
        (["policy_loss={file}:needs"], "algorithm.policy_loss_args.valuess: '{file}:needs' requires 'valuess'"),
        (
            ["policy_loss={file}:loss", "policy_loss_args={sharpness: much}"],
            "algorithm.policy_loss_args.sharpness: 'sharpness' of '{file}:loss' must be of type float, found 'much'",
        ),
        (
            ["policy_loss={file}:loss", "policy_loss_args={mask: 1}"],
            "algorithm.policy_loss_args.mask: 'mask' is an input of '{file}:loss' that the learner provides",
        ),
        (
            ["policy_loss={file}:loss", "policy_loss_args.entropy_coeff=1"],
            "algorithm.policy_loss_args.entropy_coeff: 'entropy_coeff' is a key of the algorithm section itself",
        ),
        (
            ["policy_loss={file}:demands", "policy_loss_args={shrpness: 1}"],
            "unknown argument 'shrpness'; '{file}:demands' takes sharpness. Did you mean 'sharpness'?",
        ),
        (["policy_loss={file}:discounts"], "algorithm.gamma: '{file}:discounts' requires 'gamma' and has no default"),
        (
            ["adv_estimator={file}:advantages", "adv_args={scale: 1, mode: 3}"],
            "algorithm.adv_args.mode: unknown argument 'mode'",
        ),
        (["adv_estimator={file}:critical"], "algorithm.adv_estimator: '{file}:critical' requires 'values', which a "),
        (["adv_estimator={file}:advantages"], "algorithm.adv_args.scale: '{file}:advantages' requires 'scale'"),
        (["loss_agg_mode={file}:aggregate"], "algorithm.loss_agg_mode: '{file}:aggregate' requires 'power'"),
        (
            ["behaviour_weight={file}:weight", "behaviour_weight_low=0.5", "proximal_policy=recompute"],
            "algorithm.behaviour_weight_low: unknown argument 'low'; '{file}:weight' takes high.",
        ),
        (["adv_estimator={file}:los"], "algorithm.adv_estimator: {file} has no function 'los'"),
        (["loss_agg_mode={file}:los"], "algorithm.loss_agg_mode: {file} has no function 'los'"),
        (["policy_loss={file}:loss", "adv_args={x: 1}"], "algorithm.adv_args.x: unknown argument 'x'"),
        (["policy_loss=no_such_module.losses:loss"], "algorithm.policy_loss: there is no module 'no_such_module'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_plan_refuses_a_function_of_the_user_that_cannot_be_used(
    tmp_path: Path, overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_losses.py"
    assert planned(file, overrides) == 2
    err = without_sources(capsys.readouterr().err)
    assert message.replace("{file}", str(file)) in err
    assert len(err.splitlines()) == 2


def test_plan_accepts_a_function_of_the_user_with_its_argument(tmp_path: Path) -> None:
    loss = ["policy_loss={file}:loss", "policy_loss_args={sharpness: 2}"]
    assert planned(tmp_path / "my_losses.py", loss) == 0


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (["policy_loss={file}:demands"], "policy_loss={file}:demands"),
        (["policy_loss={file}:demands", "policy_loss_args={}"], "policy_loss={file}:demands"),
        (["policy_loss={file}:loss", "policy_loss_args.y=2"], "policy_loss_args.y=2"),
        (["policy_loss={file}:loss", "policy_loss_args={y: 2}", "adv_args={}"], "policy_loss_args={y: 2}"),
    ],
)
def test_a_fault_of_an_argument_names_the_override_that_caused_it(
    tmp_path: Path, overrides: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_losses.py"
    assert planned(file, overrides) == 2
    heading, line = capsys.readouterr().err.splitlines()
    assert heading == "1 fault on the command line:"
    assert f"(override algorithm.{cause.replace('{file}', str(file))}): " in line


def test_faults_of_several_functions_of_the_user_are_shown_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_losses.py"
    file.write_text(LOSS)
    path = tmp_path / "run.yaml"
    text = Path(QUICKSTART).read_text()
    algorithm = (
        f"algorithm: {{adv_estimator: {file}:advantages, policy_loss: {file}:loss, "
        f"policy_loss_args: {{x: 1, sharpness: much}}, loss_agg_mode: {file}:aggregate}}"
    )
    path.write_text(re.sub("^algorithm: .*$", algorithm, text, flags=re.MULTILINE))
    assert main(["plan", str(path)]) == 2
    addresses = [line.split(": ")[0].strip() for line in capsys.readouterr().err.splitlines()[1:]]
    assert addresses == [
        "algorithm.adv_args.scale",
        "algorithm.policy_loss_args.x",
        "algorithm.policy_loss_args.sharpness",
        "algorithm.loss_agg_mode",
    ]
