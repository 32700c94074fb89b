"""All metrics of the trainer and of its plugins: unit, reduction and meaning.

A name may have a placeholder such as `<plugin>`, which stands for one or more segments, and may end in `*`, which
stands for `mean`, `max` and `min`.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import attrs

SPREAD: Final = ("mean", "max", "min")
"""The last segments that `*` stands for; each is its own reduction."""
Unit: TypeAlias = Literal[
    "", "answers", "buckets", "bytes", "GB", "groups", "ms", "nats", "s", "steps", "tokens", "tokens/s", "updates"
]
"""Unit of a metric; empty for ratios, scores and losses."""
Reduction: TypeAlias = Literal["mean", "sum", "max", "min", "last", "rate", "counts", "derived", "by name"]
"""How values are merged into a row: `derived` is computed from others, `by name` is what the last segment says."""


@attrs.frozen
class MetricDoc:
    """A metric, or several of one kind."""

    name: str
    unit: Unit
    reduction: Reduction
    meaning: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The names that it describes."""
        text = re.sub("<[^>]+>", "\0", self.name)
        spread = f"({'|'.join(SPREAD)})"
        return re.compile(re.escape(text).replace(re.escape("\0"), ".+").replace(re.escape("*"), spread))

    def reduction_of(self, name: str) -> str:
        """Return the reduction of one of the names that it describes."""
        return name.rpartition("/")[2] if self.reduction == "by name" else self.reduction


