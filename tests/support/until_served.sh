#!/usr/bin/env bash
# Runs a server until it serves, then ends it with SIGTERM; its output and exit status are passed on.
#
#   until_served.sh pentatron serve MODEL [ARGUMENT...]
out=$(mktemp)
"$@" > "$out" &
server=$!
for _ in $(seq 600); do
  if grep -q '^serving ' "$out" || ! kill -0 "$server" 2> /dev/null; then break; fi
  sleep 0.05
done
kill -TERM "$server" 2> /dev/null
wait "$server"
status=$?
cat "$out"
rm -f "$out"
exit "$status"
