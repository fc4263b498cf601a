"""The budgets of an experiment as options for `cfel run`, so that runs with other settings can share them.

    python experiments/budget.py FILE [KEY=VALUE ...]

The keys are those of `--set`. Budgets that are a share of what CEF uses depend on the batch, the rounds and
the costs; a run that changes those gets the budgets of the one that does not.
"""

import sys
from pathlib import Path

from cfel.experiment import load_experiment
from cfel.plugins import ANY_CODE

if __name__ == "__main__":
    file, *changes = sys.argv[1:]
    budget = load_experiment(Path(file), tuple(changes), ANY_CODE).build_setting().budget
    print(f"--set budget.seconds={budget.seconds} --set budget.joules={budget.joules}")
