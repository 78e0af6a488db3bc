"""The files of the repository that the checks read: what git tracks or would track."""
import os
import subprocess

SOURCES = (".cpp", ".h", ".cu", ".cuh")
TEXT = SOURCES + (".md", ".txt", ".py", ".sh", ".cmake", ".yaml", ".yml", ".json", ".in", ".supp")


def listed(root):
    """Paths relative to `root`, sorted."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                             capture_output=True, text=True, check=True).stdout
        paths = out.splitlines()
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f not in (".git", ".deps", "build", "__pycache__")]
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(p for p in set(paths) if os.path.isfile(os.path.join(root, p)))


def sources(root, folder="pentatron/"):
    return [p for p in listed(root) if p.startswith(folder) and p.endswith(SOURCES)]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()
