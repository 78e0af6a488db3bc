"""Names in anonymous namespaces that two sources of a module, or of its tests, both define. A unity build includes several sources in one file, where
such namespaces are one; which ones it joins changes with every new file. Functions of different parameters may share a name."""
import re

import files
import table

NO_UNITY = re.compile(r"pentatron_module\((\S+)[^)]*\bNO_UNITY\b")
# Compiled apart, or one of them in place of the other (cmake/PentatronModule.cmake).
ALTERNATIVES = ("_absent.cpp", "_cuda.cpp")
NOISE = re.compile(
    r'R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/|'
    r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.S | re.M)
WORD = re.compile(r"[A-Za-z_]\w*")
SPECIAL = re.compile(r"[][(){};]")
CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}


def blanked(text):
    """The same lines without comments, literals and directives."""
    return NOISE.sub(lambda m: '""' * ('"' in m.group()[:2]) + "\n" * m.group().count("\n"), text)


def end_of(text, at):
    """The place behind the bracket that closes the one at `at`."""
    opened, depth = text[at], 0
    for i in range(at, len(text)):
        depth += (text[i] == opened) - (text[i] == CLOSES[opened] and text[i - 1] != "-")
        if depth == 0:
            return i + 1
    return len(text)


def without_angles(text):
    """<...> and what is in it as spaces, so that places stay; comparisons do not stand in what is read here."""
    out, at = text, 0
    while (at := out.find("<", at)) >= 0:
        end = end_of(out, at)
        out = out[:at] + " " * (end - at) + out[end:]
    return out


def parameters(text):
    """The types of "int a, const T& b = 1" in one spelling."""
    flat, parts, begin, depth = without_angles(text), [], 0, 0
    for i, c in enumerate(flat + ","):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    types = []
    for part in parts:
        part = re.sub(r"\[\[\w+\]\]", "", part.split("=")[0])
        tokens = re.findall(r"\w+|::|\S", part)
        if len(tokens) > 1 and WORD.fullmatch(tokens[-1]) and tokens[-2] not in ("::", "const", "unsigned", "typename"):
            tokens.pop()
        types.append(" ".join(tokens))
    return ", ".join(types)


def entity(head, has_body):
    """(name, kind, detail) of what a declaration at the scope of a namespace defines; None for others. Functions are told apart by
    their parameters, aliases by what they stand for."""
    while head.startswith("template"):
        head = head[end_of(head, head.index("<")):].strip()
    if alias := re.match(r"using\s+(\w+)\s*=(.*)", head, re.S):
        return alias.group(1), "alias", "".join(alias.group(2).split())
    if named := re.match(r"(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(\w+)\s*(?:final\b\s*)?(?::[^:].*)?$", head, re.S):
        return (named.group(1), "type", "") if has_body else None
    if re.match(r"(namespace|using|typedef|static_assert|extern|struct|class|union|enum)\b", head) or "operator" in head:
        return None
    flat = without_angles(head)
    begin = re.search(r"[=({\[]|$", flat)
    named = re.search(r"[\w:~]+(?=\s*$)", flat[:begin.start()])
    if not named or not WORD.fullmatch(named.group()):
        return None
    if begin.group() != "(":
        return named.group(), "variable", ""
    inside = head[begin.start() + 1:end_of(head, begin.start()) - 1]
    return (named.group(), "function", parameters(inside)) if has_body else None


def is_function(head):
    """Whether the block behind `head` is the body of a function: not a type, a value, or the first value of a constructor."""
    flat = without_angles(head)
    return "(" in flat and "=" not in flat.split("(")[0] and not re.search(r"\)\s*:[^:].*\w\s*$", flat, re.S)


def definitions(text):
    """(namespace, name, kind, detail, line) of all that anonymous namespaces define."""
    text, found, scopes = blanked(text), [], []
    head, at, start = "", 0, 0

    def define(has_body):
        if "" in scopes and (defined := entity(plain(head.split("{}")[0]), has_body)):
            found.append(("::".join(s for s in scopes if s), *defined, text.count("\n", 0, start) + 1))

    def plain(words):
        words = re.sub(r"operator\s*(?:\(\)|[^\s(]+)", "operator", words)
        return re.sub(r"\[\[[^\]]*\]\]|\balignas\s*\([^)]*\)", " ", words).strip()

    while at < len(text):
        place = SPECIAL.search(text, at)
        end = place.start() if place else len(text)
        if not head.strip():
            head, start = "", at + len(text[at:end]) - len(text[at:end].lstrip())
        head += text[at:end]
        at, c = end, text[end:end + 1]
        if c == "(" or c == "[":
            at = end_of(text, at)
            head += text[end:at]
        elif c == "{":
            if space := re.match(r"(?:inline\s+)?namespace\b([\w:\s]*)$|extern\s*\"\"$", plain(head)):
                scopes.append((space.group(1) or "").strip() if "namespace" in space.group() else "extern")
                at, head = at + 1, ""
                continue
            at = end_of(text, at)
            if is_function(plain(head)):
                define(True)
                head = ""
            else:  # which a semicolon ends
                head += "{}"
        elif c:
            if c == ";":
                define(has_body="{}" in head)
            elif scopes:
                scopes.pop()
            at, head = at + 1, ""
    return found


def clash(one, other):
    """Of two (kind, detail) with one name."""
    if one[0] == other[0] == "function":
        return one == other
    return one[0] != "alias" or one != other


def joined(root):
    """(name of a unity build, path) of the sources that it may include in one file."""
    build = "pentatron/CMakeLists.txt"
    alone = set(NO_UNITY.findall(files.read(root, build))) if build in files.listed(root) else set()
    for path in files.sources(root) + files.sources(root, "tests/"):
        module = table.module_of(path)
        if module is None or not path.endswith(".cpp"):
            continue
        if path.startswith("tests/"):
            if module != "layers" and path.endswith("_test.cpp") and path.rpartition("/")[0] == f"tests/{module}":
                yield f"tests of {module}", path
        elif module not in alone and not path.endswith(ALTERNATIVES):
            yield module, path


def violations(root):
    known, found = {}, []
    for build, path in joined(root):
        for space, name, *what, line in definitions(files.read(root, path)):
            before = known.setdefault((build, space, name), [])
            if others := [other for other, same in before if other != path and clash(what, same)]:
                found.append(f"{path}:{line}: {name} is in an anonymous namespace of {others[0]} too; a unity build may join them")
            before.append((path, what))
    return found
