#!/usr/bin/env python3
"""Prints what a build spent its time on, from Ninja's log: the dearest outputs, and sums by folder.

usage: build_times.py BUILD_FOLDER [COUNT]    (default 25)

Times are wall times of single commands, so they grow when more commands run at once than there are cores.
"""
import collections
import pathlib
import re
import sys


def read(log):
    """Seconds of the last command that made each output."""
    seconds = {}
    for line in log.splitlines():
        fields = line.split("\t")
        if len(fields) >= 4 and fields[0].isdigit() and fields[1].isdigit():
            seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return seconds


def folder_of(output):
    match = re.search(r"CMakeFiles/([^/]+)\.dir/", output)
    return match[1] if match else "links and generated files"


def main():
    if not 2 <= len(sys.argv) <= 3 or (len(sys.argv) == 3 and not sys.argv[2].isdigit()):
        print(__doc__, file=sys.stderr)
        return 2
    log = pathlib.Path(sys.argv[1]) / ".ninja_log"
    if not log.is_file():
        print(f"error: {log} does not exist\n  try: cmake --build {sys.argv[1]}", file=sys.stderr)
        return 1
    seconds = read(log.read_text())
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 25
    print(f"{sum(seconds.values()):.0f} s in {len(seconds)} commands; the dearest {min(count, len(seconds))}:")
    for output, time in sorted(seconds.items(), key=lambda item: -item[1])[:count]:
        print(f"  {time:6.1f} s  {output}")
    folders = collections.defaultdict(lambda: [0.0, 0])
    for output, time in seconds.items():
        folders[folder_of(output)][0] += time
        folders[folder_of(output)][1] += 1
    print("by target:")
    for folder, (time, commands) in sorted(folders.items(), key=lambda item: -item[1][0])[:count]:
        print(f"  {time:6.1f} s  {commands:4d}  {folder}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.exit(0)
