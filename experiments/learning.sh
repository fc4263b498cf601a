#!/usr/bin/env bash
# Runs CEF and HCEF+ at reduced scale with one choice about learning changed at a time: batches and local steps of the
# same total cost, momentum, schedules, averages of models. Use seeds that are reported nowhere else. JOBS runs (default
# 2) go side by side. Run it again to resume.
# usage: experiments/learning.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-10 11} rounds=${5:-12}
file=$(dirname "$0")/ablation-$name.toml
# A step on half a batch takes half the time and energy, and a learning rate smaller by √2.
case $name in
  cifar10) half="data.batch=25 local.learning_rate=0.035 fleet.conditions.seconds_gigahertz=75 fleet.conditions.alpha_joules=0.075" ;;
  femnist) half="data.batch=25 local.learning_rate=0.07 fleet.conditions.seconds_gigahertz=75 fleet.conditions.alpha_joules=0.75" ;;
esac
rows=(
  "nothing"
  "half_batch-more_steps $half rounds.local=10"
  "half_batch-more_rounds $half rounds.edge=10"
  "nesterov local.nesterov=true"
  "average aggregation.average=0.5"
)
for seed in $seeds; do
  for row in "${rows[@]}"; do
    for scheme in cef hcef_plus; do
      read -r label changes <<<"$row"
      sets=""
      for change in $changes; do sets="$sets --set $change"; done
      echo "--out $out/$label/$scheme/seed-$seed --set seed=$seed --set scheme.name=$scheme $sets"
    done
  done
done | xargs -P "${JOBS:-2}" -I{} sh -c "${CFEL:-cfel} run $file --resume {} --set data.path=$data \
  --set data.held_out=0.1 --set rounds.global=$rounds --set fleet.conditions.channel_floor=0.01 ${EXTRA:-}"
