"""One page of text about a check."""

MAX_FAILURES = 12


def number(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def part_row(name, part):
    counts = {True: 0, False: 0, None: 0}
    for check in part["checks"]:
        counts[check["ok"]] += 1
    return f"| {name} | {counts[True]} | {counts[False]} | {counts[None]} | {part['seconds']:.0f} s | {part['ended']} |"


def checked_nothing(device, part):
    """Whether a part came to its end on a GPU without a check that passed or failed, and without a figure."""
    return device == "cuda" and part["ended"] == "complete" and not part["figures"] and all(check["ok"] is None for check in part["checks"])


def failures(device, parts):
    lines = []
    for name, part in parts.items():
        if checked_nothing(device, part):
            lines.append(f"- {name}: nothing was checked")
        for check in part["checks"]:
            if check["ok"] is False:
                details = ", ".join(f"{key} {number(value)}" for key, value in check.items() if key not in ("name", "ok"))
                lines.append(f"- {name}: {check['name']}: {details[:240]}".replace("\n", " "))
        if part["ended"] != "complete":
            lines.append(f"- {name}: {part['ended']}: {part.get('output', '').strip()[-240:]}".replace("\n", " "))
    rest = len(lines) - MAX_FAILURES
    return lines[:MAX_FAILURES] + ([f"- and {rest} more, in gpu_check.json"] if rest > 0 else [])


def step_table(steps):
    lines = ["| model | program | step | tokens/s | speed / compiled PyTorch | MFU | memory |", "|---|---|---|---|---|---|---|"]
    for model, rows in steps.items():
        peer = rows.get("PyTorch, compiled", {}).get("median_s")
        for label, row in rows.items():
            if "median_s" not in row:
                lines.append(f"| {model} | {label} | {'failed' if 'error' in row else 'left out'} | | | | |")
                continue
            ratio = f"{peer / row['median_s']:.2f}" if peer else ""
            mfu = f"{100 * row['mfu']:.1f} %" if row.get("mfu") is not None else ""
            memory = f"{row['memory_bytes'] / 2**30:.2f} GiB" if row.get("memory_bytes") else ""
            lines.append(f"| {model} | {label} | {1000 * row['median_s']:.2f} ms | {row['tokens_per_s']:.0f} | {ratio} | {mfu} | {memory} |")
    return lines


def operator_table(operators):
    lines = ["| operator | entry | time | rate | share of a copy |", "|---|---|---|---|---|"]
    for one in operators:
        lines.append(f"| {one['operator']} | {one['entry']} | {1e6 * one['seconds']:.1f} us | {one['bytes'] / one['seconds'] / 1e9:.0f} GB/s | "
                     f"{100 * one['share_of_copy']:.0f} % |")
    return lines


def page(report):
    parts = report["parts"]
    speed = parts.get("speed", {}).get("figures", {})
    machine = next((part["machine"] for part in parts.values() if "machine" in part), {"gpus": [], "torch": "?", "libc": ""})
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    lines = [f"# Check of pentatron on {gpus}", "", f"device={report['device']}, torch {machine['torch']}, {machine['libc']}", "",
             "| part | passed | failed | left out | time | end |", "|---|---|---|---|---|---|"]
    lines += [part_row(name, part) for name, part in parts.items()]
    found = failures(report["device"], parts)
    if found:
        lines += ["", "## What failed", "", *found]
    limits = {key: value for key, value in speed.items() if key.endswith(("float32", "bfloat16"))}
    if limits:
        lines += ["", "## Limits of the machine, by this torch", ""]
        lines += [f"- {key.split()[0].split('_')[0]} {key.split()[1]}: {value / 1e12:.4g} TFLOP/s" for key, value in limits.items()]
    if "copy_bytes_per_s" in speed:
        lines.append(f"- copy: {speed['copy_bytes_per_s'] / 1e9:.0f} GB/s, read and written")
    if speed.get("steps"):
        lines += ["", "## Steps of training", "", *step_table(speed["steps"])]
    if speed.get("operators"):
        lines += ["", "## Operators", "", *operator_table(speed["operators"])]
    return "\n".join(lines) + "\n"
