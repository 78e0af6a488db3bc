"""Every CUDA file of the repository compiles for one architecture, on any machine with nvcc: on PATH, in CUDA_HOME or
/usr/local/cuda, or from PyPI in .deps/cuda. No GPU and no torch headers are needed. Exits with 77 if there is no nvcc."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

import files


def find_nvcc(root):
    places = [shutil.which("nvcc")]
    places += [os.path.join(home, "bin", "nvcc") for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    places += sorted(glob.glob(os.path.join(root, ".deps/cuda/lib/python3*/site-packages/nvidia/cu*/bin/nvcc")))
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def main(root, architecture="90"):
    nvcc = find_nvcc(root)
    if nvcc is None:
        print("skipped: no nvcc\n  try: scripts/test.sh, which installs it into .deps/cuda")
        return 77
    paths = [p for p in files.listed(root) if p.endswith(".cu")]
    failed = 0
    with tempfile.TemporaryDirectory() as out:
        for path in paths:
            command = [nvcc, "-c", "-std=c++17", f"-arch=sm_{architecture}", "-Werror", "all-warnings", "-I", root,
                       os.path.join(root, path), "-o", os.path.join(out, "object.o")]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                failed += 1
                print(f"{path}:\n{run.stdout}{run.stderr}")
    print(f"{len(paths)} CUDA files compiled for sm_{architecture} with {nvcc}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
