#!/usr/bin/env bash
# Teaches the bundled policy to play both roles, from random weights: about half an hour on two cores.
#
#   jobs/assets/cold_start.sh [PROGRAM] [STORE] [FOLDER]
#
# FOLDER gets the checkpoint; its `model.safetensors` is the one in `jobs/assets/policy`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=${1:-target/release/envace-jobs}
store=${2:-envace-store}
folder=${3:-target/policy}

"$program" tasks generate --store "$store" --set cold-start --seed 1 --train 12000 --held-out 96 --drift 96
"$program" sft --store "$store" --run cold-start --config jobs/assets/cold_start.toml --steps 8
"$program" sft --store "$store" --run cold-start-2 --config jobs/assets/cold_start_2.toml --steps 3
"$program" evaluate --store "$store" --run cold-start-2 --step 3
"$program" checkpoint export --store "$store" --run cold-start-2 --step 3 "$folder"
