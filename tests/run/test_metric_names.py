"""Options that name a metric are compared with the metrics that the parts of a run make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.fault_texts import without_sources
from hooktrainer import build_trainer, load_config
from hooktrainer.cli import main
from hooktrainer.metrics.record import Derive, Record, Row
from hooktrainer.run.composition import composition_of
from hooktrainer.run.glossary import GLOSSARY, described
from hooktrainer.run.metric_names import ALWAYS, WITH_CRITIC, WITH_DIVERGENCE, _is_in, _made, declared_metrics
from hooktrainer.run.registry import PLUGINS

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
PLUGIN_LIST = "metric_aggregation, weight_sync, staleness, validation, log_after_collect"


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ("{use: checkpoint, keep_best: val/scor/mean}", "[5].keep_best: 'val/scor/mean' is a metric that no part of"),
        ("{use: checkpoint, keep_best: val/scor/mean}", "Did you mean 'val/score/mean'?"),
        ("{use: kl_guard, metric: actor/ppokl}", "[5].metric: 'actor/ppokl' is a metric that no part of the run makes"),
        ("{use: loss_spike_guard, metric: actor/gradnorm}", "[5].metric: 'actor/gradnorm' is a metric that no part"),
        ("{use: kl_guard, metric: actor/kl}", "[5].metric: 'actor/kl' is a metric that no part of the run makes"),
        ("{use: kl_guard, metric: critic/vf_loss}", "[5].metric: 'critic/vf_loss' is a metric that no part of the run"),
        ("{use: kl_guard, metric: training/dynamic_sampling/kept}", "makes. Add dynamic_sampling to the plugins."),
    ],
)
def test_a_metric_that_no_part_makes_is_refused(plugins: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, f"plugins=[{PLUGIN_LIST}, {plugins}]"]) == 2
    assert message in without_sources(capsys.readouterr().err)


def test_the_score_of_validation_requires_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    plugins = "metric_aggregation, weight_sync, {use: checkpoint, keep_best: val/score/mean}"
    assert main(["plan", QUICKSTART, f"plugins=[{plugins}]"]) == 2
    heading, line = without_sources(capsys.readouterr().err).splitlines()
    assert heading == "1 fault on the command line:"
    text = "'val/score/mean' is a metric that no part of the run makes. Add validation to the plugins."
    assert line == f"  plugins[2].keep_best: {text}"
    assert main(["fit", QUICKSTART, f"plugins=[{plugins}]"]) == 2
    assert main(["plan", QUICKSTART, f"plugins=[{plugins}, validation]"]) == 0


def test_a_missing_sync_and_a_metric_are_shown_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, "plugins=[metric_aggregation, {use: kl_guard, metric: x}]"]) == 2
    assert capsys.readouterr().err.startswith("2 faults")


def test_a_metric_is_refused_unless_a_plugin_of_the_user_may_make_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import attrs\nfrom hooktrainer import Plugin, on\nfrom hooktrainer.events import StepEnd\n\n\n"
        "@attrs.define(kw_only=True)\nclass Mine(Plugin):\n    @on(StepEnd, adds=['metrics.row'])\n"
        "    def add(self, event):\n        event.record.add({'my/metric': 1.0})\n"
    )
    plugins = f"{PLUGIN_LIST}, '{tmp_path}/mine.py:Mine', {{use: kl_guard, metric: my/metric}}"
    assert main(["plan", QUICKSTART, f"plugins=[{plugins}]"]) == 0
    without = plugins.replace(f"'{tmp_path}/mine.py:Mine', ", "")
    assert main(["plan", QUICKSTART, f"plugins=[{without}]"]) == 2


DECOUPLED = (
    "{kl_coeff: 0.1, proximal_policy: recompute, adv_estimator: gae, clip_ratio_c: 3, policy_loss: decoupled_ppo}"
)
REJECTING = (
    "{kl_coeff: 0.1, proximal_policy: recompute, behaviour_weight: tis_token, rejection: {token_k1: [0.5, 2.0]}}"
)
ALL = {
    "decoupled": [f"algorithm={DECOUPLED}", "critic.use=model"],
    "rejecting": [f"algorithm={REJECTING}"],
    "reward": ["algorithm={kl_coeff: 0.1, kl_in: reward, kl_estimator: k1}"],
    "plain": ["algorithm={adv_estimator: maxrl}"],
}


@pytest.mark.parametrize("name", ALL)
def test_every_metric_of_a_run_is_known_and_reduced_as_the_glossary_says(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards = "{use: nonfinite_guard, action: rollback}, {use: kl_guard, limit: 100}, loss_spike_guard"
    more = f"dynamic_sampling, checkpoint, watchdog, disk_space, memory, {guards}"
    plugins = PLUGIN_LIST.replace("validation", "{use: validation, size: 8}")
    (tmp_path / "run.yaml").write_text(
        "task: {use: sort_digits, digits: 3}\nmodel: {use: decoder, layers: 1, width: 16, heads: 2}\n"
        "rollout: {use: thread, n: 4, max_response_length: 4}\noptim: {lr: 1e-3}\n"
        "trainer: {total_steps: 2, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2}\n"
        f"plugins: [{plugins}, {more}]\nrun: {{dir: {tmp_path}/runs}}\n"
    )
    config = load_config(tmp_path / "run.yaml", overrides=ALL[name])
    composition = composition_of(config)
    made = _made(config, composition.plan, composition.task)
    assert made is not None
    reductions: dict[str, str] = {}
    seal = Record.seal

    def recorded(record: Record, derive: Derive | None = None) -> Row:
        row = seal(record, derive)
        kinds = {key: kind.__name__.lower() for key, kind in record._reductions.items()}
        reductions.update({key: kinds.get(key, "sum" if key.startswith("nan/") else "derived") for key in row})
        return row

    monkeypatch.setattr(Record, "seal", recorded)
    build_trainer(config).fit()
    rows = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    unknown = {key for row in rows for key in row if key != "step" and not _is_in(key, made)}
    assert not unknown
    assert not {key: found for key, found in reductions.items() if described_reduction(key) != found}


def described_reduction(name: str) -> str | None:
    """Return the reduction that the glossary names for a metric."""
    doc = described(name)
    return None if doc is None else doc.reduction_of(name)


def test_every_metric_has_one_entry_in_the_glossary_and_no_entry_is_of_a_metric_that_nothing_makes() -> None:
    declared = [name for plugin in PLUGINS for name in declared_metrics(PLUGINS.resolve(plugin)) or ()]
    made = [*ALWAYS, *WITH_DIVERGENCE, *WITH_CRITIC, *declared, "rollout_corr/"]
    assert not [name for name in made if not name.endswith("/") and described(name) is None]
    assert len({doc.name for doc in GLOSSARY}) == len(GLOSSARY)
    others = {
        "actor/behaviour_weight",  # of one loss
        "actor/behaviour_weight_capfrac",
        "actor/pg_clipfrac_lower",  # with clip_ratio_c
        "critic/score/<source>/mean",  # of mixtures
        "data/groups/<source>",
        "val/score/<source>/mean",
        "rollout/servers_dropped",  # of the engine server
        "timing_s/group",
    }
    names = [doc.name.replace("*", "mean") for doc in GLOSSARY]
    assert {name for name in names if not _is_in(name, made)} <= others


def test_built_in_plugins_declare_their_metrics() -> None:
    for name in PLUGINS:
        cls = PLUGINS.resolve(name)
        adds = any('adds=["metrics.row"]' in line for line in Path(str(_source(cls))).read_text().splitlines())
        assert (cls.adds_metrics is not None) == adds


def _source(cls: type) -> str:
    import inspect

    return str(inspect.getsourcefile(cls))


MINE = """
import attrs
from hooktrainer import Plugin, on
from hooktrainer.algorithms.policy_losses import ppo_clip
from hooktrainer.events import StepEnd
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer_plugins.validation import Validation


