"""clang-format 14 (Debian 12) would change nothing."""
import re
import shutil
import subprocess

import files

VERSION = 14


def available():
    """None, or why the check cannot run: other versions format differently."""
    program = shutil.which("clang-format")
    if program is None:
        return "clang-format is not installed"
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"version (\d+)", text)
    if not match or int(match.group(1)) != VERSION:
        return f"clang-format {VERSION} is needed, and this is: {text.strip()}"
    return None


def violations(root):
    paths = [p for p in files.listed(root) if p.endswith(files.SOURCES)]
    if not paths:
        return []
    run = subprocess.run(["clang-format", "--dry-run", "-Werror", "--ferror-limit=1", *paths],
                         cwd=root, capture_output=True, text=True, check=False)
    bad = sorted(set(re.findall(r"^([^:\s]+):\d+:\d+: error", run.stderr, re.M)))
    if run.returncode != 0 and not bad:
        return [run.stderr.strip()]
    return [f"{path}: not formatted; clang-format -i {path}" for path in bad]
