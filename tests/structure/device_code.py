"""What nvcc gets wrong: in `if constexpr` on the type of a lambda's parameter, nvcc 13.0 takes the wrong branch for some types
inside of nested lambdas, so that a kernel is not launched, without a word. The emulation of kernels, which g++ compiles, cannot see it."""
import re

import files

BRANCH = re.compile(r"if constexpr\s*\([^{;]*?decltype\(")


def violations(root):
    found = []
    for path in files.sources(root):
        if not path.endswith((".cu", ".cuh")):
            continue
        text = re.sub(r"//[^\n]*", "", files.read(root, path))
        for match in BRANCH.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{line}: if constexpr on a decltype; use a template function, as visit_pair() does")
    return found
