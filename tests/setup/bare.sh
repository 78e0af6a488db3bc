#!/usr/bin/env bash
# Proves the two commands on a bare Debian 12: makes a minimal root with debootstrap, clones this repository into it and runs
# a command there, as root or as a user with neither root nor sudo. Needs root, debootstrap and a network; not part of ctest.
#
#   tests/setup/bare.sh FOLDER scripts/quickstart.sh train.train_iters=20
#   BARE_USER=nobody tests/setup/bare.sh FOLDER scripts/test.sh
#   BARE_NETWORK=off tests/setup/bare.sh FOLDER scripts/quickstart.sh
#
# FOLDER is made on the first call and reused: its clone is brought to HEAD, what was installed stays. Delete it for a fresh
# start. http_proxy and https_proxy are passed on, and so is the file of CA certificates that PIP_CERT names.
set -euo pipefail
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
FOLDER=$(mkdir -p "$1" && cd "$1" && pwd)
shift
MIRROR=${BARE_MIRROR:-http://deb.debian.org/debian}
HOME_IN_ROOT=/home/someone/pentatron

if [ ! -e "$FOLDER/.bare" ]; then
  debootstrap --variant=minbase bookworm "$FOLDER" "$MIRROR" >"$FOLDER.log" 2>&1
  touch "$FOLDER/.bare"
fi
cp /etc/resolv.conf /etc/hosts "$FOLDER/etc/"
# Under a name of its own: apt installs ca-certificates, which writes the usual file anew.
mkdir -p "$FOLDER/etc/ssl"
if [ -n "${PIP_CERT:-}" ]; then cp "$PIP_CERT" "$FOLDER/etc/ssl/machine.crt"; fi
if [ ! -d "$FOLDER$HOME_IN_ROOT/.git" ]; then
  mkdir -p "$FOLDER/home/someone"
  git clone -q --no-hardlinks "$REPOSITORY" "$FOLDER$HOME_IN_ROOT"
else
  git -C "$FOLDER$HOME_IN_ROOT" fetch -q "$REPOSITORY" HEAD
  git -C "$FOLDER$HOME_IN_ROOT" checkout -q --detach FETCH_HEAD
fi

cat >"$FOLDER/enter.sh" <<'INNER'
mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /dev/shm || { mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; }
[ -c /dev/urandom ] || mknod -m 666 /dev/urandom c 1 9
[ -c /dev/null ] || mknod -m 666 /dev/null c 1 3
cd "$1"
shift
if [ -n "${BARE_USER:-}" ]; then exec setpriv --reuid "$BARE_USER" --clear-groups "$@"; fi
exec "$@"
INNER
unshare_options="--mount --pid --fork --kill-child"
if [ "${BARE_NETWORK:-on}" = off ]; then unshare_options="$unshare_options --net"; fi
exec unshare $unshare_options chroot "$FOLDER" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  HOME=/root LANG=C.UTF-8 ${http_proxy:+http_proxy=$http_proxy} ${https_proxy:+https_proxy=$https_proxy} \
  ${PIP_CERT:+PIP_CERT=/etc/ssl/machine.crt} ${BARE_USER:+BARE_USER=$BARE_USER} \
  bash /enter.sh "$HOME_IN_ROOT" "$@"
