"""Which class a model is follows from its type in one table, and what a family of files is from its own file: nothing
else names one."""
import re

import files

CLASS = re.compile(r"class (\w+) final : public Model\b")
ASKING = ("trainer", "parallelize", "checkpoint", "generate", "cli")
FAMILY_NAME = re.compile(r'\.(?:model_type|architecture) = "(\w+)"')
# Types of data that belong to a type of model.
DATA_OF_A_MODEL = re.compile(r"DatasetType::k(?:Bert|T5)\b")
TYPE_NAME = re.compile(r'config::name\(ModelType::\w+, "(\w+)"\)')


FAMILY_MAKER = re.compile(r"^Family (\w+_family)\(\) \{", re.MULTILINE)
FAMILIES = "pentatron/checkpoint/hf/families/"
PAGE = "docs/adding-a-model.md"


def violations(root):
    return classes(root) + types(root) + lists_of_families(root)


def lists_of_families(root):
    """The page says which files name every family, beside the family's own."""
    makers, listing = {}, {}
    for path in files.sources(root):
        content = files.read(root, path)
        for name in FAMILY_MAKER.findall(content) if path.startswith(FAMILIES) else ():
            makers[name] = path
        listing[path] = content
    page = files.read(root, PAGE) if makers else ""
    found = []
    for path, content in listing.items():
        others = [name for name, own in makers.items() if own != path]
        if others and all(name in content for name in others):
            if path.removeprefix("pentatron/checkpoint/hf/") not in page:
                found.append(f"{PAGE}: a new family needs a line in {path}, which the page does not name")
    return found


def classes(root):
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


def types(root):
    """Values of ModelType, and the names of types and families as whole literals."""
    names = set()
    asking = []
    for path in files.sources(root):
        module = path.split("/")[1] if path.startswith("pentatron/") else ""
        content = files.read(root, path)
        if module == "models":
            names.update(TYPE_NAME.findall(content))
        elif "/families/" in path:
            names.update(FAMILY_NAME.findall(content))
        elif module in ASKING:
            asking.append((path, content))
    literals = "|".join(sorted(names))
    named = re.compile(rf'ModelType::k\w+|"(?:{literals})"' if names else r"ModelType::k\w+")
    found = []
    for path, content in asking:
        for number, line in enumerate(content.splitlines(), 1):
            code = line.split("//")[0]
            match = named.search(code) or (DATA_OF_A_MODEL.search(code) if path.startswith("pentatron/trainer/") else None)
            if match:
                found.append(f"{path}:{number}: {match.group(0)}: only pentatron/models and the families' files ask which"
                             " type or family a model is; the rest asks for a property")
    return found
