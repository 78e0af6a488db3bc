"""The built program is hardened: position independent, read-only relocations, no executable stack, stack protector,
checked libc calls."""
import subprocess


def readelf(option, program):
    return subprocess.run(["readelf", "-W", option, program], capture_output=True, text=True, check=True).stdout


def violations(program):
    headers, segments = readelf("-h", program), readelf("-l", program)
    dynamic, symbols = readelf("-d", program), readelf("--dyn-syms", program)
    found = []
    if "DYN (" not in headers or "INTERP" not in segments:
        found.append("not a position independent executable (-fPIE -pie)")
    if "GNU_RELRO" not in segments:
        found.append("relocations are writable (-z relro)")
    if "BIND_NOW" not in dynamic and "NOW" not in dynamic:
        found.append("symbols are bound lazily (-z now)")
    stack = [line for line in segments.splitlines() if "GNU_STACK" in line]
    if not stack or " RWE " in stack[0]:
        found.append("the stack is executable (-z noexecstack)")
    if any("LOAD" in line and " RWE " in line for line in segments.splitlines()):
        found.append("a segment is both writable and executable")
    if "__stack_chk_fail" not in symbols:
        found.append("no stack protector (-fstack-protector-strong)")
    if not any(name in symbols for name in ("__memcpy_chk", "__snprintf_chk", "__vsnprintf_chk", "__memset_chk",
                                            "__memmove_chk", "__read_chk", "__fprintf_chk", "__printf_chk")):
        found.append("no checked libc calls (_FORTIFY_SOURCE)")
    return [f"{program}: {what}" for what in found]
