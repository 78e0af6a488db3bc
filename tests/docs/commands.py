#!/usr/bin/env python3
"""Runs the documents' commands as they are written: each page's in order, in a folder with only what the page starts from.

usage: commands.py SOURCE_FOLDER PROGRAM

Every ```sh block of README.md and docs/ is run, a ```yaml block that begins with a comment `# name.yaml` is written to
that file first. A page that has commands must be in PAGES; commands that cannot run here are in NOT_HERE, with the
reason. Those of docs/performance.md are not run, but checked (measurements.py). Runs are shortened: `pentatron train` gets
further keys at its end, which the page does not see, and loops run for their first and their last item.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import measurements
import measurements_test

SECONDS = 240

# What a page starts from: a script run in its empty folder, where $SOURCE is the project.
TEXT = r"""for i in $(seq 400); do printf 'It is a truth universally acknowledged that the loss falls, then rises %d times.\n\n' $i; done"""
JSONL = r"""for i in $(seq 200); do echo "{\"text\": \"It is a truth that the loss falls, then rises $i times, and nobody knows why.\"}"; done"""
CHATS = r"""for i in $(seq 40); do echo "{\"prompt\": \"It is $i\", \"completion\": \" truth\"}"; done"""
TRAIN = ("pentatron train tokenizer.path=tokenizer.json model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 dataset.path=text.jsonl")
MODEL = f"{JSONL} > text.jsonl; pentatron tokenize --train-bpe 300 --input text.jsonl --output tokenizer.json; {TRAIN} checkpoint.save=tiny; pentatron convert tiny DIR --format hf; rm -r tiny"
YAML = "{ echo 'model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4}'; echo 'dataset: {path: text.jsonl}'; } > my.yaml"
PAGES = {
    "docs/getting_started.md": f"""ln -s $SOURCE/examples $SOURCE/tests $SOURCE/corpus $SOURCE/.deps .; mkdir -p my_text build/release
        ln -s $PROGRAM build/release/pentatron; {TEXT} > my_text/novel.txt""",
    "docs/data.md": "",
    "docs/memory.md": "",
    "docs/python.md": "ln -s $SOURCE/corpus .",
    "docs/cli.md": f"{JSONL} > text.jsonl; {YAML}; mv my.yaml base.yaml; echo 'model: {{num_layers: 2}}' > large.yaml",
    "docs/checkpoints.md": f"{JSONL} > text.jsonl; {YAML}; pentatron train my.yaml checkpoint.save=runs/b; mkdir runs/a; cp -r runs/b/step_* runs/a/step_00000500",
    "docs/huggingface.md": f"{MODEL}; cp -r DIR MODEL; mkdir held_out; {TEXT} | head -40 | tee held_out.txt > held_out/a.txt; head -5 text.jsonl > more.jsonl; "
                           "cp $SOURCE/tests/data/hf_tiny/llama/expected.safetensors batch.safetensors",
    "docs/generation.md": f"""{MODEL}; {TRAIN} checkpoint.save=runs/quickstart/checkpoints; cp -r DIR chat
        for d in fr de; do pentatron train --hf DIR dataset.path=text.jsonl tokenizer.path=tokenizer.json peft.type=lora checkpoint.save=runs/$d; done
        sed -i '$ d' chat/tokenizer_config.json; sed -i '$ s/$/,/' chat/tokenizer_config.json
        echo '"chat_template": "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"}}' >> chat/tokenizer_config.json
        pentatron convert chat SmolLM2-135M-Instruct.Q4_1.gguf --format gguf; printf 'One\\nTwo\\n' > prompts.txt
        printf '{{"prompt": "One"}}\\n' > prompts.jsonl; echo '["One", {{"prompt": "Two"}}]' > prompts.json""",
    "docs/serving.md": f"""{MODEL}; sed -i '$ d' DIR/tokenizer_config.json; sed -i '$ s/$/,/' DIR/tokenizer_config.json
        echo '"chat_template": "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"}}' >> DIR/tokenizer_config.json
        pentatron train --hf DIR dataset.path=text.jsonl tokenizer.path=tokenizer.json peft.type=lora checkpoint.save=adapter
        openssl rand -hex 32 > token; chmod 600 token
        serve() {{ port=$1; shift; timeout 200 pentatron serve DIR --port $port kernels=order "$@" > $port.log 2>&1 &
          for i in $(seq 100); do curl -sf http://127.0.0.1:$port/health > health && return; sleep 0.2; done; cat $port.log; false; }}
        serve 8000 --name smol; serve 8001 --adapter french=adapter; serve 8002 --listen 0.0.0.0 --token-file token""",
    "docs/evaluation.md": f"""{MODEL}; cp -r DIR MODEL; {YAML}
        for i in $(seq 20); do echo "{{\\"question\\": \\"Is it $i?\\", \\"label\\": $((i % 2))}}"; done > questions.jsonl
        for t in my_task other; do
          echo "{{task: $t, dataset_path: json, dataset_kwargs: {{data_files: {{test: questions.jsonl}}}}, test_split: test,"
          echo 'output_type: multiple_choice, doc_to_text: question, doc_to_choice: ["no", "yes"], doc_to_target: label}}'
        done | split -l 2 - task_; mv task_aa my_task.yaml; mv task_ab other.yaml
        ln -s $SOURCE/corpus .; cp $SOURCE/tests/data/tokenizers/bert.json tokenizer.json
        pentatron train model.type=bert dataset.type=bert tokenizer.path=tokenizer.json model.hidden_size=32 checkpoint.save=tiny
        pentatron convert tiny BERT --format hf; python3 $SOURCE/tests/docs/glue_files.py""",
    "docs/monitoring.md": f"{JSONL} > text.jsonl; {YAML}; pentatron train my.yaml logger.dir=runs/a; pentatron train my.yaml logger.dir=runs/b",
    "docs/encoders.md": """ln -s $SOURCE/examples $SOURCE/corpus .; cp $SOURCE/tests/data/hf_tiny/bert/expected.safetensors batch.safetensors
        cp $SOURCE/tests/data/tokenizers/bert.json tokenizer.json
        pentatron train model.type=bert dataset.type=bert tokenizer.path=tokenizer.json model.hidden_size=32 checkpoint.save=tiny
        pentatron convert tiny DIR --format hf
        for i in $(seq 40); do echo "{\\"text\\": \\"word $i\\", \\"label\\": $((i % 3))}"; done | tee valid.jsonl > train.jsonl""",
    "docs/finetuning.md": f"""{MODEL}; cp -r DIR MODEL; {CHATS} > chats.jsonl; ln -s $SOURCE/examples .
        pentatron convert DIR SmolLM2-135M-Instruct.Q4_1.gguf --format gguf
        sed -i '$ d' DIR/tokenizer_config.json; sed -i '$ s/$/,/' DIR/tokenizer_config.json
        echo '"chat_template": "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"}}' >> DIR/tokenizer_config.json""",
    "docs/precision.md": f"""{JSONL} > text.jsonl
python3 -c "
import json, struct
head = json.dumps({{'x': {{'dtype': 'F32', 'shape': [4, 64], 'data_offsets': [0, 1024]}}}}).encode()
open('weights.safetensors', 'wb').write(struct.pack('<Q', len(head)) + head + struct.pack('<256f', *range(256)))" """,
    "docs/long-context.md": f"{JSONL} > text.jsonl",
    "docs/optimizers.md": f"{JSONL} > text.jsonl",
    "docs/moe.md": f"""{TEXT} > text.txt; ln -s $SOURCE/examples $SOURCE/corpus .
pentatron train dataset.path=text.txt model.num_layers=2 model.hidden_size=64 model.num_attention_heads=2 train.train_iters=1 \\
  train.seq_length=32 train.global_batch_size=1 checkpoint.save=DENSE""",
    "docs/parallelism.md": f"{JSONL} > text.jsonl; {YAML}",
}
NOT_HERE = [
    (r"^scripts/(quickstart|test)\.sh", "they install packages and build; CI runs them themselves"),
    (r"^(wandb|MLFLOW_\S+ mlflow|pip) |^tensorboard ", "other programs: scripts/test.sh --full peers"),
    (r"completion zsh", "needs zsh"),
    (r"^(mpirun|srun|torchrun) ", "launchers: scripts/test.sh --full launchers"),
    (r"^tail -f ", "runs until it is stopped"),
    (r"tensorboard --logdir|^pentatron serve ", "a server"),
    (r"^openssl rand", "the token of a server that runs"),
]
SHORT = ("train.train_iters=2 train.eval_iters=1 train.seq_length=32 train.micro_batch_size=1 train.global_batch_size=8 "
         "train.num_threads=1 logger.peak_tflops=1 kernels=order")
SHORT_BATCHES = "train.train_iters=2 train.num_threads=1 logger.peak_tflops=1 kernels=order"


def blocks(page):
    text = page.read_text()
    for match in re.finditer(r"^```(sh|yaml)\n(.*?)^```", text, re.M | re.S):
        yield match[1], match[2], text[:match.start()].count("\n") + 1


def commands_in(block):
    """The commands of a block, each with its continuation lines."""
    command = ""
    for line in block.splitlines():
        command += line + "\n"
        quotes = re.sub(r"\\.", "", command).count('"')
        if line.endswith("\\") or quotes % 2:
            continue
        if command.strip() and not command.lstrip().startswith("#"):
            yield command.rstrip("\n")
        command = ""


def shortened(command):
    """The command with only the first and the last item of its loops."""
    return re.sub(r"(\bfor \w+ in \w+ )(?:\w+ )+(\w+; do)", r"\1\2", command)


def wrapper(program):
    """`pentatron` as the pages call it: training ends after two steps."""
    return f"""#!/bin/bash
case "$1 $*" in
"train "*"dataset.type=batches"*) exec {program} "$@" {SHORT_BATCHES} ;;
"train "*"--help"*) exec {program} "$@" ;;
"train "*) exec {program} "$@" {SHORT} ;;
"finetune "*) exec {program} "$@" {SHORT_BATCHES} ;;
*) exec {program} "$@" ;;
esac
"""


def main():
    source, program = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
    only = sys.argv[3:]
    failures, ran, left_out = [], 0, {}
    for page in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
        name = str(page.relative_to(source))
        if only and name not in only:
            continue
        found = [(kind, text, line) for kind, text, line in blocks(page)]
        runs = [c for kind, text, _ in found if kind == "sh" for c in commands_in(text)]
        todo = [c for c in runs if not any(re.search(p, c) for p, _ in NOT_HERE)]
        if name == measurements.PAGE:  # they take hours: what their commands name must exist
            tests = unittest.defaultTestLoader.loadTestsFromModule(measurements_test)
            if not unittest.TextTestRunner().run(tests).wasSuccessful():
                failures.append("measurements_test.py: the check of measurements does not find what is planted")
            failures += measurements.violations(source, program)
            continue
        if todo and name not in PAGES:
            failures.append(f"{name} has commands and is not in PAGES: {todo[0]}")
            continue
        if not todo:
            continue
        with tempfile.TemporaryDirectory(prefix="docs.") as keep:
            folder = pathlib.Path(keep, "page")
            bin_folder = pathlib.Path(keep, "bin")
            folder.mkdir()
            bin_folder.mkdir()
            (bin_folder / "pentatron").write_text(wrapper(program))
            (bin_folder / "pentatron").chmod(0o755)
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI"))}
            environment.update(PATH=f"{bin_folder}:{environment['PATH']}", SOURCE=str(source), PROGRAM=str(bin_folder / "pentatron"),
                               OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(pathlib.Path(keep, "cache")))

            def run(command):
                with tempfile.TemporaryFile("w+", errors="replace") as text:
                    try:
                        status = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                                stdout=text, stderr=subprocess.STDOUT, timeout=SECONDS).returncode
                    except subprocess.TimeoutExpired:
                        status = "longer than the test waits"
                    text.seek(0)
                    return status, text.read()

            status, text = run("set -e; " + PAGES[name] if PAGES[name] else "true")
            if status != 0:
                failures.append(f"{name}: its folder could not be prepared: {text[-500:]}")
                continue
            for kind, block, line in found:
                if kind == "yaml":
                    if match := re.match(r"# (\S+\.yaml)", block):
                        (folder / match[1]).write_text(block)
                    continue
                for command in commands_in(block):
                    reason = next((why for p, why in NOT_HERE if re.search(p, command)), None)
                    if reason:
                        left_out[command.split("#")[0].strip()] = reason
                        continue
                    status, text = run(shortened(command))
                    ran += 1
                    if status != 0:
                        failures.append(f"{name}:{line}: exit code {status} of\n  $ {command}\n{text[-700:]}")
    for command, reason in left_out.items():
        print(f"not run: {command}  ({reason})")
    for failure in failures:
        print("\n" + failure)
    print(f"{ran} commands of the documents ran, {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
