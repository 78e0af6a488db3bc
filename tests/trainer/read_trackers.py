"""Reads offline runs of W&B and MLflow's file store without either package, after their formats.

  read_trackers.py wandb FILE      the records of run-ID.wandb as JSON
  read_trackers.py mlflow STORE    the experiments of a file store (mlruns) as JSON
"""
import json
import os
import struct
import sys
import zlib

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def log_records(data):
    """The records of a LevelDB log with W&B's header and checksum."""
    if struct.unpack_from("<4sHB", data) != (b":W&B", 0xBEE1, 0):
        raise ValueError("no header")
    at, begun = HEADER, None
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            if data[at:at + left].strip(b"\0"):
                raise ValueError(f"padding at {at}")
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        at += HEADER
        part = data[at:at + length]
        at += length
        if len(part) != length or zlib.crc32(part, zlib.crc32(bytes([kind]))) != crc:
            raise ValueError(f"record before {at}")
        if (begun is None) != (kind in (FULL, FIRST)):
            raise ValueError(f"part {kind} before {at}")
        begun = (begun or b"") + part
        if kind in (FULL, LAST):
            yield begun
            begun = None
    if begun is not None:
        raise ValueError("the last record has no end")


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """Number -> values of a protobuf message: integers and bytes."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            raise ValueError(f"wire type {key & 7}")
        found.setdefault(key >> 3, []).append(value)
    return found


def items(message):
    """Of ConfigRecord, HistoryRecord and SummaryRecord."""
    parts = [fields(item) for item in fields(message).get(1, [])]
    return {part[1][0].decode(): json.loads(part[16][0]) for part in parts}


def wandb(path):
    with open(path, "rb") as file:
        records = [fields(record) for record in log_records(file.read())]
    out = {"numbers": [record[1][0] for record in records], "history": []}
    for record in records:
        if 2 in record:
            out["history"].append({**items(record[2][0]), "step": fields(fields(record[2][0])[2][0])[1][0]})
        if 3 in record:
            out["summary"] = items(record[3][0])
        if 17 in record:
            run = fields(record[17][0])
            out["run"] = {name: run[number][0].decode() for name, number in (("id", 1), ("project", 3), ("name", 8))}
            out["run"]["config"] = items(run[4][0])
            out["run"]["starting_step"] = run.get(14, [0])[0]
        if 18 in record:
            out["exit_code"] = fields(record[18][0]).get(1, [0])[0]
    return out


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def meta(folder):
    lines = [line.partition(": ") for line in text_of(folder, "meta.yaml").splitlines()]
    return {key: value.strip("'\"") for key, _, value in lines}


def mlflow(store):
    out = {}
    for experiment in sorted(os.listdir(store)):
        folder = os.path.join(store, experiment)
        runs = []
        for run in sorted(os.listdir(folder)):
            at = os.path.join(folder, run)
            if not os.path.isdir(at):
                continue
            metrics = {name: [[float(line.split()[1]), int(line.split()[2])] for line in text_of(at, "metrics", name).splitlines()]
                       for name in os.listdir(os.path.join(at, "metrics"))}
            for name, values in metrics.items():
                metrics[name] = [[value if value == value else None, step] for value, step in values]
            runs.append({"meta": meta(at), "metrics": metrics,
                         "params": {name: text_of(at, "params", name) for name in os.listdir(os.path.join(at, "params"))},
                         "tags": {name: text_of(at, "tags", name) for name in os.listdir(os.path.join(at, "tags"))}})
        out[meta(folder)["name"]] = {"id": meta(folder)["experiment_id"], "folder": experiment, "runs": runs}
    return out


if __name__ == "__main__":
    print(json.dumps({"wandb": wandb, "mlflow": mlflow}[sys.argv[1]](sys.argv[2])))
