#!/usr/bin/env bash
# Runs CEF, HCEF and HCEF+ at reduced scale with one choice changed at a time: what does the gain over CEF depend
# on? Run it again to resume.
# usage: experiments/differences.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-0} rounds=${5:-12}
cfel=${CFEL:-cfel}
case $name in
  cifar10) rate=0.015 alpha=1.5 ;;
  femnist) rate=0.03 alpha=0.15 ;;
esac
changes=(
  none
  fleet.conditions.alpha_joules=$alpha
  local.momentum_state=reset
  local.momentum=0
  simulation.accounting=realised
  fleet.conditions.channel_floor=0.001
  local.estimator=fresh
  local.learning_rate=$rate
)
for change in "${changes[@]}"; do
  option=()
  [ "$change" = none ] || option=(--set "$change")
  for seed in $seeds; do
    for scheme in cef hcef hcef_plus; do
      $cfel run "$(dirname "$0")/ablation-$name.toml" --resume --out "$out/$change/$scheme/seed-$seed" \
        --set seed="$seed" --set rounds.global="$rounds" --set data.path="$data" --set scheme.name=$scheme \
        "${option[@]}"
    done
  done
  $cfel report "$out/$change"
done
