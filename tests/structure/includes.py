"""Every #include "pentatron/..." obeys the table, and torch headers stay where they belong."""
import re

import files
import table

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)
TORCH = re.compile(r"^(ATen|torch|c10|caffe2)/")
USES = re.compile(r"pentatron_module\(([\w/]+)([^)]*)\)")


def violations(root):
    found = []
    for path in files.sources(root):
        module = table.module_of(path)
        if module is None and path not in ("pentatron/main.cpp", "pentatron/torch_main.cpp", "pentatron/parquet_main.cpp"):
            found.append(f"{path}: its folder is not in the table of docs/design.md section 2")
            continue
        for quote, included in INCLUDE.findall(files.read(root, path)):
            found += [f"{path}: includes {included}: {why}" for why in check(path, module, quote, included)]
    return found + list(check_targets(root))


def check(path, module, quote, included):
    if TORCH.match(included):
        if module in table.WITHOUT_TORCH:
            yield f"{module} sees no torch header"
        if path.endswith((".cu", ".cuh")):
            yield "torch headers never stand in CUDA files (26 s against 1.3 s)"
        if included == "torch/torch.h":
            yield "torch/torch.h costs 20 s a file; include the operators you use"
    if quote != '"':
        return
    if not included.startswith("pentatron/"):
        yield 'paths start at the repository: "pentatron/..."'
        return
    used = table.module_of(included)
    if used is None:
        yield "its folder is not in the table"
        return
    if module is None or used == module:
        return
    if used not in table.allowed(module):
        yield f"{module} may not use {used}"
    only = table.ONLY.get((module, used))
    if only and not included.startswith(tuple(only)):
        yield f"{module} may use only {', '.join(only)} of {used}"


def check_targets(root):
    """The edges declared in pentatron/CMakeLists.txt are edges of the table."""
    try:
        text = files.read(root, "pentatron/CMakeLists.txt")
    except OSError:
        return
    for module, arguments in USES.findall(text):
        words = arguments.split()
        if module not in table.MAY_USE:
            yield f"pentatron/CMakeLists.txt: {module} is not in the table"
            continue
        uses = words[words.index("USES") + 1:] if "USES" in words else []
        for used in uses:
            if used == "LIBRARIES":
                break
            if used not in table.allowed(module):
                yield f"pentatron/CMakeLists.txt: {module} may not use {used}"
        if "TORCH" in words and module in table.WITHOUT_TORCH:
            yield f"pentatron/CMakeLists.txt: {module} sees no torch header"
