#!/usr/bin/env python3
"""Every table of figures in docs/performance.md has a command, and what the page's commands name exists.

usage: measurements.py SOURCE_FOLDER PROGRAM

A command is a line of a ```sh block, or `code` in the text, that starts a program of the repository. A table has one in its own
cells or in the text since the previous table. It may also continue a section: a table under a ### heading of its own has the
commands above it in the ## section, and `--options` near a table belong to a command of its section.

Of each command this checks what it can without running it: the script, the files, the preset and the benchmark exist, a
script, a benchmark or `pentatron COMMAND --help` has the options, docs/configuration.md the keys. Words in capitals stand for
what a reader fills in; "..." does not, so a command with it is none.
"""
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys

PAGE = "docs/performance.md"
FOLDERS = r"(?:benchmarks|corpus|examples|scripts|tests)"
SCRIPT = re.compile(r"(?:\./)?((?:benchmarks|scripts|tests)/[\w/]+\.(?:py|sh))$")
OPTION = re.compile(r"(--[a-z][\w-]*)(?:=.*)?$", re.S)
GOOGLE_BENCHMARK = {"--benchmark_filter", "--benchmark_min_time", "--benchmark_repetitions", "--benchmark_list_tests"}


def parts(text):
    """(kind, content, line) of a page in order; kind: heading, sh, code (another block), table, text."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        begin = i
        if fence := re.match(r"```(\w*)", lines[i]):
            i += 1
            while i < len(lines) and not lines[i].startswith("```"):
                i += 1
            yield "sh" if fence[1] == "sh" else "code", "\n".join(lines[begin + 1:i]), begin + 1
            i += 1
        elif lines[i].startswith("#"):
            yield "heading", lines[i], begin + 1
            i += 1
        else:
            kind = "table" if lines[i].startswith("|") else "text"
            while i < len(lines) and not re.match(r"```|#", lines[i]) and lines[i].startswith("|") == (kind == "table"):
                i += 1
            yield kind, "\n".join(lines[begin:i]), begin + 1


def simple_commands(text):
    """The words of each command of a line of shell."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # a quote that does not end: no command
        return
    command = []
    for word in [*words, ";"]:
        if not re.fullmatch(r"[|&;]+", word):
            command.append(word)
            continue
        if "-c" in command[:-1]:  # bash -c '...'
            yield from simple_commands(command[command.index("-c") + 1])
        elif command:
            yield command
        command = []


def program(words):
    """(kind, name, words behind it) of a program of the repository that the words start, or None."""
    for i, word in enumerate(words):
        rest = words[i + 1:]
        base = word.rsplit("/", 1)[-1]
        if script := SCRIPT.match(word):
            return "script", script[1], rest
        if base.startswith("bench_"):
            return "bench", base, rest
        if base in ("pentatron", "pentatron-torch") and rest:
            return "pentatron", rest[0], rest[1:]
        if base in ("cmake", "ctest", "ninja"):
            return base, base, rest
    return None


def commands_in(kind, content):
    """Commands of a part of the page, as words."""
    lines = []
    if kind == "sh":
        without_comments = re.sub(r"(^|\s)#.*", "", content.replace("\\\n", " "), flags=re.M)
        lines = re.sub(r"(\||&&)\s*\n", r"\1 ", without_comments).splitlines()
    elif kind in ("text", "table"):
        lines = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", content)]
    for line in lines:
        for words in simple_commands(line):
            if "..." not in words and program(words):
                yield words


def options_in(content):
    """Of a text: code that is nothing but options, `--rounds 2 --steps 3`."""
    for code in re.findall(r"`(--[^`]+)`", content):
        yield [match[1] for word in code.split() if (match := OPTION.match(word))]


