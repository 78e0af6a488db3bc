"""READMEs, file sizes, and words that have no place in the repository."""
import os
import re

import files
import table

README_LINES = 30
SOURCE_LINES = 600
HEADER_LINES = 300

# Written in two halves, so that this file passes.
FORBIDDEN = [
    (r"(?<![\w.])/wo" r"rk/", "a path of one machine"),
    (r"\.\./sha" r"red\b", "a path outside the repository"),
    (r"(?<![\w.])/ro" r"ot/", "a path of one machine"),
    (r"(?<![\w.])/ho" r"me/(?!someone\b|user\b)\w", "a path of one machine"),
    (r"(?i)\b(cla" r"ude|anth" r"ropic|chat" r"gpt|co" r"pilot|ai[- ]gene" r"rated)\b", "who or what wrote it"),
]


def readmes(root):
    found = []
    listed = files.listed(root)
    modules = {table.module_of(p) for p in listed if p.startswith("pentatron/") and p.endswith(files.SOURCES)}
    for module in sorted(m for m in modules if m):
        if f"pentatron/{module}/README.md" not in listed:
            found.append(f"pentatron/{module}: no README.md (what it is, its one key idea, the header to read first)")
    for path in listed:
        if path.startswith("pentatron/") and path.endswith("README.md"):
            lines = files.read(root, path).count("\n")
            if lines > README_LINES:
                found.append(f"{path}: {lines} lines, and a README has at most {README_LINES}")
    return found


def sizes(root):
    """Violations, and advice that fails nothing."""
    found, advice = [], []
    for path in files.listed(root):
        if not path.endswith(files.SOURCES):
            continue
        lines = files.read(root, path).count("\n")
        if path.endswith((".h", ".cuh")):
            if lines > HEADER_LINES:
                advice.append(f"{path}: {lines} lines; above {HEADER_LINES} ask whether it is two things")
        elif lines >= SOURCE_LINES:
            found.append(f"{path}: {lines} lines; a source has fewer than {SOURCE_LINES}")
    return found, advice


def words(root):
    found = []
    patterns = [(re.compile(pattern), why) for pattern, why in FORBIDDEN]
    for path in files.listed(root):
        script = os.path.splitext(path)[1] == "" and os.access(os.path.join(root, path), os.X_OK)
        if not (path.endswith(files.TEXT) or script) or path.startswith("examples/corpus/"):
            continue
        for number, line in enumerate(files.read(root, path).splitlines(), 1):
            for pattern, why in patterns:
                if pattern.search(line):
                    found.append(f"{path}:{number}: {why}: {line.strip()[:100]}")
    return found
