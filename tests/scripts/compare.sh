#!/usr/bin/env bash
# What EnvACE on the bundled policy is worth beside its neighbors, over three seeds: EnvACE with both roles trained, with
# the rehearsal role frozen, and supervised training continued on recorded dialogues of the kind that the policy was
# taught with, each with about the same time.
#
#   tests/scripts/compare.sh [PROGRAM] [STORE] [STEPS]
set -euo pipefail

program=${1:-target/release/envace-jobs}
store=${2:-envace-store}
config=jobs/assets/quickstart.toml
steps=${3:-16}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The tasks of the quickstart, with the dialogues of an operator who slips.
"$program" tasks generate --store "$store" --set logs --seed 0 --slips 50 --train 600 --held-out 192 --drift 96

for seed in 0 1 2; do
    from=$(date +%s)
    "$program" quickstart --store "$store" --seed "$seed" --steps "$steps" > /dev/null
    took=$(($(date +%s) - from))
    echo "seed $seed: EnvACE took $took s" >&2

    { echo "seed = $seed"; cat "$config"; } > "$work/base.toml"
    sed -e "s/^\[evaluate\]/[evaluate]\nevery = $steps/" \
        -e 's/^\[update\]/[update]\ntrain_roles = ["actor"]/' "$work/base.toml" > "$work/frozen.toml"
    printf '[roles.rehearsal]\ncheckpoint = "bundled"\n' >> "$work/frozen.toml"
    from=$(date +%s)
    "$program" run --store "$store" --run "frozen-$seed" --steps "$steps" --config "$work/frozen.toml"
    echo "seed $seed: frozen rehearsal took $(($(date +%s) - from)) s" >&2

    # Steps of supervised training until the time is used up.
    sed -e 's/^set = .*/set = "logs"/' "$work/base.toml" > "$work/sft.toml"
    printf '[sft]\noptimizer_steps = 20\nlearning_rate = 3e-4\nmicro_batch_tokens = 8192\n' >> "$work/sft.toml"
    from=$(date +%s)
    n=0
    while [ $(($(date +%s) - from)) -lt "$took" ]; do
        n=$((n + 1))
        "$program" sft --store "$store" --run "sft-$seed" --steps "$n" --config "$work/sft.toml"
    done
    "$program" evaluate --store "$store" --run "sft-$seed" --step "$n"
done 2> >(grep -v "tokens/s" >&2)

"$program" sql --store "$store" "
    SELECT split, CASE WHEN step = 0 THEN 'before' ELSE regexp_replace(run, '-[0-9]+$', '') END AS arm,
           count(*) AS seeds, round(100 * avg(success_rate), 1) AS success_percent,
           round(100 * min(success_rate), 1) AS least, round(100 * max(success_rate), 1) AS most
    FROM evaluations WHERE family = 'all' AND run ~ '^(quickstart|frozen|sft)-[0-9]+$'
      AND (step = 0 AND run LIKE 'quickstart%' OR step > 0)
    GROUP BY split, arm ORDER BY split DESC, success_percent"