GLOSSARY: Final = (
    # learner: the policy
    MetricDoc("actor/pg_loss", "", "mean", "policy loss, aggregated as `loss_agg_mode` says"),
    MetricDoc("actor/pg_clipfrac", "", "mean", "share of tokens whose ratio was clipped"),
    MetricDoc("actor/pg_clipfrac_lower", "", "mean", "share of tokens that `clip_ratio_c` limited"),
    MetricDoc("actor/pg_clampfrac", "", "mean", "share of tokens whose log-ratio was clamped against overflow"),
    MetricDoc("actor/ppo_kl", "nats", "mean", "proximal minus current log-probability: k1 of their KL divergence"),
    MetricDoc("actor/log_ratio_abs", "nats", "mean", "size of that difference"),
    MetricDoc("actor/entropy", "nats", "mean", "entropy of the policy per token, at the sampling temperature"),
    MetricDoc("actor/grad_norm", "", "mean", "norm of the gradient before clipping"),
    MetricDoc("actor/lr", "", "last", "learning rate"),
    MetricDoc("actor/kl", "nats", "mean", "divergence from the reference policy, by `kl_estimator`"),
    MetricDoc("actor/kl_coef", "", "last", "coefficient of that divergence"),
    MetricDoc("actor/kl_loss", "", "mean", "loss of that divergence, before its coefficient"),
    MetricDoc("actor/reward_kl_penalty", "", "mean", "divergence that rewards are reduced by, before its coefficient"),
    MetricDoc("actor/behaviour_weight", "", "mean", "weight of `decoupled_ppo` for the policy that sampled"),
    MetricDoc("actor/behaviour_weight_capfrac", "", "mean", "share of tokens whose weight was limited"),
    MetricDoc("actor/skipped_updates", "updates", "sum", "updates skipped because a loss or gradient was not finite"),
    MetricDoc("actor/updates_without_tokens", "updates", "sum", "mini-batches without a token to train on"),
    MetricDoc("actor/loss_spikes", "updates", "sum", "updates that `loss_spike_guard` takes for spikes"),
    MetricDoc("actor/rollbacks", "updates", "sum", "rollbacks by `loss_spike_guard` or `nonfinite_guard`"),
    # learner: rewards, advantages and the critic
    MetricDoc("critic/score/*", "", "by name", "score of an answer, as the task returns it"),
    MetricDoc("critic/score/<source>/mean", "", "mean", "the same for one task of a mixture"),
    MetricDoc("critic/exact_match/mean", "", "mean", "share of answers with full marks"),
    MetricDoc("critic/rewards/*", "", "by name", "score of an answer with its penalties"),
    MetricDoc("critic/advantages/*", "", "by name", "advantage of a token"),
    MetricDoc("critic/returns/mean", "", "mean", "return that the critic learns"),
    MetricDoc("critic/values/mean", "", "mean", "value that the critic estimates"),
    MetricDoc("critic/vf_loss", "", "mean", "loss of the critic"),
    MetricDoc("critic/vf_clipfrac", "", "mean", "share of tokens whose value was clipped"),
    MetricDoc("critic/vf_explained_var", "", "mean", "share of the variance of returns that the critic explains"),
    MetricDoc("critic/grad_norm", "", "mean", "norm of the critic's gradient before clipping"),
    MetricDoc("critic/lr", "", "last", "learning rate of the critic"),
    MetricDoc("reward/<name>/mean", "", "mean", "score of one reward, or a number that it logs"),
    # learner: correction of the difference between sampler and proximal policy
    MetricDoc("rollout_corr/rollout_is_mean", "", "mean", "mean weight of a token"),
    MetricDoc("rollout_corr/rollout_is_eff_sample_size", "", "mean", "effective sample size, as a share of the tokens"),
    MetricDoc("rollout_corr/rollout_rs_masked_fraction", "", "mean", "share of tokens that `rejection` excludes"),
    MetricDoc("rollout_corr/chi2_token", "", "mean", "χ² divergence of the two policies per token"),
    MetricDoc("rollout_corr/kl", "nats", "mean", "KL divergence of the two policies, k1"),
    MetricDoc("rollout_corr/k3_kl", "nats", "mean", "KL divergence of the two policies, k3"),
    MetricDoc("rollout_corr/log_ratio_abs", "nats", "mean", "size of the difference of their log-probabilities"),
    MetricDoc("rollout_corr/clamped_fraction", "", "mean", "share of tokens whose log-ratio was clamped"),
    # lengths and data
    MetricDoc("prompt_length/*", "tokens", "by name", "length of prompts"),
    MetricDoc("response_length/*", "tokens", "by name", "length of answers, without tokens of tools"),
    MetricDoc("response_length/clip_ratio", "", "mean", "share of answers that were cut off"),
    MetricDoc("global_seqlen/max", "tokens", "max", "trained tokens of the largest update"),
    MetricDoc("global_seqlen/min", "tokens", "min", "trained tokens of the smallest update"),
    MetricDoc("global_seqlen/minmax_diff", "tokens", "derived", "their difference"),
    MetricDoc("data/filtered_too_long", "", "sum", "prompts that were left out because they are too long"),
    MetricDoc("data/groups/<source>", "groups", "sum", "trained groups of one task of a mixture"),
    # rollouts and the replay buffer
    MetricDoc("rollout/num_tokens", "tokens", "sum", "tokens that were generated"),
    MetricDoc("rollout/num_trajectories", "answers", "sum", "answers that were generated"),
    MetricDoc("rollout/restarts", "", "sum", "workers that died and were replaced"),
    MetricDoc("rollout/servers_dropped", "", "sum", "servers that could not be reached"),
    MetricDoc("replay/pending", "groups", "last", "groups that no worker has claimed"),
    MetricDoc("replay/running", "groups", "last", "groups that are being generated"),
    MetricDoc("replay/finished", "groups", "last", "groups that wait to be sampled"),
    MetricDoc("replay/evicted_capacity", "groups", "sum", "finished groups evicted because the buffer was full"),
    MetricDoc("replay/handed_in_late", "groups", "sum", "groups handed in after they had timed out"),
    MetricDoc("replay/dropped_repeatedly", "", "sum", "prompts dropped as stale three times without being trained"),
    MetricDoc("replay/failed/<reason>", "groups", "last", "groups of the run that failed, by reason"),
    MetricDoc("ledger/groups/dispatched", "groups", "last", "groups dispatched in the run"),
    MetricDoc("ledger/groups/outstanding", "groups", "last", "groups dispatched and not ended"),
    MetricDoc(
        "ledger/groups/<fate>", "groups", "last", "groups of the run by fate: generated, trained, dropped/<reason>"
    ),
    MetricDoc("ledger/trajectories/<fate>", "answers", "last", "their answers"),
    MetricDoc("ledger/tokens/<fate>", "tokens", "last", "their tokens"),
    MetricDoc("ledger/imbalance", "", "last", "error of the ledger; anything but 0 is a bug"),
    # staleness
    MetricDoc("training/off_policy/staleness/*", "steps", "by name", "staleness of trained groups; 1 is the smallest"),
    MetricDoc("training/off_policy/in_flight/*", "steps", "by name", "part of it while groups were generated"),
    MetricDoc("training/off_policy/in_queue/*", "steps", "by name", "part of it while groups waited in the buffer"),
    MetricDoc("training/off_policy/updates_behind/*", "updates", "by name", "staleness in updates"),
    MetricDoc("training/off_policy/trajectory_spans/*", "", "by name", "versions that one answer was sampled from"),
    MetricDoc("training/off_policy/evicted_samples", "groups", "sum", "groups evicted as stale"),
    MetricDoc("training/off_policy/evicted_samples_staleness/*", "steps", "by name", "their staleness"),
    MetricDoc("training/off_policy/length_bias", "", "last", "mean length of trained over generated answers"),
    # dynamic sampling
    MetricDoc("training/dynamic_sampling/kept", "groups", "sum", "finished groups whose scores differ"),
    MetricDoc("training/dynamic_sampling/dropped", "groups", "sum", "groups dropped because all scores are equal"),
    MetricDoc(
        "training/dynamic_sampling/passed", "groups", "sum", "such groups beyond `max_dropped`, which are trained"
    ),
    MetricDoc("training/dynamic_sampling/dropped_share", "", "rate", "dropped groups over finished ones"),
    MetricDoc("training/dynamic_sampling/dropped_scores", "groups", "counts", "dropped groups by their score"),
    MetricDoc("training/dynamic_sampling/unfiltered_score/mean", "", "mean", "score before groups are dropped"),
    # steps, validation and weight sync
    MetricDoc("training/global_step", "", "last", "number of the step"),
    MetricDoc("training/partial_iterations", "updates", "last", "updates of a step that ended early"),
    MetricDoc("training/unscored", "", "last", "1 in the row of a step that a failure left without validation"),
    MetricDoc("reward_watch/length_correlation", "", "last", "correlation of reward and length over the last steps"),
    MetricDoc("val/score/mean", "", "mean", "score of greedy answers to held-out prompts"),
    MetricDoc("val/score/<source>/mean", "", "mean", "the same for one task of a mixture"),
    MetricDoc("val/exact_match/mean", "", "mean", "share of these answers with full marks"),
    MetricDoc("val/response_length/mean", "tokens", "mean", "their length"),
    MetricDoc("weight_sync/bytes", "bytes", "sum", "weights that were copied"),
    MetricDoc("weight_sync/buckets", "buckets", "sum", "parts in which they were copied"),
    MetricDoc("weight_sync/canary_error", "nats", "max", "largest difference of a log-probability after a sync"),
    # time, speed and memory
    MetricDoc("timing_s/step", "s", "sum", "from the start of a step until its row is complete"),
    MetricDoc("timing_s/gen", "s", "sum", "the loop waited for groups; with `inline`, it generated them"),
    MetricDoc("timing_s/update_actor", "s", "sum", "updates"),
    MetricDoc("timing_s/weight_sync", "s", "sum", "weight syncs"),
    MetricDoc("timing_s/testing", "s", "sum", "validation"),
    MetricDoc("timing_s/hook/<plugin>", "s", "sum", "handlers of a plugin, nested signals excluded"),
    MetricDoc("timing_s/generate", "s", "sum", "workers generated, summed over workers"),
    MetricDoc("timing_s/engine_wait_groups", "s", "sum", "workers waited for groups, summed over workers"),
    MetricDoc("timing_s/engine_wait_weights", "s", "sum", "workers waited for a weight sync, summed over workers"),
    MetricDoc("timing_s/group", "s", "counts", "groups by the time from claim to hand-in, five values per decade"),
    MetricDoc("timing_per_token_ms/update_actor", "ms", "derived", "updates, for each trained token"),
    MetricDoc("perf/time_per_step", "s", "derived", "`timing_s/step`"),
    MetricDoc("perf/throughput", "tokens/s", "derived", "trained tokens per second and device"),
    MetricDoc("perf/total_num_tokens", "tokens", "sum", "trained prompts and answers, without padding"),
    MetricDoc(
        "perf/rollout_tokens_per_worker_second", "tokens/s", "rate", "generated tokens per busy second of a worker"
    ),
    MetricDoc("perf/idle_ratio", "", "derived", "`timing_s/gen` over `timing_s/step`"),
    MetricDoc("perf/goodput/learner/<phase>", "", "derived", "share of the step that the loop spent on a phase"),
    MetricDoc(
        "perf/goodput/engine/<phase>", "", "derived", "share of the workers' time; `wasted`: share of dropped tokens"
    ),
    MetricDoc("perf/disk_free_gb", "GB", "last", "free space for checkpoints"),
    MetricDoc("perf/max_memory_process_gb", "GB", "last", "peak of the process"),
    MetricDoc("perf/max_memory_allocated_gb", "GB", "last", "peak of tensors on a GPU, the largest of several GPUs"),
    MetricDoc("perf/max_memory_reserved_gb", "GB", "last", "peak that PyTorch reserved on a GPU, as above"),
    MetricDoc("nan/<metric>", "", "sum", "values of a metric that were NaN and are left out of it"),
)


def described(name: str) -> MetricDoc | None:
    """Return the description of a metric: the one with the longest name that fits."""
    found = [doc for doc in GLOSSARY if doc.pattern.fullmatch(name)]
    return max(found, key=lambda doc: ("<" not in doc.name, len(doc.name)), default=None)