@attrs.define(kw_only=True)
class Mine(Plugin):
    @on(StepEnd, adds=["metrics.row"])
    def add(self, event):
        event.record.add({"my/metric": 1.0})


@attrs.define(kw_only=True)
class Derived(Validation):
    pass


@attrs.define(kw_only=True)
class Listed(Mine):
    adds_metrics = ["my/metric"]


@attrs.frozen(kw_only=True)
class Engine(InlineOptions):
    pass


def loss(logprobs, proximal, advantages, mask):
    return ppo_clip(logprobs, proximal, advantages, mask)
"""


@pytest.mark.parametrize(
    ("plugins", "overrides", "reasons"),
    [
        ("FILE:Mine, {use: kl_guard, metric: x/y}", [], "plugins[5] (mine) {ANY}"),
        ("FILE:Listed, {use: kl_guard, metric: x/y}", [], "plugins[5] (listed) {ANY}"),
        ("FILE:Derived, {use: kl_guard, metric: x/y}", [], "plugins[5] (derived) {ANY}"),
        (
            "FILE:Mine, {use: kl_guard, metric: x/y}",
            ["rollout={use: FILE:Engine}"],
            "rollout.use may add any metric: it is an engine of your own",
        ),
        (
            "watchdog, {use: checkpoint, keep_best: actor/ppokl}",
            ["algorithm={policy_loss: FILE:loss, clip_ratio_low: null, clip_ratio_high: null}"],
            "algorithm.policy_loss may add any metric 'actor/...': it is a function of your own",
        ),
        ("watchdog, {use: kl_guard, metric: training/off_policy/x}", [], "names 'training/off_policy/...' {LATER}"),
        ("watchdog, {use: kl_guard, metric: timing_s/hook/x}", [], "names 'timing_s/hook/...' {LATER}"),
    ],
)  # fmt: skip
def test_plan_notes_a_metric_that_cannot_be_checked(
    tmp_path: Path, plugins: str, overrides: list[str], reasons: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    given = [f"plugins=[{PLUGIN_LIST}, {plugins}]", *overrides]
    assert main(["plan", QUICKSTART, *[text.replace("FILE:", f"{file}:") for text in given]]) == 0
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    option = "keep_best" if "keep_best" in plugins else "metric"
    assert line.startswith(f"note: plugins[6].{option} = '")
    assert " cannot be checked: " in line
    any_metric = "may add any metric: its class has no tuple adds_metrics"
    assert reasons.format(ANY=any_metric, LATER="are known only during the run") in line
    assert "note" not in out


def test_plan_notes_nothing_about_a_metric_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    plugins = f"'{file}:Mine', kl_guard, {{use: checkpoint, keep_best: val/score/mean}}"
    assert main(["plan", QUICKSTART, f"plugins=[{PLUGIN_LIST}, {plugins}]"]) == 0
    assert capsys.readouterr().err == ""
