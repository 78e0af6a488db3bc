"""Where the host waits for the device: on the path of a training step, only pentatron/nn/host_copies.cpp reads values of
tensors that may be on a GPU, so that a test can count such waits."""
import re

import files

FOLDERS = tuple(f"pentatron/{folder}/" for folder in ("layers", "models", "nn", "optim", "parallel", "trainer"))
PLACE = "pentatron/nn/host_copies."
# Each of these copies to the host, or makes the host wait for the size of its result.
READ = re.compile(r"(?:\.|->)(?:template )?item(?:<|\()|(?:\.|->)cpu\(\)|\.to\(\s*(?:at::|c10::)?kCPU|"
                  r"(?:\bat::|\.|->)(?:nonzero|masked_select|is_nonzero|argwhere|_local_scalar_dense)\(|"
                  r"\bat::equal\(|\bat::unique\w*\(")


def violations(root):
    found = []
    for path in files.sources(root):
        if not path.startswith(FOLDERS) or path.startswith(PLACE):
            continue
        for number, line in enumerate(files.read(root, path).splitlines(), 1):
            match = READ.search(line.split("//")[0])
            if match:
                found.append(f"{path}:{number}: {match.group(0)} reads a device on the host; use nn/host_copies.h")
    return found
