#!/usr/bin/env bash
# Proves the bundle and the wheel in a Debian 12 that has Python and torch alone. Needs root, debootstrap and a network to make that
# root; what is proved runs without network.
#
#   tests/packaging/bare.sh FOLDER BUNDLE.tar.xz PENTATRON.whl
#
# FOLDER/root is made on the first call and reused, with a torch of 4 GB; delete it for a fresh start.
set -euo pipefail
FOLDER=$(mkdir -p "$1" && cd "$1" && pwd)
ROOT_FS=$FOLDER/root
BUNDLE=$(realpath "$2")
WHEEL=$(realpath "$3")
TORCH_VERSION=$(sed -n 's/^readonly TORCH_VERSION=//p' "$(dirname "$0")/../../scripts/setup.sh")
MIRROR=${BARE_MIRROR:-http://deb.debian.org/debian}

# in_root <on|off: network> <command...>: with a PATH and a home, and nothing else of this machine.
in_root() {
  local network="" options=""
  if [ "$1" = off ]; then network=--net; fi
  shift
  unshare --mount --pid --fork --kill-child $network chroot "$ROOT_FS" /usr/bin/env -i HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ${PIP_CERT:+PIP_CERT=/etc/ssl/machine.crt} \
    ${http_proxy:+http_proxy=$http_proxy} ${https_proxy:+https_proxy=$https_proxy} bash -euo pipefail -c '
      mount -t proc proc /proc
      mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
      if [ -x /sbin/ip ]; then ip link set lo up; else python3 -c "
import fcntl, socket, struct
s = socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack(\"16sH14s\", b\"lo\", 0x49, b\"\"))"; fi
      cd /root
      eval "$1"' _ "$*"
}

say() { printf '== %s\n' "$*"; }

if [ ! -e "$FOLDER/.complete" ]; then
  say "making $ROOT_FS"
  if [ ! -d "$ROOT_FS/usr/bin" ]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$ROOT_FS" "$MIRROR" >"$FOLDER/debootstrap.log"
  fi
  cp /etc/resolv.conf /etc/hosts "$ROOT_FS/etc/"
  if [ -n "${PIP_CERT:-}" ]; then cp "$PIP_CERT" "$ROOT_FS/etc/ssl/machine.crt"; fi
  in_root on "python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --progress-bar off torch==$TORCH_VERSION" >"$FOLDER/pip.log"
  touch "$FOLDER/.complete"
fi

say "no compiler, no library of ours"
in_root off '! command -v gcc g++ cc nvcc; ! ldconfig -p | grep -E "yaml-cpp|libtorch"'

say "the bundle, unpacked by Python"
rm -rf "$ROOT_FS/opt/bundle" "$ROOT_FS/opt/elsewhere" "$ROOT_FS/root/"*
cp "$BUNDLE" "$ROOT_FS/root/bundle.tar.xz"
in_root off 'mkdir /opt/bundle; python3 -c "import tarfile; tarfile.open(\"bundle.tar.xz\").extractall(\"/opt/bundle\")"'
TINY="model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 train.seq_length=32 train.global_batch_size=2 \
train.micro_batch_size=1 train.train_iters=5 logger.tensorboard=false"
in_root off "export VIRTUAL_ENV=/opt/venv
  /opt/bundle/pentatron/bin/pentatron train $TINY checkpoint.save=saved logger.dir=run
  /opt/bundle/pentatron/bin/pentatron train $TINY --ranks 2 --backend sockets logger.dir=two
  /opt/bundle/pentatron/bin/pentatron generate saved --prompt 'It is' --max-new-tokens 5"

if [ -x "$ROOT_FS/opt/bundle/pentatron/bin/pentatron-torch-cuda" ]; then
  say "the program for CUDA loads, finds no GPU, and trains on the CPU"
  in_root off "site=/opt/venv/lib/python3.11/site-packages
    export LD_LIBRARY_PATH=\$site/torch/lib:\$(echo \$site/nvidia/*/lib | tr ' ' ':')
    /opt/bundle/pentatron/bin/pentatron-torch-cuda train $TINY
    /opt/bundle/pentatron/bin/pentatron-torch-cuda train $TINY device=cuda 2>message && exit 1
    grep 'device=cuda, but this machine has no GPU' message"
fi

say "the bundle in another folder, through a link, with TORCH_ROOT"
in_root off "mv /opt/bundle/pentatron /opt/elsewhere
  ln -sf /opt/elsewhere/bin/pentatron /usr/local/bin/pentatron
  TORCH_ROOT=/opt/venv/lib/python3.11/site-packages/torch pentatron doctor >doctor.txt
  grep '^torch  ' doctor.txt"

say "without torch: files, and a refusal that says what to try"
in_root off "pentatron tokenize --help >/dev/null
  if pentatron train $TINY 2>message; then exit 1; fi
  cat message
  grep -q \"try: pip install 'torch==2.11\" message"

say "gpu_check.sh on the CPU"
in_root off "PYTHON=/opt/venv/bin/python bash /opt/elsewhere/gpu_check.sh --bundle /opt/elsewhere --device cpu --out check ${CHECK_OPTIONS:-}"

say "the wheel"
rm -f "$ROOT_FS/usr/local/bin/pentatron"
rm -rf "$ROOT_FS/opt/elsewhere"
cp "$WHEEL" "$ROOT_FS/root/"
in_root off "/opt/venv/bin/pip uninstall -q -y pentatron || true
  /opt/venv/bin/pip install -q --no-index ./$(basename "$WHEEL")
  /opt/venv/bin/pentatron train $TINY checkpoint.save=wheel_saved logger.dir=wheel_run
  /opt/venv/bin/python -c '
import pentatron
run = pentatron.run({\"model\": {\"num_layers\": 1, \"hidden_size\": 32, \"num_attention_heads\": 2}}, {\"train.train_iters\": 3, \"train.seq_length\": 32})
with run:
    print([round(step[\"loss\"], 3) for step in run if \"loss\" in step])
print(repr(pentatron.generate(\"wheel_saved\", \"It is\", max_new_tokens=5)))'"
say "all of it passed"
