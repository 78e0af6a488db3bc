#!/usr/bin/env python3
"""Writes files like those of GLUE's nine tasks into folders of the working directory."""

import os

COLUMNS = {
    "CoLA": None,
    "SST-2": ["sentence", "label"],
    "MRPC": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
    "STS-B": ["index", "genre", "sentence1", "sentence2", "score"],
    "QQP": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    "MNLI": ["index", "promptID", "sentence1", "sentence2", "gold_label"],
    "QNLI": ["index", "question", "sentence", "label"],
    "RTE": ["index", "sentence1", "sentence2", "label"],
    "WNLI": ["index", "sentence1", "sentence2", "label"],
}
LABELS = {"STS-B": ["3.200", "0", "5"], "MNLI": ["neutral", "entailment", "contradiction"], "QNLI": ["entailment", "not_entailment"],
          "RTE": ["entailment", "not_entailment"]}

for task, columns in COLUMNS.items():
    os.mkdir(task)
    parts = ["train", "dev_matched", "dev_mismatched"] if task == "MNLI" else ["train", "dev"]
    for part in parts:
        with open(f"{task}/{part}.tsv", "w", encoding="utf-8") as file:
            if columns:
                file.write("\t".join(columns) + "\n")
            for i in range(64):
                labels = LABELS.get(task, ["0", "1"])
                label = labels[i % len(labels)]
                row = ["gj04", label, "*", f"They said {i} \"times"] if columns is None else [
                    label if c in ("label", "Quality", "score", "is_duplicate", "gold_label") else f"the {c} \"of {i}" for c in columns]
                file.write("\t".join(row) + "\n")
    if task == "QQP":
        with open("QQP/train.tsv", "a", encoding="utf-8") as file:
            file.write("cut off\t1\n")
