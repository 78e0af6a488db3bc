"""Each key of the configuration that tests/trainer/key_effects.h leaves to another test (kElsewhere) names one that exists:
a file, a script, Suite, Suite.Test, or Suite.TestThatBegins... ."""
import re

import files

LIST = "tests/trainer/key_effects.h"
ENTRY = r'\{"([\w.]+)",\s*\{((?:\s*"[^"]*")+)\s*\}\}'
TEST = r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)"
SUITE = r"\b(?![CG]PUs?\b)([A-Z]\w*[a-z]\w*)(?:\.(\w+)(\.\.\.)?)?"
FILE = r"\b\w+_test\.cpp\b|\bscripts/\w+"


def tests(root, paths):
    """{suite: names} of all tests of C++."""
    found = {}
    for path in paths:
        if path.startswith("tests/") and path.endswith(".cpp"):
            for suite, name in re.findall(TEST, files.read(root, path), re.M):
                found.setdefault(suite, set()).add(name)
    return found


def missing(why, known, paths):
    """What `why` names and is not there."""
    for suite, name, cut in re.findall(SUITE, why):
        names = known.get(suite, set())
        if not (any(n.startswith(name) for n in names) if cut or not name else name in names):
            yield f"{suite}.{name}" if name else suite
    for name in re.findall(FILE, why):
        if not any(re.search(rf"(^|/){name}(\.sh|\.py)?$", path) for path in paths):
            yield name


def violations(root):
    paths = files.listed(root)
    text = files.read(root, LIST)
    entries = re.findall(ENTRY, text[text.find("kElsewhere ="):])
    if not entries:
        return [f"{LIST}: lists no key that is tested elsewhere"]
    known, found = tests(root, paths), []
    for key, literals in entries:
        why = "".join(re.findall(r'"([^"]*)"', literals))
        if not re.search(f"{SUITE}|{FILE}", why):
            found.append(f"{LIST}: {key} names no test: {why}")
        found += [f"{LIST}: {key}: there is no {name}" for name in missing(why, known, paths)]
    return found
