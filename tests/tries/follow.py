#!/usr/bin/env python3
"""Follows every `try:` of the program's errors, and sees that the error is gone.

usage: follow.py SOURCE_FOLDER PROGRAM

Each case is a command that fails. What its `try:` says is done: assignments and flags replace those of the command,
a command is run as it stands, `remove X` removes it; what is said in prose is done as the case tells. Each
alternative is followed apart, in a fresh copy of the prepared folder. A second test reads the sources: every text with
a `try:` must have come up, or be listed below with the reason why it cannot come up here. (Errors of the
configuration's rules are followed by tests/trainer/suggestions_test.cpp.)
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from cases import CASES, ELSEWHERE, PREPARE

KEY = r"[a-z_]+(?:\.[a-z0-9_]+)*"
SECONDS = 120


def run(command, folder, environment):
    with tempfile.TemporaryFile("w+", errors="replace") as text:
        started = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=text, start_new_session=True)
        try:
            status = started.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            status = started.wait()
        text.seek(0)
        return status, text.read()


def complaint(text):
    """The sentence of the (last) error, or of the first warning, that has a `try:`, and what follows it."""
    found = re.findall(r"^(?:error|warning): (.*(?:\n(?!\s*try:|error:|warning:).*)*)\n\s+try: (.*(?:\n    .*)*)", text, re.M)
    return found[-1] if found else None


def alternatives(remedy):
    return [part.strip() for part in re.split(r",? or (?=[a-z-])|, or ", remedy) if part.strip()]


def words_of(command):
    return re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+", command)


def replace_assignments(command, assignments):
    words = words_of(command)
    for assignment in assignments:
        key = assignment.split("=", 1)[0] + "="
        words = [w for w in words if not w.startswith(key)] + [assignment]
    return " ".join(words)


def replace_flag(command, flag, value):
    words = words_of(command)
    if flag in words:
        at = words.index(flag)
        del words[at:at + (2 if value is not None else 1)]
    return " ".join(words + [flag] + ([value] if value is not None else []))


def remove(command, what):
    words = words_of(command)
    if what in words:  # a flag
        at = words.index(what)
        has_value = at + 1 < len(words) and not words[at + 1].startswith("-") and "=" not in words[at + 1]
        del words[at:at + (2 if has_value else 1)]
        return " ".join(words)
    return " ".join(w for w in words if not w.startswith(what + "="))


def followed(command, sentence, alternative):
    """The command after doing what is said; None if it is prose."""
    if match := re.match(rf"({KEY}) in \{{(.*)\}}", alternative):
        return replace_assignments(command, [f"{match[1]}={match[2].split(', ')[0]}"])
    value = r"(?:\"[^\"]*\"|[^\s,]+(?:,[^\s,]+)*)"
    if match := re.match(rf"{KEY}={value}(?:(?: and |,? ){KEY}={value})*", alternative):
        wrong = re.search(rf"({KEY}) is not a key", sentence)
        return replace_assignments(remove(command, wrong[1]) if wrong else command, re.findall(rf"{KEY}={value}", match[0]))
    if match := re.match(r"((?:[A-Z_]+=\S+ ?)+)$", alternative):
        return f"{match[1]} {command}"
    if match := re.match(rf"(--[a-z0-9-]+)(?: ({value}))?", alternative):
        value = match[2] if match[2] not in ("to", "for", "with", "as") else None
        return replace_flag(command, match[1], value)
    if alternative.startswith("pentatron "):
        return alternative
    if match := re.match(rf"remove (--[a-z-]+|{KEY})", alternative):
        return remove(command, match[1])
    if match := re.match(r"unset ([A-Z_, and]+)", alternative):
        names = re.findall(r"[A-Z_]{3,}", match[1])
        return f"unset {' '.join(names)}; " + re.sub(r"^(?:[A-Z_]+=\S* )+", "", command)
    if match := re.fullmatch(rf"({KEY})", alternative):  # the right name of a key
        wrong = re.search(rf"({KEY}) is not a key", sentence)
        if wrong:
            return command.replace(f"{wrong[1]}=", f"{match[1]}=")
    return None


def check(case, template, environment):
    """Failures of one case, and the messages that came up."""
    name, command, doing = case
    failures, seen = [], []

    def run_afresh(command):
        # cp and rm: a tenth of the time of shutil's, which the two threads spend one after the other.
        with tempfile.TemporaryDirectory(prefix="tries.") as folder:
            subprocess.run(["cp", "-a", f"{template}/.", folder], check=True)
            try:
                return run(command, pathlib.Path(folder), environment)
            finally:
                subprocess.run(["rm", "-rf", folder], check=False)
                os.makedirs(folder, exist_ok=True)

    _, text = run_afresh(command)
    said = complaint(text)
    if said is None:
        return [f"{name}: no error with a `try:`\n  $ {command}\n{text[-600:]}"], [text]
    seen.append(text)
    sentence, remedy = said
    used = set()
    for alternative in [remedy] if remedy in doing else alternatives(remedy):
        told = next((key for key in doing if key in alternative), None)
        if told is not None:
            used.add(told)
        after = doing[told] if told is not None else followed(command, sentence, alternative)
        if after is None:
            failures.append(f"{name}: the case does not tell how to follow {alternative!r} of {remedy!r}")
            continue
        status, text = run_afresh(after)
        seen.append(text)
        if status != 0 or re.search(rf"^(?:error|warning): {re.escape(sentence)}", text, re.M):
            failures.append(f"{name}: {sentence}\n  try: {alternative}\n  $ {after}\n  -> exit code {status}: {text[-700:]}")
    for told in set(doing) - used:
        failures.append(f"{name}: the error does not say {told!r}: {remedy!r}")
    return failures, seen


def texts_in(source):
    """Every text with a `try:` with the parts between its values."""
    literal = r'"(?:[^"\\\n]|\\.)*"'
    for file in sorted(source.rglob("*.cpp")):
        code = re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.M)
        for group in re.finditer(rf"{literal}(?:\s*{literal})*", code):
            text = "".join(part[1:-1] for part in re.findall(literal, group[0])).replace('\\"', '"').replace("\\n", "\n")
            if "try: " not in text:
                continue
            chunks = [c.replace("{{", "{").replace("}}", "}") for c in re.split(r"(?<!\{)\{[^{}]*\}(?!\})", text)]
            yield f"{file.relative_to(source)}", text, chunks


def came_up(chunks, messages):
    """Whether a message has all the parts, in order."""
    for message in messages:
        at = 0
        for chunk in chunks:
            at = message.find(chunk, at)
            if at < 0:
                break
            at += len(chunk)
        else:
            return True
    return False


def main():
    source, program = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
    keep = tempfile.mkdtemp(prefix="tries.")
    template = pathlib.Path(keep, "folder")
    template.mkdir()
    environment = {k: v for k, v in os.environ.items()
                   if not re.match(r"(RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|PMI)", k)}
    environment.update(PATH=f"{program.parent}:{environment['PATH']}", OMP_NUM_THREADS="1", SOURCE=str(source),
                       DATA=str(source / "tests/data"), XDG_CACHE_HOME=str(pathlib.Path(keep, "cache")),
                       HF_HOME=str(pathlib.Path(keep, "hf")))
    try:
        status, text = run(PREPARE, template, environment)
        if status != 0:
            sys.exit(f"the folder could not be prepared: {text}")
        failures, seen = [], []
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            for failed, texts in pool.map(lambda case: check(case, template, environment), CASES):
                failures += failed
                seen += texts
    finally:
        shutil.rmtree(keep, ignore_errors=True)
    unused = {pattern for pattern, _ in ELSEWHERE}
    for file, text, chunks in texts_in(source / "pentatron"):
        excused = [p for p, _ in ELSEWHERE if re.search(p, f"{file}: {text}")]
        unused -= set(excused)
        if not excused and not came_up(chunks, seen):
            failures.append(f"{file}: no case follows {text!r}")
    failures += [f"cases.py excuses {pattern!r}, and no text is like that" for pattern in sorted(unused)]
    for failure in failures:
        print(failure + "\n")
    print(f"{len(CASES)} errors followed, {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
