"""Runs one check of the repository: run.py <check> <root or program>... Prints what it finds; exits 1 if that is anything,
77 if the check cannot run here."""
import sys

import device_code
import formatting
import hardening
import host_reads
import includes
import key_tests
import keys
import links
import messages
import models
import planted_bugs
import symbols
import text
import unity


def main(check, target, *more):
    advice = []
    if check == "format":
        reason = formatting.available()
        if reason:
            print(f"skipped: {reason}")
            return 77
        found = formatting.violations(target)
    elif check == "sizes":
        found, advice = text.sizes(target)
    else:
        found = {
            "includes": includes.violations,
            "device_code": device_code.violations,
            "host_reads": host_reads.violations,
            "key_tests": key_tests.violations,
            "keys": keys.violations,
            "links": links.violations,
            "messages": messages.violations,
            "models": models.violations,
            "readmes": text.readmes,
            "unity": unity.violations,
            "words": text.words,
            "symbols": symbols.violations,
            "program_symbols": symbols.violations_in_program,
            "hardening": hardening.violations,
            "planted_bugs": planted_bugs.violations,
            "program_planted_bugs": planted_bugs.violations_in_program,
        }[check](target, *more)
    for line in advice:
        print(f"advice: {line}")
    for line in found:
        print(line)
    print(f"{check}: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
