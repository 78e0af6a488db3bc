"""Where messages are written: fmt::print throws where standard error is full or closed, and an exception in place of a message
ends a command whose work was done. base/log.h and base/progress.h lose such a message instead."""
import re

import files

THROWS = re.compile(r"\bprint(?:ln)?\(\s*stderr\b|\bstd::(?:cerr|clog)\b")


def violations(root):
    found = []
    for path in files.sources(root):
        if not path.startswith("pentatron/"):
            continue
        text = re.sub(r"//[^\n]*", "", files.read(root, path))
        for match in THROWS.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{number}: throws where standard error cannot be written; use log::print of base/progress.h")
    return found
