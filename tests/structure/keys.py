"""Every configuration key that a message, a help text or a page of the documentation names exists: docs/configuration.md
lists it. (cli_test compares that page with the program.) So does every key that rules of a section compose: the name in
config::join(path, "name"), in a call of a lambda that joins it, or behind a prefix that ends in a dot is one of that section."""
import re

import files

PAGE = "docs/configuration.md"
COMMENT_OR_CHAR = r"//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)'"
LITERAL = r'R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:[^"\\\n]|\\.)*)"'
# "train.lr", also in "--set train.lr=1"; not a part of a path, of an address or of a call.
DOTTED = re.compile(r"(?<![\w./{}>-])([a-z]\w*)((?:\.[a-z]\w*)+)(?![\w/({-])(?!->)")
# What begins with the name of a section and is no key: names of files, keys of GGUF, tensors of Hugging Face.
FILE = re.compile(r".*\.(json|safetensors|gguf|h|cpp|py|sh|txt|yaml|jsonl|bin|idx)$|tokenizer\.model$")
FOREIGN = re.compile(r"tokenizer\.(ggml\.\w+|chat_template)$|model\.(embed_tokens|layers|norm|model|config|generation_config)\b")
# A key without a section, given as a setting.
SET = re.compile(r"--set ([a-z]\w*)=")
# A wrong key, shown with the program's answer.
WRONG_ON_PURPOSE = {("docs/getting_started.md", "model.num_layer")}


def keys(root):
    """Every key, and every section."""
    listed = set(re.findall(r"^\| `([\w.]+)` \|", files.read(root, PAGE), re.M))
    sections = set()
    for key in listed:
        parts = key.split(".")
        sections.update(".".join(parts[:n]) for n in range(1, len(parts)))
    return listed, sections


def literals(source):
    """(line, text) of each string literal; those that the compiler joins are joined."""
    out, end = [], None
    for match in re.finditer(f"{COMMENT_OR_CHAR}|{LITERAL}", source, re.S):
        if match.group("raw") is None and match.group("text") is None:
            continue
        text = match.group("raw")
        if text is None:
            text = re.sub(r"\\[nt]", " ", match.group("text")).replace('\\"', '"')
        if end is not None and not source[end:match.start()].strip():
            out[-1] = (out[-1][0], out[-1][1] + text)
        else:
            out.append((source.count("\n", 0, match.start()) + 1, text))
        end = match.end()
    return out


