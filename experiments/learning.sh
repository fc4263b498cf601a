#!/usr/bin/env bash
# Runs CEF and HCEF+ at reduced scale until the same budgets are used up, with one choice about learning changed at a
# time, on held-out samples. Use seeds that are reported nowhere else. JOBS runs (default 2) go side by side. Run it
# again to resume.
# usage: experiments/learning.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-10 11} rounds=${5:-12}
here=$(dirname "$0")
file=$here/ablation-$name.toml
# Steps on half a batch and on a fifth of it, with what they cost (0.525 and 0.24 of a full one, or 0.625 and 0.4, with
# the fixed part `local.step_overhead`).
costs() { echo "data.batch=$1 fleet.conditions.seconds_gigahertz=$2 fleet.conditions.alpha_joules=$3"; }
case $name in
  cifar10) half="$(costs 25 78.75 0.07875) local.learning_rate=0.035" fifth=$(costs 10 36 0.036) twice=0.1 ;;
  femnist) half="$(costs 25 93.75 0.9375) local.learning_rate=0.07" fifth=$(costs 10 60 0.6) twice=0.2 ;;
esac
shared="local.algorithm=shared_momentum" many="rounds.global=100" small="scheme.steps=small_batches"
both=(
  "nothing"
  "nesterov local.nesterov=true"
  "average aggregation.average=0.5"
  "half_batch-more_rounds $half rounds.edge=10"
  "shared $shared"
)
cef=("small $fifth $many" "small-shared $fifth $shared $many")
hcef_plus=(
  "small $small $many"
  "small-shared $small $shared $many"
  "small-shared-smallest_tenth $small $shared $many scheme.options.least_batch=0.1"
  "small-shared-horizon_50 $small $shared $many scheme.options.horizon=50.0"
  "small-shared-noise_0.3 $small $shared $many scheme.options.noise=0.3"
  "small-shared-twice_the_rate $small $shared $many local.learning_rate=$twice"
)
common="rounds.global=$rounds rounds.stop=budget fleet.conditions.channel_floor=0.01 simulation.accounting=realised data.held_out=0.1"
for seed in $seeds; do
  # shellcheck disable=SC2086 — several settings
  budget=$("${PYTHON:-python}" "$here/budget.py" "$file" seed="$seed" $common)
  for scheme in cef hcef_plus; do
    declare -n own=$scheme
    for row in "${both[@]}" "${own[@]}"; do
      read -r label changes <<<"$row"
      changes="seed=$seed data.path=$data $common scheme.name=$scheme $changes"
      changes=${changes%"${changes##*[![:space:]]}"}
      echo "--out $out/$label/$scheme/seed-$seed $budget --set ${changes// / --set }"
    done
  done
done | xargs -P "${JOBS:-2}" -I{} sh -c "${CFEL:-cfel} run $file --resume {} ${EXTRA:-}"
echo "to print the table: python $here/learning.py $out TARGET"
