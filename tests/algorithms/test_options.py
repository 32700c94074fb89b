"""The `algorithm` section: names, user-defined functions, and options that exclude each other."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from helpers.config_yaml import PLUGINS
from hooktrainer.algorithms import registry
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.errors import ConfigError
from hooktrainer.run.loading import config_from_mapping, dump, load_config

RECOMPUTE = {"proximal_policy": "recompute"}
EXAMPLES = Path(__file__).parents[2] / "examples"
INPUTS = ("rewards", "groups", "lengths", "mask", "token_rewards")


def faults(**sections: Mapping[str, object]) -> str:
    mapping = {**yaml.safe_load(PLUGINS), **sections}
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(mapping)
    return str(caught.value)


def test_defaults_are_plain_ppo_with_the_log_probabilities_of_the_sampler() -> None:
    algorithm = AlgorithmOptions()
    assert algorithm.proximal_policy == "bypass"
    assert algorithm.behaviour_weight == "none"
    assert algorithm.kl_coeff == algorithm.entropy_coeff == 0.0
    assert algorithm.behaviour_weight_args == {}
    assert algorithm.compares_answers
    assert algorithm.needs_a_critic is False
    assert AlgorithmOptions(adv_estimator="gae").needs_a_critic is True
    assert AlgorithmOptions(adv_estimator="math:hypot").needs_a_critic is None


def test_every_registered_function_binds_to_its_inputs_and_options() -> None:
    inputs = {
        "adv_estimator": (*INPUTS, "values", "reduce"),
        "policy_loss": ("logprobs", "proximal", "behaviour", "advantages", "mask"),
        "loss_agg_mode": ("values", "mask", "totals", "groups", "max_response_length"),
        "behaviour_weight": ("log_ratio", "mask"),
    }
    section = attrs.asdict(AlgorithmOptions())
    assert inputs.keys() == registry.FUNCTIONS.keys()
    for key, names in registry.FUNCTIONS.items():
        for name in names:
            assert registry.bind(name, names, inputs=inputs[key], section=section).name == name
    assert set(registry.ADVANTAGE_ESTIMATORS) > registry.GROUP_RELATIVE | registry.OF_A_CRITIC


def test_args_override_the_section_and_the_section_overrides_function_defaults() -> None:
    bound = registry.bind(
        f"{__name__}:_advantage",
        registry.POLICY_LOSSES,
        inputs=("rewards",),
        section={"gamma": 0.5},
        args={"own": "1e-3"},
    )
    assert bound({"rewards": 1, "unused": 2}) == (1, 0.5, 0.001, 7.0)


def _advantage(rewards: int, *, gamma: float = 9.0, own: float = 8.0, other: float = 7.0) -> tuple[float, ...]:
    return rewards, gamma, own, other


def _asks(lengts: int, *, needed: float) -> None: ...


def _by_position(rewards: int, /) -> None: ...


def _open(rewards: int, **more: float) -> Any:
    return rewards, more


def bind(name: str, **args: object) -> registry.Bound:
    return registry.bind(
        f"{__name__}:{name}",
        registry.ADVANTAGE_ESTIMATORS,
        inputs=INPUTS,
        section={"gamma": 1.0, "low": None},
        args=args,
    )


def test_a_missing_input_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        bind("_asks")
    first, second = (fault.message for fault in caught.value.faults)
    assert "requires 'lengts', which is not an input; the inputs are groups, lengths, mask" in first
    assert first.endswith("Did you mean 'lengths'?")
    assert "requires 'needed'" in second
    assert bind("_open", power=2.0)({"rewards": 1}) == (1, {"power": 2.0})


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("_advantage", {"owm": 1.0}, "unknown argument 'owm'; .* takes other, own. Did you mean 'own'"),
        ("_advantage", {"gamma": 1.0}, "'gamma' is a key of the algorithm section itself: write algorithm.gamma"),
        ("_advantage", {"rewards": 1.0}, "'rewards' is an input of .* that the learner provides"),
        ("_advantage", {"own": "much"}, "'own' of .* must be of type float, found 'much'"),
        ("_advantage", {"own": True}, "must be of type float, found True"),
        ("_by_position", {}, "takes rewards by position"),
    ],
)
def test_unknown_argument_of_a_function_is_an_error(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bind(name, **args)


def test_an_unknown_name_gets_a_suggestion() -> None:
    found = faults(algorithm={"loss_agg_mode": "token-men", "policy_loss": "ppo_clp", "behaviour_weight": "tis_tokn"})
    assert "algorithm.loss_agg_mode: no loss aggregation has the name 'token-men'; there are token-mean, " in found
    assert "Did you mean 'token-mean'?" in found
    assert "Did you mean 'ppo_clip'?" in found
    assert "there are none, tis_token, " in found


def test_user_defined_function_is_resolved_by_module_or_file() -> None:
    assert registry.LOSS_AGG_MODES.resolve("math:hypot") is math.hypot
    assert registry.POLICY_LOSSES.resolve(f"{EXAMPLES}/my_losses.py:sapo").__name__ == "sapo"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math:hypo", "math has no function 'hypo'"),
        ("math:pi", "math has no function 'pi', but an object of type float"),
        ("nowhere:pi", "there is no module 'nowhere'"),
        (f"{EXAMPLES}/my_losses.py:sapoo", "has no function 'sapoo'. Did you mean 'sapo'?"),
        (f"{EXAMPLES}/my_lossses.py:sapo", r"there is no file .*my_lossses.py. Did you mean 'my_losses.py'?"),
    ],
)
def test_a_path_without_a_function_is_an_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.POLICY_LOSSES.resolve(name)


def test_function_file_is_relative_to_the_yaml_that_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(EXAMPLES / "04_loss.yaml")
    assert config.algorithm.policy_loss == f"{EXAMPLES}/my_losses.py:sapo"
    assert config.algorithm.policy_loss_args == {"tau_neg": 1.05}


def test_section_with_all_options_is_unchanged_by_dump_and_load() -> None:
    everything = {
        "adv_estimator": "maxrl",
        "adv_args": {"epsilon": 1e-4},
        "clip_ratio_c": 3.0,
        "behaviour_weight": "icepop",
        "behaviour_weight_low": 0.5,
        "behaviour_weight_high": 2,
        "rejection": {"seq_mean_k1": [0.9, 1.1], "token_k3": 2},
        "overlong_buffer": 2,
        **RECOMPUTE,
    }
    config = config_from_mapping({**yaml.safe_load(PLUGINS), "algorithm": everything})
    assert config.algorithm.behaviour_weight_args == {"low": 0.5, "high": 2.0}
    assert config.algorithm.rejection == {"seq_mean_k1": (0.9, 1.1), "token_k3": 2.0}
    assert config_from_mapping(yaml.safe_load(dump(config))) == config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"clip_ratio_low": -0.2}, "algorithm.clip_ratio_low: expected a value >= 0.0, found -0.2 (float)"),
        ({"clip_ratio_low": 1}, "algorithm.clip_ratio_low: expected a value < 1.0, found 1.0 (float)"),
        ({"clip_ratio_high": -0.1}, "algorithm.clip_ratio_high: "),
        ({"clip_ratio_c": 0.9}, "algorithm.clip_ratio_c: expected a value > 1.0, found 0.9 (float)"),
        (
            {"clip_ratio_c": 3, "policy_loss": "gspo"},
            "clip_ratio_c: 3.0 has no effect: clip_ratio_c is an option of ppo_clip, decoupled_ppo, and of none",
        ),
        (
            {"clip_ratio_low": 0.1, "policy_loss": "cispo"},
            "algorithm.clip_ratio_low: 0.1 has no effect: ",
        ),
        ({"clip_ratio_high": 0.1, "policy_loss": "cispo"}, "algorithm.clip_ratio_high: 0.1 has no effect"),
        ({"cispo_max_ratio": 3}, "algorithm.cispo_max_ratio: 3.0 has no effect: cispo_max_ratio is an option of cispo"),
        ({"behaviour_weight_cap": 2}, "algorithm.behaviour_weight_cap: 2.0 has no effect"),
        ({"gamma": 0.9}, "algorithm.gamma: 0.9 has no effect: gamma is an option of reinforce_plus_plus, gae"),
        ({"lam": 0.9, "adv_estimator": "reinforce_plus_plus"}, "algorithm.lam: 0.9 has no effect"),
        ({"kl_estimator": "k1"}, "algorithm.kl_estimator: k1 has no effect with kl_coeff = 0"),
        (
            {"kl_estimator": "k1", "kl_coeff": 0.1},
            "algorithm.kl_estimator: k1 in the loss has an expected gradient of 0",
        ),
        ({"kl_in": "reward"}, "algorithm.kl_in: reward has no effect with kl_coeff = 0"),
        ({"kl_off_policy_correction": True}, "algorithm.kl_off_policy_correction: it has no effect with kl_coeff = 0"),
        (
            {"overlong_penalty_factor": 0.5},
            "algorithm.overlong_penalty_factor: 0.5 has no effect without",
        ),
        (
            {"kl_coeff": 0.1, "kl_in": "reward", "proximal_policy": "log_linear"},
            "algorithm.kl_in: the reward requires the proximal policy before the first update, and log_linear computes",
        ),
        ({"kl_coeff": math.inf}, "algorithm.kl_coeff: "),
        ({"entropy_coeff": math.inf}, "algorithm.entropy_coeff: "),
        ({"overlong_buffer": 2, "overlong_penalty_factor": math.inf}, "algorithm.overlong_penalty_factor: "),
        ({"gamma": 1.5}, "algorithm.gamma: "),
        ({"ppo_epochs": 0}, "algorithm.ppo_epochs: "),
        ({"proximal_policy": "recomput"}, "Did you mean 'recompute'?"),
        (
            {"behaviour_weight": "tis_token"},
            "algorithm.behaviour_weight: 'tis_token' uses the ratio of proximal to",
        ),
        ({"rejection": {"token_k3": 1}}, "algorithm.rejection: token_k3 uses the ratio of proximal to behaviour"),
        ({"policy_loss": "decoupled_ppo"}, "algorithm.policy_loss: decoupled_ppo weighs by the ratio of proximal"),
        (
            {"policy_loss": "decoupled_ppo", "behaviour_weight": "icepop", **RECOMPUTE},
            "algorithm.behaviour_weight: 'icepop' would apply the ratio of proximal to behaviour policy a second time",
        ),
        ({"behaviour_weight_cap": 0}, "algorithm.behaviour_weight_cap: "),
        ({"behaviour_weight_high": 2, **RECOMPUTE}, "algorithm.behaviour_weight_high: 2.0 has no effect, since"),
        (
            {"behaviour_weight": "icepop", "behaviour_weight_low": 3, "behaviour_weight_high": 2, **RECOMPUTE},
            "algorithm.behaviour_weight_low: behaviour_weight_low = 3.0 is above behaviour_weight_high = 2.0",
        ),
        (
            {"rejection": {"tokn_k1": 1}, **RECOMPUTE},
            "algorithm.rejection.tokn_k1: unknown criterion 'tokn_k1'; expected one of",
        ),
        ({"rejection": {"token_k1": 2}, **RECOMPUTE}, "algorithm.rejection.token_k1: expected the bounds [low, high]"),
        ({"rejection": {"token_k2": [0, 1]}, **RECOMPUTE}, "algorithm.rejection.token_k2: expected an upper limit"),
        ({"kl_coeff": -1}, "algorithm.kl_coeff: "),
        (
            {"kl_coeff": 0.1, "kl_in": "reward", "kl_off_policy_correction": True},
            "algorithm.kl_off_policy_correction: it weighs the",
        ),
        ({"overlong_buffer": 17}, "algorithm.overlong_buffer: a buffer of 17 tokens is longer than rollout.max_resp"),
    ],
)
def test_invalid_options_are_faults_with_their_address(section: dict[str, object], message: str) -> None:
    assert message in faults(algorithm=section)


def test_table_of_options_matches_the_signatures_of_the_functions() -> None:
    section = {field.name for field in attrs.fields(AlgorithmOptions)}
    for names in registry.FUNCTIONS.values():
        for name in names:
            taken = section.intersection(inspect.signature(names.resolve(name)).parameters)
            assert registry.OPTIONS.get(name, frozenset()) == taken


def test_omitted_option_uses_the_default_of_the_function() -> None:
    for options, expected in (({}, {}), ({"clip_ratio_low": 0.0}, {"clip_ratio_low": 0.0})):
        section = attrs.asdict(AlgorithmOptions(policy_loss="gspo", **options))
        inputs = ("logprobs", "proximal", "advantages", "mask")
        assert registry.bind("gspo", registry.POLICY_LOSSES, inputs=inputs, section=section).options == expected


def test_a_user_defined_function_may_take_any_option() -> None:
    own = f"{EXAMPLES}/my_losses.py:opsm"
    assert AlgorithmOptions(policy_loss=own, clip_ratio_high=0.3, cispo_max_ratio=2.0).cispo_max_ratio == 2.0
    with pytest.raises(ConfigError, match=r"'.*_needs' requires 'gamma' and has no default for it: set algorithm"):
        registry.bind(
            f"{__name__}:_needs", registry.POLICY_LOSSES, inputs=INPUTS, section=attrs.asdict(AlgorithmOptions())
        )


def _needs(rewards: int, *, gamma: float) -> None: ...


@pytest.mark.parametrize("estimator", sorted(registry.GROUP_RELATIVE))
def test_one_answer_per_prompt_is_refused_by_estimators_that_compare_answers(estimator: str) -> None:
    found = faults(algorithm={"adv_estimator": estimator}, rollout={"use": "inline", "n": 1})
    assert (
        f"rollout.n: '{estimator}' compares the answers to a prompt, so that with one answer every advantage is 0"
        in found
    )


def test_one_answer_per_prompt_is_accepted_by_reinforce_plus_plus() -> None:
    mapping = {**yaml.safe_load(PLUGINS), "rollout": {"use": "inline", "n": 1}}
    config = config_from_mapping({**mapping, "algorithm": {"adv_estimator": "reinforce_plus_plus"}})
    assert not config.algorithm.compares_answers


def test_algorithm_options_import_no_torch() -> None:
    script = "import sys, hooktrainer.algorithms.options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
