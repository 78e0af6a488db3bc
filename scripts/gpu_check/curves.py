"""Is every training step PyTorch's? 20 steps of tests/data/training_curves, computed by PyTorch in fp64 and fp32."""
import json
import os

from part import Part, relative

KEYS = ("dataset.type=batches train.train_iters=20 train.global_batch_size=4 train.micro_batch_size=4 optimizer.lr=2e-3 "
        "optimizer.min_lr=2e-4 optimizer.adam_beta1=0.9 optimizer.adam_beta2=0.95 optimizer.adam_eps=1e-8 "
        "optimizer.weight_decay=0.1 optimizer.clip_grad=1.0 scheduler.lr_decay_style=cosine scheduler.lr_warmup_iters=4 "
        "scheduler.lr_decay_iters=20").split()
# Of loss and of the norm of gradients. In bf16 rounding differs from step to step; only the course is compared.
BOUNDS = {"fp64": (1e-8, 1e-7), "fp32": (1e-4, 1e-3), "bf16": (0.02, 0.25)}


def compare(part, model, dtype):
    curves = os.path.join(part.data, "training_curves")
    with open(os.path.join(curves, f"{model}.json"), encoding="utf-8") as file:
        curve = json.load(file)["float32" if dtype == "fp32" else "float64"]
    steps = part.train(f"curve_{model}_{dtype}", f"checkpoint.load=hf:{os.path.join(part.data, 'hf_tiny', model)}",
                       f"dataset.path={os.path.join(curves, model)}.safetensors", f"dtype={dtype}", *KEYS, timeout=60)
    losses = [step for step in steps if "loss" in step]
    loss = max(relative(step["loss"], right) for step, right in zip(losses, curve["loss"]))
    norm = max(relative(step["grad_norm"], right) for step, right in zip(losses, curve["grad_norm"]))
    return (len(losses) == 20 and loss <= BOUNDS[dtype][0] and norm <= BOUNDS[dtype][1],
            {"steps": len(losses), "loss": loss, "gradient_norm": norm, "bounds": BOUNDS[dtype], "last_loss": losses[-1]["loss"]})


def repeats(part, dtype):
    """Two equal runs on the text that comes with pentatron give the same bits, and the loss falls."""
    keys = [f"dtype={dtype}", "train.train_iters=60", "model.num_layers=2", "model.hidden_size=128", "model.num_attention_heads=4",
            "train.seq_length=128", "train.global_batch_size=8", "train.micro_batch_size=8", "optimizer.lr=2e-3"]
    first, second = ([step["loss"] for step in part.train(f"repeat_{dtype}_{i}", *keys, timeout=80) if "loss" in step]
                     for i in range(2))
    return first == second and first[-1] < first[0] - 1, {"first_loss": first[0], "last_loss": first[-1], "same_bits": first == second}


def main():
    part = Part()
    models = sorted(name[:-5] for name in os.listdir(os.path.join(part.data, "training_curves")) if name.endswith(".json"))
    for dtype in BOUNDS:
        for model in models:
            part.attempt(f"{model}, {dtype}", lambda model=model, dtype=dtype: compare(part, model, dtype))
        if dtype != "fp64":
            part.attempt(f"two equal runs, {dtype}", lambda dtype=dtype: repeats(part, dtype))


main()
