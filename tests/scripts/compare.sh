#!/usr/bin/env bash
# What EnvACE on the bundled policy is worth beside its neighbors, over three seeds: EnvACE with both roles trained, with
# the rehearsal role frozen, and supervised training continued, each with about the same time.
#
#   tests/scripts/compare.sh [PROGRAM] [STORE] [STEPS]
set -euo pipefail

program=${1:-target/release/envace-jobs}
store=${2:-envace-store}
steps=${3:-16}
config=jobs/assets/quickstart.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for seed in 0 1 2; do
    from=$(date +%s)
    "$program" quickstart --store "$store" --seed "$seed" --steps "$steps" > /dev/null
    took=$(($(date +%s) - from))
    echo "seed $seed: envace took $took s"

    { echo "seed = $seed"; sed 's/^every = .*//' "$config"; } > "$work/base.toml"
    sed -e "s/^\[evaluate\]/[evaluate]\nevery = $steps/" \
        -e 's/^\[update\]/[update]\ntrain_roles = ["actor"]/' "$work/base.toml" > "$work/frozen.toml"
    printf '[roles.rehearsal]\ncheckpoint = "bundled"\n' >> "$work/frozen.toml"
    "$program" run --store "$store" --run "frozen-$seed" --steps "$steps" --config "$work/frozen.toml"

    # Steps of supervised training until the time is used up.
    { cat "$work/base.toml"; printf '[sft]\noptimizer_steps = 20\nlearning_rate = 3e-4\nmicro_batch_tokens = 8192\n'; } \
        > "$work/sft.toml"
    from=$(date +%s)
    n=0
    while [ $(($(date +%s) - from)) -lt "$took" ]; do
        n=$((n + 1))
        "$program" sft --store "$store" --run "sft-$seed" --steps "$n" --config "$work/sft.toml"
    done
    "$program" evaluate --store "$store" --run "sft-$seed" --step "$n" --config "$work/sft.toml"
done

"$program" sql --store "$store" "
    SELECT split, regexp_replace(run, '-[0-9]+$', '') AS arm, count(*) AS seeds,
           round(100 * avg(success_rate), 1) AS success_percent,
           round(100 * min(success_rate), 1) AS least, round(100 * max(success_rate), 1) AS most
    FROM evaluations WHERE family = 'all' AND step > 0 GROUP BY split, arm ORDER BY split DESC, arm"
