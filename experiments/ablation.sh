#!/usr/bin/env bash
# Runs HCEF+ without each of its ingredients, at reduced scale. Run it again to resume.
# usage: experiments/ablation.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-0 1 2} rounds=${5:-8}
cfel=${CFEL:-cfel}
for seed in $seeds; do
  for without in nothing progress curve error_feedback whole_steps efficiency frequency dense_gossip; do
    option=()
    [ "$without" = nothing ] || option=(--set "scheme.options.$without=false")
    $cfel run "$(dirname "$0")/ablation-$name.toml" --resume --out "$out/without-$without/seed-$seed" \
      --set seed="$seed" --set rounds.global="$rounds" --set data.path="$data" "${option[@]}"
  done
done
echo "to print the table: python $(dirname "$0")/ablation.py $out"
