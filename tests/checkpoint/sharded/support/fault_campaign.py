"""Ends the saving of checkpoints at every call that changes a file, lets such calls fail, and drops what was not synced:
afterwards the newest good checkpoint is no older than the last one that was committed, and saving goes on.

fault_campaign.py DRIVER SHIM [--full]     without --full at a sample of the calls
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile

FIRST, LAST = 1, 4
NEXT = 9  # the save after the fault


class Driver:
    def __init__(self, program, shim, scratch):
        self.program, self.shim, self.scratch = program, shim, scratch

    def run(self, *arguments, **settings):
        environment = dict(os.environ)
        if settings:
            environment["LD_PRELOAD"] = self.shim
            environment.update({f"IO_SHIM_{key.upper()}": str(value) for key, value in settings.items()})
        return subprocess.run([self.program, *map(str, arguments)], env=environment, capture_output=True, text=True,
                              timeout=120)

    def fresh(self, name):
        folder = os.path.join(self.scratch, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def check(self, committed, *folders):
        result = self.run("check", committed, *folders)
        return [] if result.returncode == 0 else result.stderr.strip().splitlines() or [f"exit {result.returncode}"]


def committed_in(text):
    lines = [line.split()[1] for line in text.splitlines() if line.startswith("committed")]
    return int(lines[-1]) if lines else 0


def one_fault(driver, mode, at):
    """What is wrong after this fault, as sentences."""
    root = driver.fresh("fault")
    folder = os.path.join(root, "run")
    result = driver.run("save", folder, FIRST, LAST, root=root, at=at, mode=mode)
    committed = committed_in(result.stdout)
    found = []
    if mode in ("kill", "killafter", "torn"):
        if result.returncode != -9:
            found.append(f"ended with {result.returncode} and was not killed")
    elif mode == "short":
        if result.returncode != 0 or "done" not in result.stdout:
            found.append(f"a short write ended the save: {result.stderr.strip()}")
    elif result.returncode not in (0, 3):
        found.append(f"exit code {result.returncode}: {result.stderr.strip()}")
    elif result.returncode == 3 and root not in result.stderr:
        found.append(f"the message does not name the file: {result.stderr.strip()}")
    found += driver.check(committed, folder)
    after = driver.run("save", folder, NEXT, NEXT)
    if after.returncode != 0:
        found.append(f"the next save failed: {after.stderr.strip()}")
    found += driver.check(NEXT, folder)
    found += [f"{name} was left behind" for name in os.listdir(folder) if ".tmp-" in name]
    return [f"{mode} at call {at}: {line}" for line in found]


class Node:
    """A file or folder: as the program sees it, as it was synced, and the changes since."""

    def __init__(self, empty):
        self.now, self.durable, self.since = empty, type(empty)(), []

    def apply(self, change):
        change(self.now)
        self.since.append(change)

    def sync(self):
        self.durable, self.since = type(self.now)(self.now), []


class Replay:
    """The files below a folder from the records of the shim."""

    def __init__(self, root_inode):
        self.root = Node({})
        self.by_inode = {root_inode: self.root}
        self.committed = 0

    def find(self, path):
        node = self.root
        for part in path.split("/") if path != "." else []:
            node = node.now[part]
        return node

    def parent(self, path):
        folder, _, name = path.rpartition("/")
        return self.find(folder or "."), name

    def add(self, path, inode, node):
        folder, name = self.parent(path)
        if self.by_inode.get(inode) is not None and folder.now.get(name) is self.by_inode[inode]:
            return  # was there and is only opened
        self.by_inode[inode] = node
        folder.apply(lambda entries: entries.update({name: node}))

    def step(self, op, a, b, c, data):
        if op == "mark":
            self.committed = committed_in(data.decode()) or self.committed
        elif op == "create":
            self.add(a, b, Node(bytearray()))
        elif op == "mkdir":
            self.add(a, b, Node({}))
        elif op == "write":
            self.by_inode[a].apply(lambda text, at=int(b): write_at(text, at, data))
        elif op in ("grow", "resize"):
            self.by_inode[a].apply(lambda text, size=int(b), cut=op == "resize": resize(text, size, cut))
        elif op == "sync":
            self.by_inode[a].sync()
        elif op == "remove":
            folder, name = self.parent(a)
            folder.apply(lambda entries: entries.pop(name, None))
        elif op == "rename":
            folder, old = self.parent(a)
            other, new = self.parent(b)
            assert folder is other, "renames stay in their folder"
            folder.apply(lambda entries, exchange=c == "2": rename(entries, old, new, exchange))
        else:
            raise ValueError(op)


def write_at(text, at, data):
    resize(text, at + len(data), False)
    text[at:at + len(data)] = data


def resize(text, size, cut):
    if len(text) < size:
        text.extend(bytes(size - len(text)))
    elif cut:
        del text[size:]


def rename(entries, old, new, exchange):
    if old not in entries:
        return
    if exchange and new in entries:
        entries[old], entries[new] = entries[new], entries[old]
    else:
        entries[new] = entries.pop(old)


def strict(node):
    """Only what was synced."""
    return node.durable


def names_first(node):
    """All names, but of the files only what was synced: how some file systems order things."""
    return node.now if isinstance(node.now, dict) else node.durable


def some(node):
    """What was synced and the first few changes after it, in each file and folder so many as chance wants."""
    state = type(node.durable)(node.durable)
    for change in node.since[:random.randint(0, len(node.since))]:
        change(state)
    return state


def materialize(node, view, path):
    state = view(node)
    if isinstance(state, dict):
        os.makedirs(path, exist_ok=True)
        for name, inner in state.items():
            materialize(inner, view, os.path.join(path, name))
    else:
        with open(path, "wb") as file:
            file.write(state)


def records(path):
    with open(path, "rb") as file:
        while line := file.readline():
            op, a, b, c, size = line.decode().rstrip("\n").split("\t")
            yield op, a, b, c, file.read(int(size))


def lost_writes(driver, every, forget=()):
    """Every `every`-th moment of one run, each in three views; sentences about what is wrong, and the number of states.
    Records of the kinds in `forget` are left out, as if the program had not made those calls."""
    root = driver.fresh("lost")
    log = os.path.join(driver.scratch, "log")
    inode = str(os.stat(root).st_ino)
    done = driver.run("save", os.path.join(root, "run"), FIRST, LAST, root=root, log=log)
    assert done.returncode == 0, done.stderr
    replay, found, states = Replay(inode), [], 0
    for number, record in enumerate(records(log), 1):
        if record[0] not in forget:
            replay.step(*record)
        if number % every:
            continue
        for view in (strict, names_first, some):
            states += 1
            folder = driver.fresh("state")
            materialize(replay.root, view, folder)
            found += [f"after record {number} ({record[0]}), {view.__name__}: {line}"
                      for line in driver.check(replay.committed, os.path.join(folder, "run"))]
    return found, states


def main(program, shim, *options):
    full = "--full" in options
    random.seed(1)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = tempfile.mkdtemp(prefix="pentatron-faults-", dir=base)
    driver = Driver(program, shim, scratch)
    try:
        root = driver.fresh("count")
        count_file = os.path.join(scratch, "calls")
        driver.run("save", os.path.join(root, "run"), FIRST, LAST, root=root, count=count_file)
        with open(count_file, encoding="ascii") as file:
            calls = int(file.read())
        found, points = [], 0
        for mode in ("kill", "killafter", "torn", "enospc", "eio", "short"):
            every = 1 if full else max(1, calls // 25)
            for at in range(1 + (0 if full else points % every), calls + 1, every):
                found += one_fault(driver, mode, at)
                points += 1
        lost, states = lost_writes(driver, 1 if full else max(1, calls // 50))
        found += lost
        if not lost_writes(driver, calls // 10, forget=["sync"])[0]:
            found.append("saving without fsync is not found out: these tests see nothing")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for line in found[:50]:
        print(line)
    print(f"{calls} calls; {points} faults and {states} states with writes lost; {len(found)} findings")
    return 1 if found or calls < 100 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
