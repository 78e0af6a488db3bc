"""Every configuration key that a message, a help text or a page of the documentation names exists: docs/configuration.md
lists it. (cli_test compares that page with the program.)"""
import re

import files

PAGE = "docs/configuration.md"
COMMENT_OR_CHAR = r"//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)'"
LITERAL = r'R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:[^"\\\n]|\\.)*)"'
# "train.lr", also in "--set train.lr=1"; not a part of a path, of an address or of a call.
DOTTED = re.compile(r"(?<![\w./{}>-])([a-z]\w*)((?:\.[a-z]\w*)+)(?![\w/({-])(?!->)")
# What begins with the name of a section and is no key: names of files, keys of GGUF, tensors of Hugging Face.
FILE = re.compile(r".*\.(json|safetensors|gguf|h|cpp|py|sh|txt|yaml|jsonl|bin|idx)$|tokenizer\.model$")
FOREIGN = re.compile(r"tokenizer\.(ggml\.\w+|chat_template)$|model\.(embed_tokens|layers|norm)\b")
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


def texts(root, path):
    if path.startswith("pentatron/") and path.endswith(files.SOURCES):
        return literals(files.read(root, path))
    if path.endswith((".md", ".sh")) and path != PAGE:
        return list(enumerate(files.read(root, path).splitlines(), 1))
    return []


def unknown_keys(path, text, listed, sections):
    for match in DOTTED.finditer(text):
        name = match.group()
        if match.group(1) in sections and name not in listed and name not in sections and not FILE.match(name) \
                and not FOREIGN.match(name) and (path, name) not in WRONG_ON_PURPOSE:
            yield name


def violations(root):
    listed, sections = keys(root)
    if not listed:
        return [f"{PAGE}: lists no key"]
    found = []
    for path in files.listed(root):
        for line, text in texts(root, path):
            for name in unknown_keys(path, text, listed, sections):
                found.append(f"{path}:{line}: {name} is no key of the configuration")
    return found
