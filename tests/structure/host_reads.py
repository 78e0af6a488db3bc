"""Where the host waits for the device: on the path of a training step, only pentatron/nn/host_copies.cpp reads values of
tensors that may be on a GPU, so that a test can count such waits, and copies there, through pinned memory."""
import re

import files

FOLDERS = tuple(f"pentatron/{folder}/" for folder in ("layers", "models", "nn", "optim", "parallel", "trainer"))
PLACE = "pentatron/nn/host_copies."
# Each of these copies to the host, or makes the host wait for the size of its result.
READ = re.compile(r"(?:\.|->)(?:template )?item(?:<|\()|(?:\.|->)cpu\(\)|\.to\(\s*(?:at::|c10::)?kCPU|"
                  r"(?:\bat::|\.|->)(?:nonzero|masked_select|is_nonzero|argwhere|_local_scalar_dense)\(|"
                  r"\bat::equal\(|\bat::unique\w*\(")
COPY = re.compile(r"(?:\.|->)to\(\s*(?:[A-Za-z_][\w.>()-]*(?:\.|->))?device_?\b")


def violations(root):
    found = []
    for path in files.sources(root):
        if not path.startswith(FOLDERS) or path.startswith(PLACE):
            continue
        for number, line in enumerate(files.read(root, path).splitlines(), 1):
            code = line.split("//")[0]
            for rule, what in (READ, "reads a device on the host"), (COPY, "may wait for the device"):
                match = rule.search(code)
                if match:
                    found.append(f"{path}:{number}: {match.group(0)} {what}; use nn/host_copies.h")
    return found
