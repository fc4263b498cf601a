#!/usr/bin/env bash
# CEF, HCEF and HCEF+ at reduced scale with one choice changed at a time: what does the gain over CEF hang on?
# usage: experiments/differences.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-0} rounds=${5:-12}
cfel=${CFEL:-cfel}
declare -A changes=(
  [as-it-is]=seed
  [momentum-reset]=local.momentum_state=reset
  [no-momentum]=local.momentum=0
  [realised-accounts]=simulation.accounting=realised
  [channel-floor-0.001]=fleet.conditions.channel_floor=0.001
  [fresh-estimates]=local.estimator=fresh
  [a-third-of-the-rate]=rate
  [other-alpha]=alpha
)
case $name in
  cifar10) rate=0.015 alpha=1.5 ;;
  femnist) rate=0.03 alpha=0.15 ;;
esac
for seed in $seeds; do
  for change in "${!changes[@]}"; do
    case ${changes[$change]} in
      seed) option=seed=$seed ;;
      rate) option=local.learning_rate=$rate ;;
      alpha) option=fleet.conditions.alpha_joules=$alpha ;;
      *) option=${changes[$change]} ;;
    esac
    for scheme in cef hcef hcef_plus; do
      $cfel run "$(dirname "$0")/ablation-$name.toml" --resume --out "$out/$change/$scheme/seed-$seed" \
        --set seed="$seed" --set rounds.global="$rounds" --set data.path="$data" --set scheme.name=$scheme \
        --set "$option"
    done
  done
done
