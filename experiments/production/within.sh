#!/bin/sh
# Runs a command so often, each time in a container with so much memory (cgroup v1, as root), and says how many runs survived:
# sh within.sh KIB RUNS COMMAND...
kib=$1 runs=$2
shift 2
group=/sys/fs/cgroup/memory/within-$$
mkdir "$group" || exit 1
trap 'rmdir "$group"' EXIT
echo $((kib * 1024)) > "$group/memory.limit_in_bytes" || exit 1
survived=0
for run in $(seq "$runs"); do
    sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@" > /dev/null 2>&1 && survived=$((survived + 1))
done
echo "$survived of $runs runs survived $kib KiB: $*"
