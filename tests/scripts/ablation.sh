#!/usr/bin/env bash
# The ablation of the method on the bundled policy and world, over three seeds: standard GRPO on the actor with the
# rehearsal role frozen, weights of its own for each role, and weights that both share, which is EnvACE. All have the same
# tasks, trajectories, steps and rates. Beside them, in the time that EnvACE took, supervised training continued on recorded
# dialogues of the kind that the policy was taught with.
#
#   tests/scripts/ablation.sh [PROGRAM] [STORE] [STEPS]
#
# A stopped script goes on where it was, but for the times, which are then those of what was left.
set -euo pipefail

program=${1:-target/release/envace-jobs}
store=${2:-envace-store}
steps=${3:-16}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
own='[roles.rehearsal]\ncheckpoint = "bundled"\n'

# The tasks of the quickstart, with the dialogues of an operator who slips.
"$program" tasks generate --store "$store" --set logs --seed 0 --slips 50 --train 600 --held-out 192 --drift 96

arm() { # name, seed, what to put below the configuration, roles that are trained
    { echo "seed = $2"; cat jobs/assets/quickstart.toml; printf "$3"; } > "$work/$1.toml"
    sed -i -e 's/^set = .*/set = "logs"/' -e "s/^\[evaluate\]/[evaluate]\nevery = $steps/" \
        -e "s/^\[update\]/[update]\ntrain_roles = [$4]/" "$work/$1.toml"
    local from
    from=$(date +%s)
    "$program" run --store "$store" --run "$1-$2" --steps "$steps" --config "$work/$1.toml" > /dev/null
    took=$(($(date +%s) - from))
    echo "seed $2: $1 took $took s" >&2
}

for seed in 0 1 2; do
    arm frozen "$seed" "$own" '"actor"'
    arm separate "$seed" "$own" '"actor", "rehearsal"'
    arm shared "$seed" '' '"actor", "rehearsal"'

    # Steps of supervised training until the time of the last arm is used up.
    { echo "seed = $seed"; cat jobs/assets/quickstart.toml; } | sed -e 's/^set = .*/set = "logs"/' > "$work/sft.toml"
    printf '[sft]\noptimizer_steps = 20\nlearning_rate = 3e-4\nmicro_batch_tokens = 8192\n' >> "$work/sft.toml"
    from=$(date +%s)
    n=0
    while [ $(($(date +%s) - from)) -lt "$took" ]; do
        n=$((n + 1))
        "$program" sft --store "$store" --run "sft-$seed" --steps "$n" --config "$work/sft.toml" > /dev/null
    done
    "$program" evaluate --store "$store" --run "sft-$seed" --step "$n" > /dev/null
done 2> >(grep -v "tokens/s" >&2)

"$program" sql --store "$store" "
    SELECT split,
           CASE WHEN step = 0 THEN 'before' WHEN run LIKE 'sft%' THEN 'supervised training continued'
                WHEN run LIKE 'frozen%' THEN 'standard GRPO, rehearsal role frozen'
                WHEN run LIKE 'separate%' THEN 'weights of its own for each role' ELSE 'EnvACE, shared weights' END AS arm,
           count(*) AS seeds, round(100 * avg(success_rate), 1) AS success_percent,
           round(100 * min(success_rate), 1) AS least, round(100 * max(success_rate), 1) AS most
    FROM evaluations WHERE family = 'all' AND run ~ '^(shared|separate|frozen|sft)-[0-9]+$'
      AND (step = 0 AND run LIKE 'shared%' OR step > 0)
    GROUP BY split, arm ORDER BY split DESC, success_percent"
