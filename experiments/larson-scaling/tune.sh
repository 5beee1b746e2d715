#!/bin/sh
# Finds the profile of the arm "hz tuned"; about a minute.
#   tune.sh [TIME]    for the search; 60s when it is left out
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

hztune --workload larson --threads 16 --budget "${1:-60s}" --seed 1 --out "$out/larson"
cp "$out/larson/profile.json" "$here/tuned.json"