class Check:
    def __init__(self, root, program_path):
        self.root, self.program_path = pathlib.Path(root), program_path
        self.found = []
        self.keys = set(re.findall(r"^\| `([\w.]+)` \|", self.text("docs/configuration.md"), re.M))

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8") if (self.root / path).is_file() else ""

    @functools.lru_cache(None)
    def options_of_script(self, path):
        """Those that it reads, and those of scripts of the repository that a shell script starts."""
        text = self.text(path)
        if path.endswith(".py") and (declared := re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", text)):
            return set(declared) | {"--help"}
        options = set(re.findall(r"--[a-z][\w-]*", text))
        if path.endswith(".sh"):
            for other in re.findall(r"(?:benchmarks|scripts)/[\w/]+\.py", text):
                options |= self.options_of_script(other)
        return options

    @functools.lru_cache(None)
    def help_of(self, command):
        """Empty if there is no such command."""
        done = subprocess.run([self.program_path, command, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def options_of(self, kind, name):
        """The options that a command may have, or None if it is not known."""
        if kind == "script":
            return self.options_of_script(name)
        if kind == "bench":
            sources = sorted((self.root / "benchmarks" / name[len("bench_"):]).glob("*.cpp"))
            text = "".join(source.read_text(encoding="utf-8") for source in sources)
            return set(re.findall(r"\"(--[a-z][\w-]*)", text)) | (GOOGLE_BENCHMARK if re.search(r"benchmark/benchmark\.h|\bBENCHMARK", text) else set())
        if kind == "pentatron" and not name.startswith("-"):
            return set(re.findall(r"--[a-z][\w-]*", self.help_of(name)))
        return None

    def command(self, words, line):
        """Finds what a command names and nobody has."""
        kind, name, rest = program(words)
        where = f"{PAGE}:{line}: `{' '.join(words)[:90]}`: "
        if kind == "script" and not (self.root / name).is_file():
            self.found.append(f"{where}{name} does not exist")
            return
        if kind == "bench" and not list((self.root / "benchmarks" / name[len("bench_"):]).glob("*.cpp")):
            self.found.append(f"{where}no folder of benchmarks/ becomes {name}")
            return
        if kind == "pentatron" and not name.startswith("-") and not self.help_of(name):
            self.found.append(f"{where}pentatron has no command {name}")
            return
        known = self.options_of(kind, name)
        for word in rest:
            option = OPTION.match(word)
            if option and known is not None and option[1] not in known:
                self.found.append(f"{where}{name} has no option {option[1]}")
            key = re.match(r"([a-z][\w.]*)=", word)
            if kind == "pentatron" and key and key[1] not in self.keys:
                self.found.append(f"{where}{key[1]} is no key of the configuration")
        for word in words:
            if re.match(FOLDERS + r"/[\w./-]+$", word) and not (self.root / word).exists():
                self.found.append(f"{where}{word} does not exist")
        if kind == "cmake" and "--preset" in rest[:-1]:
            presets = json.loads(self.text("CMakePresets.json") or "{}").get("configurePresets", [])
            if rest[rest.index("--preset") + 1] not in [preset["name"] for preset in presets]:
                self.found.append(f"{where}no such preset")

    def section(self, content):
        """Checks one ## section: its parts in order."""
        commands, near, own_heading = [], [], False
        asked = []  # options of the text, with their lines
        for kind, text, line in content:
            here = list(commands_in(kind, text))
            for words in here:
                self.command(words, line)
            commands += here
            options = [(names, line) for names in options_in(text)] if kind in ("text", "table") else []
            asked += options
            if kind == "heading":
                near, own_heading = [], text.startswith("###")
            elif kind == "table":
                figures = re.search(r"\d", "".join(text.splitlines(True)[2:]))
                if figures and not (near or here or options or (own_heading and commands)):
                    self.found.append(f"{PAGE}:{line}: a table of figures without a command: {text.splitlines()[0][:80]}")
                near, own_heading = [], False
            else:
                near += here or [names for names, _ in options]
        known = set()
        for words in commands:
            known |= self.options_of(*program(words)[:2]) or set()
        for names, line in asked:
            for name in names:
                if name not in known:
                    self.found.append(f"{PAGE}:{line}: no command of the section has the option {name}")

    def violations(self):
        content = []
        for part in parts(self.text(PAGE)):
            if part[0] == "heading" and not part[1].startswith("###"):
                self.section(content)
                content = []
            content.append(part)
        self.section(content)
        return self.found


def violations(root, program_path):
    return Check(root, program_path).violations()


def main(root, program_path):
    found = violations(root, program_path)
    for line in found:
        print(line)
    print(f"measurements: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
