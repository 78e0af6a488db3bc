#!/usr/bin/env python3
"""The check of docs/performance.md finds what is planted, and nothing in a page that holds."""
import os
import tempfile
import unittest

import measurements

GOOD = """# Performance

## Steps

Beside another program:

```sh
benchmarks/peers/run.sh --rounds 2 \\
  --steps 3 # or 4
chrt -r 5 pentatron train train.seq_length=32 --ranks 2 | tail -1
```

| what | step |
|---|---|
| ours | 1.5 s |

With `--steps 4`:

| what | step |
|---|---|
| ours | 1.4 s |

### One model

| what | step |
|---|---|
| ours | 1.2 s |

## Kernels

On another machine (`cmake --preset dev && build/dev/benchmarks/bench_kernels --benchmark_filter='a|b'`):

| operator | speed |
|---|---|
| norm | 3 GB/s |

## Words

| what | where |
|---|---|
| a word | no figure |

| what | command | time |
|---|---|---|
| a build | `bash -c 'time cmake --build build/dev'` | 3 s |
"""
FILES = {
    "benchmarks/peers/run.sh": 'exec python3 "$ROOT/benchmarks/peers/compare.py" "$@"\n',
    "benchmarks/peers/compare.py": 'parser.add_argument("--rounds")\nparser.add_argument(\n    "--steps")\nprint("--old is no more")\n',
    "benchmarks/kernels/norm_bench.cpp": "#include <benchmark/benchmark.h>\n",
    "docs/configuration.md": "| `train.seq_length` | `128` | tokens |\n",
    "CMakePresets.json": '{"configurePresets": [{"name": "dev"}]}',
    "pentatron": '#!/bin/sh\n[ "$1" = train ] && echo "  --ranks INT"\n',
}


class Measurements(unittest.TestCase):
    def found(self, page):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**FILES, measurements.PAGE: page}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            os.chmod(os.path.join(root, "pentatron"), 0o755)
            return measurements.violations(root, os.path.join(root, "pentatron"))

    def planted(self, old, new):
        self.assertEqual(GOOD.count(old), 1, old)
        return self.found(GOOD.replace(old, new))

    def test_a_page_whose_tables_have_commands_passes(self):
        self.assertEqual(self.found(GOOD), [])

    def test_a_table_without_a_command_is_found(self):
        for old, new in [("With `--steps 4`:", "On another day:"),
                         ("(`cmake --preset dev && build/dev/benchmarks/bench_kernels --benchmark_filter='a|b'`)", "(by `bench`, a program)"),
                         ("`bash -c 'time cmake --build build/dev'`", "a compiler"),
                         ("| a word | no figure |", "| a word | 3 |")]:
            with self.subTest(new):
                self.assertEqual([line for line in self.planted(old, new) if "a table of figures without a command" not in line], [])
                self.assertEqual(len(self.planted(old, new)), 1)

    def test_a_command_that_is_not_complete_is_none(self):
        self.assertEqual(len(self.planted("With `--steps 4`:", "With `pentatron train ... --ranks 2`:")), 1)

    def test_what_does_not_exist_is_found(self):
        for old, new, said in [("benchmarks/peers/run.sh", "benchmarks/peers/gone.sh", "benchmarks/peers/gone.sh does not exist"),
                               ("--rounds 2", "--round 2", "no option --round"),
                               ("--rounds 2", "--old", "no option --old"),
                               ("--ranks 2", "--processes 2", "train has no option --processes"),
                               ("pentatron train", "pentatron plan", "no command plan"),
                               ("train.seq_length", "train.length", "train.length is no key"),
                               ("--preset dev", "--preset fast", "no such preset"),
                               ("bench_kernels", "bench_kernel", "becomes bench_kernel"),
                               ("--benchmark_filter", "--benchmark_filters", "no option --benchmark_filters"),
                               ("With `--steps 4`", "With `--step 4`", "no command of the section has the option --step"),
                               ("| tail -1", "| tee examples/a.yaml; pentatron train examples/a.yaml", "examples/a.yaml does not exist")]:
            with self.subTest(new):
                self.assertTrue(any(said in line for line in self.planted(old, new)), self.planted(old, new))


if __name__ == "__main__":
    unittest.main()