def blanked(source):
    """The source with spaces for comments and for what literals contain, so that brackets and commas are those of the code."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group()) if match.group()[0] not in 'R"' else match.group()[0] + re.sub(
        r"[^\n]", " ", match.group()[1:-1]) + '"'
    return re.sub(f"{COMMENT_OR_CHAR}|{LITERAL}", blank, source, flags=re.S)


def arguments(code, at):
    """(begin, end) of each argument between the bracket at `at` and the one that closes it, and the place of that."""
    begin, depth, found = at + 1, 0, []
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0 or (depth == 1 and code[i] == ","):
            found.append((begin, i))
            begin = i + 1
        if depth == 0:
            break
    return found, i


LAMBDA = re.compile(r"\bauto (\w+) = \[[^\]]*\](?=\()")


def composers(code):
    """(name, begin, end, arguments): from begin to end, these arguments of the lambda `name` are keys of the section `path`."""
    found = []
    for match in LAMBDA.finditer(code):
        parameters, closed = arguments(code, match.end())
        opened = code.find("{", closed)
        body = code[opened:arguments(code, opened)[1]]
        function_ends = code.find("\n}\n", opened)
        names = [(code[begin:end].split() or [""])[-1].lstrip("&*") for begin, end in parameters]
        joined = set(re.findall(r"\bpath, (\w+)\)", body))
        for other, begin, end, keys_of in found:
            if begin <= match.start() < end:
                for call in re.finditer(rf"\b{other}\(", body):
                    given = [body[b:e].strip() for b, e in arguments(body, call.end() - 1)[0]]
                    joined.update(given[i] for i in keys_of if i < len(given))
        indexes = {i for i, name in enumerate(names) if name and name in joined}
        if indexes:
            found.append((match.group(1), match.start(), function_ends if function_ends > 0 else len(code), indexes))
    return found


def composed(source):
    """(place, name) of each key that the source composes with the section of a rule."""
    code = blanked(source)
    # The prefix is `path` with a dot.
    for match in re.finditer(r"\bprefix \+ (?=\")", code):
        if re.search(r'prefix = std::string\(path\) \+ "\."', source[:match.start()]):
            yield match.end(), re.match(r'"(\w*)', source[match.end():]).group(1)
    calls = [(m.end() - 1, {1}) for m in re.finditer(r"\bjoin\((?=path,)", code)]
    for name, begin, end, indexes in composers(code):
        calls += [(m.end() - 1, indexes) for m in re.compile(rf"(?<![\w.>:]){name}\(").finditer(code, begin, end)]
    for at, indexes in calls:
        for i, (begin, end) in enumerate(arguments(code, at)[0]):
            for literal in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', source[begin:end]) if i in indexes else ():
                if name := re.fullmatch(r"([a-z]\w*)(=.*)?", literal.group(1)):
                    yield begin + literal.start(), name.group(1)


def names_of_structs(root, listed):
    """{struct: names in its section}, for each struct that lists keys; a section has all that its struct lists."""
    names_of = {}
    for key in listed:
        parts = key.split(".")
        for n in range(1, len(parts)):
            names_of.setdefault(".".join(parts[:n]), set()).add(parts[n])
    found = {}
    for path in files.sources(root):
        source = files.read(root, path)
        for match in re.finditer(r"^struct (\w+)[^;{]*\{", source, re.M):
            end = source.find("\n};", match.end())
            own = set(re.findall(r'\bfield\(\s*"(\w+)"', source[match.end():end]))
            sections = [names for names in names_of.values() if own and own <= names]
            if sections:
                found[match.group(1)] = set().union(*sections)
    return found


def unknown_composed(source, listed, of_struct):
    """(line, name) of what is no key: of the struct whose function composes it, elsewhere of any section."""
    last = {key.rsplit(".", 1)[-1] for key in listed}
    functions = [(m.start(), m.group(1)) for m in re.finditer(r"^\w[^\n;]*?\b(?:(\w+)::)?\w+\([^;]*?\)[^;(]*\{$", source, re.M)]
    for at, name in composed(source):
        struct = next((owner for begin, owner in reversed(functions) if begin < at), None)
        if name not in of_struct.get(struct, last):
            yield source.count("\n", 0, at) + 1, name


def texts(root, path):
    if path.startswith("pentatron/") and path.endswith(files.SOURCES):
        return literals(files.read(root, path))
    if path.endswith((".md", ".sh")) and path != PAGE or path.startswith(("benchmarks/", "scripts/")) and path.endswith(".py"):
        return list(enumerate(files.read(root, path).splitlines(), 1))
    return []


def unknown_keys(path, text, listed, sections):
    for match in DOTTED.finditer(text):
        name = match.group()
        if match.group(1) in sections and name not in listed and name not in sections and not FILE.match(name) \
                and not FOREIGN.match(name) and (path, name) not in WRONG_ON_PURPOSE:
            yield name
    for match in SET.finditer(text):
        if match.group(1) not in listed:
            yield match.group(1)


def violations(root):
    listed, sections = keys(root)
    if not listed:
        return [f"{PAGE}: lists no key"]
    found = []
    for path in files.listed(root):
        for line, text in texts(root, path):
            for name in unknown_keys(path, text, listed, sections):
                found.append(f"{path}:{line}: {name} is no key of the configuration")
    of_struct = names_of_structs(root, listed)
    for path in files.sources(root):
        for line, name in unknown_composed(files.read(root, path), listed, of_struct):
            found.append(f"{path}:{line}: {name} is no key of the section")
    return found
