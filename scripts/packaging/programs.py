#!/usr/bin/env python3
"""Collects the programs of a build for machines that do not build: bin/, lib/ and share/, movable to any folder.

usage: programs.py BUILD OUT [--test PROGRAM]...

BUILD is a build folder without MPI (the preset `bundle`). OUT gets the programs and what they read, the shared libraries that
they need beyond torch's and the C and C++ libraries, and the licenses of these; with --test also that program of BUILD/modules, in
tests/. Every program then looks for libraries in ../lib alone, and share/pentatron/torch_version tells `pentatron` which torch to
look for. Exits with 1 if a program needs more than Debian 12 has.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The newest versions of symbols that Debian 12 has.
CEILINGS = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
OF_THE_SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so\.\d+$")
OF_TORCH = re.compile(r"(libtorch(_cpu|_cuda)?\.so|libc10(_cuda)?\.so|libgomp\.so\.1|libcudart\.so\.13|libnccl\.so\.2)$")
# Copied into lib/, by the package that has its license.
TAKEN = {"libyaml-cpp.so.0.7": "libyaml-cpp0.7", "libzstd.so.1": "libzstd1", "libpcre2-8.so.0": "libpcre2-8-0", "libz.so.1": "zlib1g"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(program):
    """The shared libraries that an ELF file names, and where it looks for them."""
    dynamic = output("readelf", "-dW", program)
    return (re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic), re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic))


def symbol_versions(program):
    """The newest version of each kind of symbol that an ELF file needs: {"GLIBC": (2, 34), ...}."""
    newest = {}
    for kind, version in re.findall(r"Name: ([A-Z]+)_([\d.]+) ", output("readelf", "-VW", program)):
        newest[kind] = max(newest.get(kind, (0,)), tuple(map(int, version.split("."))))
    return newest


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_files(folder):
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if not os.path.islink(path) and is_elf(path))


def newest_versions(folder):
    """symbol_versions() over all programs and libraries in a folder."""
    newest = {}
    for path in elf_files(folder):
        for kind, version in symbol_versions(path).items():
            newest[kind] = max(newest.get(kind, (0,)), version)
    return newest


def violations(folder):
    """What keeps the programs of a folder from running on a bare Debian 12 with torch, one sentence each."""
    found = []
    beside = set(os.listdir(os.path.join(folder, "lib")))
    for path in elf_files(folder):
        name = os.path.relpath(path, folder)
        libraries, places = needed(path)
        found += [f"{name} needs {library}, which is not in lib/" for library in libraries
                  if library not in beside and not OF_THE_SYSTEM.match(library) and not OF_TORCH.match(library)]
        if name.startswith("bin/") and "libtorch_cuda.so" in libraries and "libnccl.so.2" not in libraries:
            found.append(f"{name} was built without NCCL, so several ranks would have no GPUs")
        found += [f"{name} looks for libraries in {place}" for place in places if place != "$ORIGIN/../lib"]
        for kind, version in symbol_versions(path).items():
            if kind in CEILINGS and version > CEILINGS[kind]:
                found.append(f"{name} needs {kind}_{'.'.join(map(str, version))}, and Debian 12 has "
                             f"{'.'.join(map(str, CEILINGS[kind]))}")
    return found


def set_rpath(paths):
    """Lets programs that have a path of libraries look in ../lib alone."""
    with_path = [path for path in paths if needed(path)[1]]
    with tempfile.NamedTemporaryFile("w", suffix=".cmake", encoding="utf-8") as script:
        script.writelines(f'file(RPATH_SET FILE "{path}" NEW_RPATH [[$ORIGIN/../lib]])\n' for path in with_path)
        script.flush()
        subprocess.run(["cmake", "-P", script.name], check=True)


def find_library(name):
    for line in output("/sbin/ldconfig", "-p").splitlines():
        if line.split()[:1] == [name] and "x86-64" in line:
            return line.split("=> ")[1]
    sys.exit(f"error: {name} is not on this machine\n  try: scripts/test.sh, which installs what a build needs")


def copy_libraries(out):
    os.makedirs(os.path.join(out, "lib"), exist_ok=True)
    licenses = os.path.join(out, "share", "pentatron", "licenses")
    os.makedirs(licenses, exist_ok=True)
    for library, package in TAKEN.items():
        if any(library in needed(path)[0] for path in elf_files(out)):
            shutil.copy(find_library(library), os.path.join(out, "lib", library))
            shutil.copy(f"/usr/share/doc/{package}/copyright", os.path.join(licenses, package))


def torch_of_build(build):
    """"2.11" of the torch that a build was configured with."""
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        library = re.search(r"^LibTorch_CPU_LIBRARY:\w+=(.*)$", file.read(), re.M)[1]
    with open(os.path.join(os.path.dirname(library), "..", "version.py"), encoding="utf-8") as file:
        return re.search(r"^__version__ = ['\"](\d+\.\d+)", file.read(), re.M)[1]


def cuda_of(folder):
    """"13" of the CUDA that programs of a folder need, or None."""
    libraries = (library for path in elf_files(os.path.join(folder, "bin")) for library in needed(path)[0])
    return next((found[1] for found in map(re.compile(r"libcudart\.so\.(\d+)$").match, libraries) if found), None)


def collect(build, out, tests=()):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(["cmake", "--install", build, "--prefix", out, "--component", "programs", "--strip"],
                   check=True, stdout=subprocess.DEVNULL)
    for place in glob.glob(os.path.join(out, "bin", "pentatron-parquet")):
        os.remove(place)  # needs Apache Arrow, which no torch brings
    if tests:
        os.makedirs(os.path.join(out, "tests"))
    for test in tests:
        copy = os.path.join(out, "tests", os.path.basename(test))
        shutil.copy(os.path.join(build, "modules", test) if os.sep not in test else test, copy)
        subprocess.run(["strip", copy], check=True)
    copy_libraries(out)
    set_rpath(elf_files(out))
    shutil.copy(os.path.join(root, "LICENSE"), os.path.join(out, "share", "pentatron", "LICENSE"))
    with open(os.path.join(out, "share", "pentatron", "torch_version"), "w", encoding="utf-8") as file:
        file.write(torch_of_build(build) + "\n")
    cuda = cuda_of(out)
    if cuda:
        with open(os.path.join(out, "share", "pentatron", "cuda_version"), "w", encoding="utf-8") as file:
            file.write(cuda + "\n")


def main():
    parser = argparse.ArgumentParser(description="collects the programs of a build for other machines")
    parser.add_argument("build")
    parser.add_argument("out")
    parser.add_argument("--test", action="append", default=[])
    args = parser.parse_args()
    collect(args.build, os.path.abspath(args.out), args.test)
    found = violations(args.out)
    for violation in found:
        print(f"error: {violation}", file=sys.stderr)
    if found:
        print("  try: cmake --preset bundle, whose programs need torch and Debian 12 alone", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
