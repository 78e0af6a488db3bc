"""Planted bugs (pentatron/base/planted_bug.h): each that is listed is in the sources once, and no program that is not built
to have them holds any."""
import re

import files

LIST = "tests/trainer/planted_bugs.txt"
HEADER = "pentatron/base/planted_bug.h"
LEAST = 25


def names(root):
    lines = files.read(root, LIST).splitlines()
    return [line.split("|")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def violations(root):
    listed = names(root)
    found = [f"{LIST}: {name} is listed twice" for name in set(listed) if listed.count(name) > 1]
    if len(listed) < LEAST:
        found.append(f"{LIST}: {len(listed)} bugs, and there are to be at least {LEAST}")
    sites = {}
    for path in files.sources(root):
        if path != HEADER:
            for argument in re.findall(r"\bplanted\(([^()]*)\)", files.read(root, path)):
                sites.setdefault(argument.strip().strip('"'), []).append(path)
    for name in listed:
        if len(sites.get(name, [])) != 1:
            found.append(f"{LIST}: {name} is planted {len(sites.get(name, []))} times")
    found += [f"{places[0]}: planted({name}) is not in {LIST}" for name, places in sites.items() if name not in listed]
    return found


def violations_in_program(root, program):
    with open(program, "rb") as file:
        content = file.read()
    return [f"{program}: holds {name}" for name in names(root) + ["PENTATRON_BUG"] if name.encode() in content]
