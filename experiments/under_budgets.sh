#!/usr/bin/env bash
# Runs schemes and local algorithms of the field at reduced scale until the same budgets are used up, in realised
# time. JOBS runs (default 2) go side by side, one worker each. Run it again to resume.
# usage: experiments/under_budgets.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-0 1 2} rounds=${5:-12}
here=$(dirname "$0")
file=$here/ablation-$name.toml
# A step on 10 of 50 samples costs 0.05 + 0.95/5 = 0.24 of a full one on CIFAR-10, 0.18 + 0.82/5 = 0.344 on FEMNIST, as
# HCEF+ is charged for it (`local.step_overhead`). The rows in results/under-budgets-femnist were charged so; measured on
# a quiet core later, a step takes 0.41, and the preset has charged 0.25 + 0.75/5 = 0.4 since. There are more such rounds
# in a budget.
case $name in
  cifar10) fifth="data.batch=10 fleet.conditions.seconds_gigahertz=36 fleet.conditions.alpha_joules=0.036 rounds.global=100" ;;
  femnist) fifth="data.batch=10 fleet.conditions.seconds_gigahertz=51.6 fleet.conditions.alpha_joules=0.516 rounds.global=100" ;;
esac
case $name in cifar10) overhead=0.05 ;; femnist) overhead=0.18 ;; esac
shared="local.algorithm=shared_momentum"
small="scheme.steps=small_batches local.step_overhead=$overhead rounds.global=100"
rows=(
  "cef scheme.name=cef"
  "cef_c scheme.name=cef_c"
  "cef_f scheme.name=cef_f"
  "mll_sgd scheme.name=mll_sgd"
  "p_fedavg scheme.name=p_fedavg"
  "matcha scheme.name=matcha"
  "oort scheme.name=oort"
  "anycost scheme.name=anycost"
  "fedluck scheme.name=fedluck"
  "nori scheme.name=nori"
  "cef-fedbuff scheme.name=cef aggregation.buffer=2"
  "hcef scheme.name=hcef"
  "hcef_plus scheme.name=hcef_plus"
  "hcef_plus-fedprox scheme.name=hcef_plus local.algorithm=fedprox"
  "cef-shared scheme.name=cef $shared"
  "cef-small-shared scheme.name=cef $shared $fifth"
  "p_fedavg-small-shared scheme.name=p_fedavg $shared $fifth"
  "hcef_plus-shared scheme.name=hcef_plus $shared"
  "hcef_plus-small scheme.name=hcef_plus $small"
  "hcef_plus-small-shared scheme.name=hcef_plus $shared $small"
)
common="rounds.global=$rounds rounds.stop=budget fleet.conditions.channel_floor=0.01 simulation.accounting=realised"
for seed in $seeds; do
  # shellcheck disable=SC2086 — several settings
  budget=$("${PYTHON:-python}" "$here/budget.py" "$file" seed="$seed" $common)
  for row in "${rows[@]}"; do
    read -r label changes <<<"$row"
    changes="seed=$seed data.path=$data $common $changes"
    echo "--out $out/$label/seed-$seed $budget --set ${changes// / --set }"
  done
done | xargs -P "${JOBS:-2}" -I{} sh -c "${CFEL:-cfel} run $file --resume {} ${EXTRA:-}"
echo "to print the table: python $here/under_budgets.py $out TARGET"
