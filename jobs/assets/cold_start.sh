#!/usr/bin/env bash
# Teaches the bundled policy to play both roles, from random weights: about an hour on two cores.
#
#   jobs/assets/cold_start.sh [PROGRAM] [STORE] [FOLDER]
#
# FOLDER gets the checkpoint; its `model.safetensors` is the one in `jobs/assets/policy`. Called again after a stop,
# it goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=${1:-target/release/envace-jobs}
store=${2:-envace-store}
folder=${3:-target/policy}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tasks() { # set, seed, percent of slips
    "$program" tasks generate --store "$store" --set "$1" --seed "$2" --slips "$3" \
        --train 12000 --held-out 96 --drift 96
}

phase() { # run, seed, policy it begins with, task set, rate, micro batch, warm-up, length of the schedule, steps
    sed -e "s|^seed = .*|seed = $2|" -e "s|^checkpoint = .*|checkpoint = \"$3\"|" -e "s|^set = .*|set = \"$4\"|" \
        -e "s|^learning_rate = .*|learning_rate = $5|" -e "s|^micro_batch_tokens = .*|micro_batch_tokens = $6|" \
        -e "s|^warmup_steps = .*|warmup_steps = $7|" -e "s|^total_steps = .*|total_steps = $8|" \
        jobs/assets/cold_start.toml > "$work/$1.toml"
    "$program" sft --store "$store" --run "$1" --config "$work/$1.toml" --steps "$9"
}

# First the language of the desk and the copying of names, from an operator without fault; then what real logs are
# like, from an operator who breaks the rule at hand in half of its decisions.
tasks cold-start 1 0
tasks careless 2 50
phase cold-start 0 untrained:0 cold-start 3e-3 8192 40 1000 8
phase cold-start-2 2 run:cold-start cold-start 2e-3 4096 10 600 4
phase careless 3 run:cold-start-2 careless 2e-3 4096 10 600 6
"$program" evaluate --store "$store" --run careless --step 6
"$program" checkpoint export --store "$store" --run careless --step 6 "$folder"
