#!/bin/sh
# Finds the profiles that this experiment applies to each other's workloads; about 6 minutes.
#   tune.sh [TIME]    for each search; 60s when it is left out
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

tune() {
    hztune --workload "$1" --threads "$2" --budget "$budget" --seed 1 --out "$out/$1"
    cp "$out/$1/profile.json" "$here/$1.json"
}

budget=${1:-60s}
tune lifo 1
tune larson 4
tune remote 8
tune mstress 8
tune large 2
