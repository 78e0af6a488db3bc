"""Offline runs that pentatron wrote, read by wandb's own log reader and by MLflow's client.

  trackers.py PROGRAM      prints a line for each; status 1 if one fails
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(WANDB_MODE="offline", MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
import wandb
from mlflow.entities import RunStatus
from mlflow.tracking import MlflowClient
from wandb.proto import wandb_internal_pb2

KEYS = ["model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "model.vocab_size=64", "dataset.type=mock",
        "train.seq_length=16", "train.micro_batch_size=1", "train.global_batch_size=2", "train.num_threads=1", "device=cpu",
        "logger.peak_tflops=1", "checkpoint.load=auto", "logger.wandb_project=a project", "logger.mlflow_experiment=an experiment",
        "logger.run_name=the run"]


def train(program, folder, iterations):
    subprocess.run([program, "train", *KEYS, f"train.train_iters={iterations}", f"logger.dir={folder}/log", f"checkpoint.save={folder}/ck",
                    f"logger.mlflow_dir={folder}/mlruns"], check=True, stdout=subprocess.DEVNULL)
    with open(f"{folder}/log/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def items(record):
    return {item.key: json.loads(item.value_json) for item in record}


def read_wandb(file):
    """wandb's datastore, which refuses a record whose checksum is wrong."""
    wandb._set_internal_process()
    from wandb.sdk.internal.datastore import DataStore
    store = DataStore()
    store.open_for_scan(file)
    out = {"history": []}
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            out["history"].append({**items(record.history.item), "step": record.history.step.num})
        elif kind == "run":
            out["run"], out["config"] = record.run, items(record.run.config.update)
        elif kind == "summary":
            out["summary"] = items(record.summary.update)
        elif kind == "exit":
            out["exit"] = record.exit.exit_code
    return out


def equal(what, got, expected):
    if got != expected:
        raise AssertionError(f"{what}: {got!r}, expected {expected!r}")


def check_wandb(folder, lines):
    runs = sorted(glob.glob(f"{folder}/log/wandb/offline-run-*/run-*.wandb"), key=os.path.getmtime)
    equal("offline runs", len(runs), 2)
    first, second = map(read_wandb, runs)
    equal("ids", first["run"].run_id, second["run"].run_id)
    equal("project", first["run"].project, "a project")
    equal("name", first["run"].display_name, "the run")
    equal("config", first["config"]["model"]["num_layers"], 1)
    equal("seconds since the start", first["run"].start_time.seconds > 1.7e9, True)
    equal("starting step", second["run"].starting_step, 151)
    rows = first["history"] + second["history"]
    for key in ("loss", "learning_rate", "step_time_s"):
        equal(key, [row[key] for row in rows], [line[key] for line in lines])
    equal("steps", [row["step"] for row in rows], [line["iteration"] for line in lines])
    equal("summary", second["summary"]["loss"], lines[-1]["loss"])
    equal("exit code", second["exit"], 0)
    return f"{len(rows)} rows"


def check_mlflow(folder, lines):
    client = MlflowClient(tracking_uri=f"file://{folder}/mlruns")
    experiment = client.get_experiment_by_name("an experiment")
    runs = client.search_runs([experiment.experiment_id])
    equal("runs", len(runs), 1)
    run = runs[0]
    equal("name", run.info.run_name, "the run")
    equal("status", run.info.status, RunStatus.to_string(RunStatus.FINISHED))
    equal("parameter", run.data.params["model.num_layers"], "1")
    equal("last loss", run.data.metrics["loss"], lines[-1]["loss"])
    history = client.get_metric_history(run.info.run_id, "loss")
    equal("losses", [(metric.step, metric.value) for metric in history], [(line["iteration"], line["loss"]) for line in lines])
    client.set_tag(run.info.run_id, "reviewed", "yes")  # and the store can be written to
    equal("tag", client.get_run(run.info.run_id).data.tags["reviewed"], "yes")
    return f"{len(history)} values of loss"


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        train(program, folder, 150)
        lines = train(program, folder, 300)
        failed = 0
        for name, check in (("wandb", check_wandb), ("mlflow", check_mlflow)):
            try:
                print(f"{name:8} {check(folder, lines)}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"{name:8} FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
