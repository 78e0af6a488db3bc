"""Which class a model is follows from its type in one table: no file outside of pentatron/models names one."""
import re

import files

CLASS = re.compile(r"class (\w+) final : public Model\b")


def violations(root):
    listed = files.listed(root)
    names = {}
    for path in listed:
        if path.startswith("pentatron/models/") and path.endswith(".h"):
            for name in CLASS.findall(files.read(root, path)):
                names[name] = path
    if not names:
        return ["pentatron/models: no class of a model is found"]
    used = re.compile(rf"\b(?:models::)?({'|'.join(names)})\b(?=\s*[({{&*:>]|\s+\w+\s*[;({{=])")
    found = []
    for path in files.sources(root):
        if path.startswith("pentatron/models/"):
            continue
        for number, line in enumerate(files.read(root, path).splitlines(), 1):
            code = line.split("//")[0]
            include = re.search(r'#include "(pentatron/models/\w+/\w+\.h)"', code)
            match = include or used.search(re.sub(r'"(?:[^"\\]|\\.)*"', '""', code))
            if match and path.startswith("pentatron/"):
                found.append(f"{path}:{number}: {match.group(1)}: only pentatron/models knows classes of models")
    return found
