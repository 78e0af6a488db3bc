#!/usr/bin/env python3
"""What ctest's summary does not say: which tests were skipped and why, and which took longest.

usage: test_report.py BUILD_FOLDER    (reads Testing/Temporary/LastTest.log of the last ctest run there)
"""
import collections
import pathlib
import re
import sys

LONGEST = 10
CASE = re.compile(r"^\[ +(OK|SKIPPED|FAILED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$")
ENTRY = re.compile(r"^\d+/\d+ Test: (.+)$")
ENTRY_TIME = re.compile(r"^Test time = +([\d.]+) sec$")


class Case:
    def __init__(self, entry, name, seconds):
        self.entry, self.name, self.seconds = entry, name, seconds

    def __str__(self):
        return self.entry if self.name is None else f"{self.entry.split('.')[0]}: {self.name}"


def read(log):
    """Cases that ran, entries of ctest as (seconds, name), and pairs of a skipped case and its reason. An entry without GoogleTest is one case."""
    cases, entries, skipped = [], [], []
    entry, has_cases, reason, expects_reason = None, False, "", False
    for line in log.splitlines():
        if match := ENTRY.match(line):
            entry, has_cases, reason, expects_reason = match[1], False, "", False
        elif match := CASE.match(line):
            has_cases = True
            case = Case(entry, match[2], int(match[3]) / 1000)
            if match[1] == "SKIPPED":
                skipped.append((case, reason or "no reason given"))
            else:
                cases.append(case)
            reason = ""
        elif re.search(r": Skipped$", line):
            expects_reason = True
            continue
        elif expects_reason:
            reason = line.strip()
        elif (match := ENTRY_TIME.match(line)) and entry:
            entries.append((float(match[1]), entry))
            if not has_cases:
                cases.append(Case(entry, None, float(match[1])))
        elif match := re.match(r"^(?:skipped|SKIP)[:;] *(.*)$", line):  # of scripts that end with status 77
            skipped.append((Case(entry, None, 0), match[1]))
        expects_reason = False
    return cases, entries, skipped


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    log = pathlib.Path(sys.argv[1]) / "Testing" / "Temporary" / "LastTest.log"
    if not log.is_file():
        print(f"error: {log} does not exist\n  try: ctest --test-dir {sys.argv[1]}", file=sys.stderr)
        return 1
    cases, entries, skipped = read(log.read_text(errors="replace"))
    print(f"\nThe {LONGEST} longest entries of ctest:")
    for seconds, name in sorted(entries, reverse=True)[:LONGEST]:
        print(f"  {seconds:6.1f} s  {name}")
    print(f"\nThe {LONGEST} longest tests in them:")
    for case in sorted(cases, key=lambda c: -c.seconds)[:LONGEST]:
        print(f"  {case.seconds:6.1f} s  {case}")
    by_reason = collections.defaultdict(list)
    for case, reason in skipped:
        by_reason[reason].append(str(case))
    print(f"\nSkipped tests: {len(skipped)}")
    for reason, names in sorted(by_reason.items()):
        print(f"  {reason}:")
        for name in names:
            print(f"    {name}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.exit(0)
