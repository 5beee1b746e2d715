#!/bin/sh
# Finds the profiles of the arms: one study for each row; about 9 minutes.
#   tune.sh [TIME]    for each search; 110s when it is left out
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

tune() {
    name=$1
    shift
    hztune "$@" --budget "$budget" --seed 1 --out "$out/$name"
    cp "$out/$name/profile.json" "$here/$name.json"
}

budget=${1:-110s}
tune larson-16 --workload larson --threads 16
tune larson-32 --workload larson --threads 32
tune remote-50-32 --workload remote@main --param remote=50 --threads 32
tune remote-90-32 --workload remote@main --param remote=90 --threads 32
