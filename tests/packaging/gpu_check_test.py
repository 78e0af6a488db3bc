"""check.py and page.py of scripts/gpu_check with parts that pass, fail, break off and hang: gpu_check_test.py ROOT."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "scripts", "gpu_check"))
import check  # noqa: E402
import page  # noqa: E402

PARTS = {
    "start": "json.dump({'machine': {'gpus': ['Some GPU'], 'torch': '2.11.0', 'libc': 'glibc 2.36'}, 'checks': [{'name': 'a', 'ok': True}], 'figures': {}}, "
             "open(sys.argv[3], 'w'))",
    "kernels": "json.dump({'checks': [{'name': 'Norm', 'ok': False, 'error': 'wrong by 2'}], 'figures': {}}, open(sys.argv[3], 'w'))",
    "parity": "sys.exit('no such file')",
    "curves": "time.sleep(60)",
    "use": "json.dump({'checks': [{'name': 'x', 'ok': None, 'skipped': 'y'}], 'figures': {}}, open(sys.argv[3], 'w'))",
    "speed": "json.dump({'checks': [{'name': 'x', 'ok': None, 'skipped': 'y'}], 'figures': {'copy_bytes_per_s': 3e12, 'operators': [{'operator': "
             "'norm_forward float32', 'entry': 'cuda', 'bytes': 1e9, 'seconds': 1e-3, 'share_of_copy': 0.33}], 'steps': {'gpt2, bf16': "
             "{'pentatron': {'median_s': 0.02, 'tokens_per_s': 1e5, 'mfu': 0.4, 'memory_bytes': 2**31}, 'PyTorch, compiled': {'median_s': 0.03, "
             "'tokens_per_s': 7e4}, 'PyTorch, eager': {'error': 'out of memory'}}}}}, open(sys.argv[3], 'w'))"}


class GpuCheck(unittest.TestCase):
    def test_a_failure_does_not_stop_the_next_part(self):
        with tempfile.TemporaryDirectory() as scratch:
            for name, code in PARTS.items():
                with open(os.path.join(scratch, name + ".py"), "w", encoding="utf-8") as file:
                    file.write("import json, sys, time\n" + code)
            check.HERE = scratch
            sys.argv = ["check.py", "--bundle", scratch, "--out", os.path.join(scratch, "out"), "--parts", ",".join(PARTS), "--limit", "2"]
            with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(check.main(), 1)
            with open(os.path.join(scratch, "out", "gpu_check.json"), encoding="utf-8") as file:
                report = json.load(file)
            with open(os.path.join(scratch, "out", "gpu_check.md"), encoding="utf-8") as file:
                self.assertEqual(file.read(), text.getvalue())
        self.assertEqual({name: part["ended"] for name, part in report["parts"].items()},
                         {"start": "complete", "kernels": "complete", "parity": "broke off with exit status 1",
                          "curves": "stopped after 2.0 s", "use": "complete", "speed": "complete"})
        for line in ("# Check of pentatron on Some GPU", "- kernels: Norm: error wrong by 2", "- parity: broke off with exit status 1: no such file",
                     "- use: nothing was checked",
                     "| gpt2, bf16 | pentatron | 20.00 ms | 100000 | 1.50 | 40.0 % | 2.00 GiB |", "| gpt2, bf16 | PyTorch, eager | failed | | | | |",
                     "| norm_forward float32 | cuda | 1000.0 us | 1000 GB/s | 33 % |", "- copy: 3000 GB/s, read and written"):
            self.assertIn(line, text.getvalue())

    def test_many_failures_stay_on_a_page(self):
        checks = [{"name": str(i), "ok": False} for i in range(100)]
        text = page.page({"device": "cuda", "parts": {"kernels": {"checks": checks, "figures": {}, "seconds": 1, "ended": "complete"}}})
        self.assertLess(text.count("\n"), 60)
        self.assertIn("- and 88 more, in gpu_check.json", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
