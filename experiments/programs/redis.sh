#!/bin/sh
# A redis server under load: starts one that saves nothing, runs redis-benchmark against it, stops it.
#
#     redis.sh REQUESTS     prints the requests per second of each command that was tried
set -eu
folder=$(mktemp -d)
socket=$folder/redis.sock
redis-server --port 0 --unixsocket "$socket" --dir "$folder" --save '' --appendonly no --loglevel warning >"$folder/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -rf "$folder"' EXIT
until redis-cli -s "$socket" ping >/dev/null 2>&1; do
    kill -0 "$server" || { cat "$folder/log" >&2; exit 1; }
    sleep 0.01
done
redis-benchmark -s "$socket" -n "$1" -r 20000 -d 400 -P 16 -t set,lpush --csv
