"""Train from Python: load a configuration, change it, fit, read the rows.

python examples/01_train.py [key=value ...]
"""

import json
import sys
from pathlib import Path

from hooktrainer import build_trainer, load_config

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.yaml"


def main() -> None:
    """Train for a few steps and print the score of each validation."""
    overrides = ["run.name=example_01", "trainer.total_steps=10", "plugins.validation.every=5", *sys.argv[1:]]
    config = load_config(CONFIG, overrides=overrides)
    result = build_trainer(config).fit()
    print(f"{result.status}: {result.reason}")
    with (config.run.dir / config.run.name / "metrics.jsonl").open() as lines:
        for row in map(json.loads, lines):
            if "val/score/mean" in row:
                print(
                    f"step {row['step']}: score {row['val/score/mean']:.3f}, staleness "
                    f"{row['training/off_policy/staleness/mean']:.2f}"
                )


if __name__ == "__main__":
    main()
