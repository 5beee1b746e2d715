#!/bin/sh
# Runs the main command ten times, each with a seed of its own, and keeps the
# profiles beside this file. About forty minutes; the machine must be quiet.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for run in 1 2 3 4 5 6 7 8 9 10; do
    out=$(mktemp -d)
    hztune --workload larson --threads 32 --seed "$run" --out "$out/study"
    cp "$out/study/profile.json" "$here/profile-$run.json"
    rm -r "$out"
done
