#!/usr/bin/env bash
# Kills a run at random moments, lets it go on, and compares what it leaves with an uninterrupted run, byte for byte.
#
#   tests/scripts/kill_and_resume.sh [PROGRAM] [KILLS] [STEPS]
set -euo pipefail

program=${1:-target/release/envace-jobs}
kills=${2:-20}
steps=${3:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/run.toml" <<'TOML'
[tasks]
per_step = 8
per_part = 2
[rollout]
group_size = 4
[rollout.actor]
max_new_tokens = 96
[rollout.rehearsal]
max_new_tokens = 96
[rollout.episode.rehearsal]
wording = "compact"
whitelist = "called"
few_shot = "none"
latest_message = false
[update]
learning_rate = 3e-4
TOML

begin() {
    "$program" tasks generate --store "$work/$1" --train 40 --held-out 4 --drift 4 2> /dev/null
}
run() {
    "$program" run --store "$work/$1" --run r --steps "$steps" --config "$work/run.toml"
}
# Every table but timings, which say what the clock said, and every checkpoint.
digests() {
    (cd "$work/$1" && find tables checkpoints -type f ! -path 'tables/timings/*' -print0 | sort -z | xargs -0 sha256sum)
}

begin straight
from=$(date +%s%N)
run straight 2> /dev/null
took=$((($(date +%s%N) - from) / 1000000))
echo "uninterrupted: $took ms"

# Kills are spread over the time that an uninterrupted run takes, and each goes on from the last.
begin killed
killed=0
while [ "$killed" -lt "$kills" ]; do
    run killed 2> /dev/null &
    pid=$!
    sleep "$(awk -v most="$took" -v draw="$RANDOM" -v kills="$kills" 'BEGIN { printf "%.3f", 0.05 + draw / 32768 * most * 4 / kills / 1000 }')"
    if ! kill -9 "$pid" 2> /dev/null; then
        # It finished before the kill: begin again, for the kills that are left.
        wait "$pid" || true
        diff <(digests straight) <(digests killed)
        rm -rf "$work/killed"
        begin killed
        continue
    fi
    wait "$pid" 2> /dev/null || true
    killed=$((killed + 1))
done
run killed 2> /dev/null
diff <(digests straight) <(digests killed)
echo "$killed kills: $(digests straight | wc -l) files are identical"
