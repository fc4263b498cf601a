#!/usr/bin/env bash
# Runs schemes and local algorithms of the field at reduced scale until the same budgets are used up, in realised
# time. JOBS runs (default 2) go side by side, one worker each. Run it again to resume.
# usage: experiments/under_budgets.sh cifar10|femnist DATA OUT [SEEDS] [GLOBAL_ROUNDS]
set -euo pipefail
name=$1 data=$2 out=$3 seeds=${4:-0 1 2} rounds=${5:-12}
file=$(dirname "$0")/ablation-$name.toml
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
)
for seed in $seeds; do
  for row in "${rows[@]}"; do
    read -r label changes <<<"$row"
    echo "--out $out/$label/seed-$seed --set seed=$seed --set ${changes// / --set }"
  done
done | xargs -P "${JOBS:-2}" -I{} sh -c "${CFEL:-cfel} run $file --resume {} --set data.path=$data \
  --set rounds.global=$rounds --set rounds.stop=budget --set fleet.conditions.channel_floor=0.01 \
  --set simulation.accounting=realised ${EXTRA:-}"
echo "to print the table: python $(dirname "$0")/under_budgets.py $out TARGET"
