"""The scripts of scripts/packaging with a program of a build: packaging_test.py ROOT PROGRAM."""
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT, PROGRAM = sys.argv[1:3]
sys.path.insert(0, os.path.join(ROOT, "scripts", "packaging"))
import programs  # noqa: E402
import wheel  # noqa: E402


class Packaging(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.join(scratch.name, "collected")
        for part in ("bin", "lib", "share/pentatron"):
            os.makedirs(os.path.join(self.folder, part))
        self.program = shutil.copy(PROGRAM, os.path.join(self.folder, "bin", "pentatron"))
        with open(os.path.join(self.folder, "share/pentatron/torch_version"), "w", encoding="utf-8") as file:
            file.write("2.11\n")

    def test_programs_need_no_more_than_debian_12_has(self):
        versions = programs.symbol_versions(self.program)
        self.assertGreaterEqual(versions["GLIBC"], (2, 2, 5))
        for kind in ("GLIBC", "GLIBCXX"):
            self.assertLessEqual(versions[kind], programs.CEILINGS[kind])

    def test_newer_symbols_are_told(self):
        before = dict(programs.CEILINGS)
        programs.CEILINGS["GLIBC"] = (2, 3)
        self.addCleanup(programs.CEILINGS.update, before)
        self.assertTrue(any("bin/pentatron needs GLIBC_2." in one for one in programs.violations(self.folder)))

    def test_libraries_that_are_not_beside_it_are_told(self):
        found = programs.violations(self.folder)
        self.assertIn("bin/pentatron needs libyaml-cpp.so.0.7, which is not in lib/", found)
        programs.copy_libraries(self.folder)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "share/pentatron/licenses/libyaml-cpp0.7")))
        self.assertFalse([one for one in programs.violations(self.folder) if "not in lib/" in one])

    def test_a_program_for_gpus_needs_nccl_and_names_its_cuda(self):
        self.addCleanup(setattr, programs, "needed", programs.needed)
        programs.needed = lambda path: (["libtorch_cuda.so", "libcudart.so.13"], [])
        message = "bin/pentatron was built without NCCL, so several ranks would have no GPUs"
        self.assertIn(message, programs.violations(self.folder))
        self.assertEqual(programs.cuda_of(self.folder), "13")
        programs.needed = lambda path: (["libtorch_cuda.so", "libnccl.so.2"], [])
        self.assertNotIn(message, programs.violations(self.folder))
        self.assertIsNone(programs.cuda_of(self.folder))

    def test_a_wheel_has_every_file_with_its_hash(self):
        out = os.path.dirname(self.folder)
        path = wheel.pack(self.folder, out)
        libc = programs.newest_versions(self.folder)["GLIBC"]
        self.assertTrue(path.endswith(f"-py3-none-manylinux_{libc[0]}_{libc[1]}_x86_64.whl"), path)
        with zipfile.ZipFile(path) as archive:
            info = f"pentatron-{wheel.version()}.dist-info"
            record = [line.split(",") for line in archive.read(f"{info}/RECORD").decode().splitlines()]
            self.assertEqual({name for name, _, _ in record}, set(archive.namelist()))
            for name, digest, size in record:
                if digest:
                    content = archive.read(name)
                    right = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    self.assertEqual((digest, size), (f"sha256={right}", str(len(content))), name)
            self.assertIn("Requires-Dist: torch==2.11.*\n", archive.read(f"{info}/METADATA").decode())
            self.assertIn("pentatron/py.typed", archive.namelist())
            self.assertEqual(archive.getinfo("pentatron/bin/pentatron").external_attr >> 16 & 0o777, 0o755)
        with open(path, "rb") as file:
            first = file.read()
        with open(wheel.pack(self.folder, out), "rb") as file:
            self.assertEqual(file.read(), first)


class Scripts(unittest.TestCase):
    def refusal(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_refusals_name_what_to_try(self):
        for script in ("bundle.sh", "wheel.sh"):
            path = os.path.join(ROOT, "scripts", script)
            self.assertIn(f"  try: {path} --help", self.refusal("bash", path, "--no-such-option"))
            self.assertIn("contains no program pentatron-torch", self.refusal("bash", path, "--build", "/nowhere"))
        text = self.refusal("bash", os.path.join(ROOT, "scripts", "gpu_check.sh"), "--bundle", "/nowhere")
        self.assertIn("error: --bundle /nowhere is not a bundle\n  try: a folder that scripts/bundle.sh made", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
