#!/usr/bin/env python3
"""Packs the programs that programs.py collected and the Python module into a wheel.

usage: wheel.py PROGRAMS OUT       writes OUT/pentatron-VERSION-py3-none-manylinux_X_Y_x86_64.whl and prints its path

X.Y is the C library that the programs need, as measured. Equal inputs make equal bytes.
"""
import base64
import hashlib
import os
import re
import sys
import zipfile

import programs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that zip has


def version():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(pentatron VERSION (\S+)", file.read())[1]


def metadata(torch):
    with open(os.path.join(ROOT, "docs", "python.md"), encoding="utf-8") as file:
        description = file.read()
    return f"""Metadata-Version: 2.1
Name: pentatron
Version: {version()}
Summary: trains large transformers
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={torch}.*
Description-Content-Type: text/markdown

{description}"""


def files_below(folder):
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(place, name)
            yield os.path.relpath(path, folder), path


class Wheel:
    """A wheel that is being written: each file with its hash in RECORD."""

    def __init__(self, path, info):
        self.info = info
        self.record = []
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)

    def add(self, name, content, executable=False):
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def add_file(self, name, path):
        with open(path, "rb") as file:
            self.add(name, file.read(), os.access(path, os.X_OK))

    def close(self):
        self.record.append(f"{self.info}/RECORD,,")
        self.archive.writestr(zipfile.ZipInfo(f"{self.info}/RECORD", EPOCH), "\n".join(self.record) + "\n")
        self.archive.close()


def pack(collected, out):
    with open(os.path.join(collected, "share", "pentatron", "torch_version"), encoding="utf-8") as file:
        torch = file.read().strip()
    libc = "_".join(map(str, programs.newest_versions(collected)["GLIBC"][:2]))
    tag = f"py3-none-manylinux_{libc}_x86_64"
    name = f"pentatron-{version()}"
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"{name}-{tag}.whl")
    wheel = Wheel(path, f"{name}.dist-info")
    for relative, source in files_below(os.path.join(ROOT, "python", "pentatron")):
        wheel.add_file(f"pentatron/{relative}", source)
    for part in ("bin", "lib", "share"):
        for relative, source in files_below(os.path.join(collected, part)):
            wheel.add_file(f"pentatron/{part}/{relative}", source)
    wheel.add(f"{wheel.info}/METADATA", metadata(torch).encode())
    wheel.add(f"{wheel.info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: pentatron\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{wheel.info}/entry_points.txt", b"[console_scripts]\npentatron = pentatron.__main__:main\n")
    wheel.close()
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(pack(sys.argv[1], sys.argv[2]))
