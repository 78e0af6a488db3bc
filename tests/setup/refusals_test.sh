#!/usr/bin/env bash
# The set-up refuses with one sentence, one `try:` line and a non-zero exit, and leaves nothing half installed. Needs no
# network: each case runs scripts/quickstart.sh of a copy, with programs of the machine replaced by stand-ins on PATH.
set -euo pipefail
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
failures=0

# begin <case>: a fresh copy of the scripts, and a PATH whose first folder holds the stand-ins.
begin() {
  CASE=$1
  COPY="$WORK/$1/pentatron"
  BIN="$WORK/$1/bin"
  mkdir -p "$COPY" "$BIN"
  cp -r "$REPOSITORY/scripts" "$COPY/"
  stand_in sudo 'exit 1'
  # Everything from apt is there, unless a case says otherwise.
  stand_in dpkg-query 'echo installed'
  # No torch on the machine.
  stand_in python3 '
if [ "$1" = -m ] && [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0; fi
if [ "$1" = -m ] && [ "$2" = pip ]; then
  touch "$(dirname "$0")/half_installed"
  if [ -n "${PIP_SAYS:-}" ]; then echo "$PIP_SAYS"; exit 1; fi
  if [ -n "${PIP_DIES:-}" ]; then kill -9 $PPID; exit 1; fi
fi
[ "$1" = --version ] && echo "Python 3.11.2"
exit 0'
  stand_in cmake 'echo "configure: $*"; exit 1'
}

stand_in() {
  printf '#!/bin/bash\n%s\n' "$2" >"$BIN/$1"
  chmod +x "$BIN/$1"
}

# run <environment...>: quickstart.sh in the copy; what it wrote is in $WORK/output.
run() {
  code=0
  env -u TORCH_ROOT -u VIRTUAL_ENV PATH="$BIN:$PATH" "$@" "$COPY/scripts/quickstart.sh" >"$WORK/output" 2>&1 </dev/null || code=$?
}

# expect <sentence> <try>: both as extended regular expressions.
expect() {
  local problem=""
  if [ "$code" = 0 ]; then problem="it exited with 0"; fi
  if [ "$(grep -c '^error: ' "$WORK/output")" != 1 ]; then problem="not one error sentence"; fi
  if [ "$(grep -c '^  try: ' "$WORK/output")" != 1 ]; then problem="not one try line"; fi
  if ! grep -qE "^error: .*$1" "$WORK/output"; then problem="the sentence does not say: $1"; fi
  if ! grep -qE "^  try: .*$2" "$WORK/output"; then problem="the try line does not say: $2"; fi
  if [ -e "$COPY/.deps/venv" ] && [ ! -e "$COPY/.deps/venv/.complete" ]; then problem="a half installed .deps/venv"; fi
  if ls "$COPY"/.deps/*.partial >/dev/null 2>&1; then problem="a leftover $(ls -d "$COPY"/.deps/*.partial)"; fi
  report "$problem"
}

report() {
  if [ -n "$1" ]; then
    echo "FAILED $CASE: $1"
    sed 's/^/    /' "$WORK/output"
    failures=$((failures + 1))
  else
    echo "ok     $CASE"
  fi
}

begin wrong_architecture
stand_in uname '[ "$1" = -m ] && echo aarch64 || echo Linux'
run
expect 'x86_64, but this machine is aarch64' 'TORCH_ROOT='

begin wrong_system
stand_in uname '[ "$1" = -s ] && echo Darwin || echo arm64'
run
expect 'Linux, but this is Darwin' 'Debian 12'

begin no_root
stand_in dpkg-query 'case "$*" in *cmake*) exit 1 ;; esac; echo installed'
stand_in id 'echo 1000'
run
expect 'needs root.*missing packages: cmake' 'apt-get install .*cmake'

begin no_network_for_packages
stand_in dpkg-query 'exit 1'
stand_in id 'echo 0'
stand_in apt-get "echo \"W: Failed to fetch http://deb.debian.org/ Temporary failure resolving 'deb.debian.org'\"; exit 100"
run
expect 'no network: apt-get' 'http_proxy'

begin no_network_for_wheels
run PIP_SAYS='NewConnectionError: [Errno 101] Network is unreachable'
expect 'no network: pip' 'http_proxy'

begin untrusted_certificate
run PIP_SAYS='Max retries exceeded: SSLError(CERTIFICATE_VERIFY_FAILED)'
expect 'does not trust the certificate' 'PIP_CERT'

begin no_wheel_for_this_python
run PIP_SAYS='ERROR: No matching distribution found for torch==2.11.0'
expect 'no wheel for Python 3.11.2' 'Python 3.10'

begin disk_too_small
stand_in df 'printf "Filesystem 1M-blocks Used Available Capacity Mounted\n/dev/x 100 90 10 90%% /\n"'
run
expect 'needs 2600 MB.*10 MB are free' 'larger disk'

begin disk_full_while_installing
run PIP_SAYS='OSError: [Errno 28] No space left on device'
expect 'disk became full' 'free some space'

begin torch_root_without_torch
run TORCH_ROOT=/usr
expect 'TORCH_ROOT=/usr contains no torch' 'unset TORCH_ROOT'

# A set-up that is killed in the middle of pip leaves only a .partial folder, and the next one starts over.
begin killed_while_installing
run PIP_DIES=1
problem=""
[ -e "$COPY/.deps/venv" ] && problem="a half installed .deps/venv after the kill"
[ -e "$COPY/.deps/venv.partial/bin/half_installed" ] || problem="the kill came too early to prove anything"
run
[ -e "$COPY/.deps/venv/.complete" ] || problem="the second run did not install"
[ -e "$COPY/.deps/venv.partial" ] && problem="the second run left .partial"
grep -q 'does not configure' "$WORK/output" || problem="the second run did not reach the build"
report "$problem"

# Everything in place: nothing is installed again.
CASE=idempotent
run PIP_SAYS='pip ran again'
problem=""
grep -q 'installing' "$WORK/output" && problem="it installed again"
report "$problem"

exit $((failures > 0))
