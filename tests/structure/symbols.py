"""No code in data (docs/design.md section 6, rules 1 and 3): nothing unpickles, loads a script module, opens a library or
starts a program but the ranks of a run. Looked for in the sources, and in what the built program imports."""
import re
import subprocess

import files

IN_SOURCE = [
    (re.compile(r"\btorch::(load|save|pickle_load|pickle_save|jit|serialize)\b"), "torch's pickle formats execute code"),
    (re.compile(r"\b(jit::load|pickle_load|Unpickler)\b"), "torch's pickle formats execute code"),
    (re.compile(r"#\s*include\s*<torch/(csrc/jit|serialize|script)"), "torch's pickle formats execute code"),
    (re.compile(r"\b(dlopen|dlmopen|dlsym)\b"), "no library is loaded by name"),
    (re.compile(r"\b(popen|posix_spawnp?|execl[pe]?|execvp?e?)\s*\("), "no program is started"),
    (re.compile(r"(?<![\w.>])(std::)?system\s*\("), "no program is started"),
]
# The supervisor starts ranks: this program itself, perhaps through mpirun, without a shell. The program becomes its other half.
# Parquet files are read by pentatron-parquet, which lies beside the program.
ALLOWED = {("pentatron/comm/supervisor.cpp", "execve"), ("pentatron/main.cpp", "execve"),
           ("pentatron/data/parquet_source.cpp", "posix_spawn")}
IMPORTED = re.compile(r"\b(torch::jit::(load|import_ir_module|unpickle|pickle_load|Unpickler)|torch::(load|pickle_load)\b|"
                      r"torch::serialize::InputArchive|dlopen|dlmopen|dlsym|popen|system|posix_spawnp?|execvp?e?|execl[pe]?)(@|\(|::|$)")


def violations(root):
    found = []
    for path in files.sources(root):
        text = files.read(root, path)
        text = re.sub(r"//[^\n]*", "", text)
        for pattern, why in IN_SOURCE:
            for match in pattern.finditer(text):
                if (path, match.group(1)) in ALLOWED:
                    continue
                found.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group(0).strip()}: {why}")
    return found


def violations_in_program(program):
    out = subprocess.run(["nm", "-uC", program], capture_output=True, text=True, check=True).stdout
    return violations_in_listing(out, program)


def violations_in_listing(listing, program):
    found = []
    for line in listing.splitlines():
        name = line.strip().split(" ", 1)[-1].strip()
        match = IMPORTED.match(name)
        if match and match.group(1) not in {function for _, function in ALLOWED}:
            found.append(f"{program}: imports {name}")
    return found
