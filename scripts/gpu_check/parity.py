"""Do models compute what transformers computed for them? tests/data/hf_tiny: loss, logits and gradients in fp64."""
import json
import os

from part import Part, read_safetensors, relative

# Bounds of the relative difference of the loss, of all logits (norm of the difference), and of norms of gradients. bf16 has 8 bits, and
# a token whose two experts have nearly one score may go to the other one.
BOUNDS = {"fp64": (1e-9, 1e-6, 1e-8), "fp32": (1e-5, 1e-4, 1e-3), "bf16": (5e-3, 0.2, 0.25)}


def compare(part, model, dtype):
    folder = os.path.join(part.data, "hf_tiny", model)
    out = os.path.join(part.scratch, f"{model}_{dtype}")
    os.makedirs(out, exist_ok=True)
    logits_file, grads_file = os.path.join(out, "logits.safetensors"), os.path.join(out, "grads.safetensors")
    line = part.run([part.program, "evaluate", folder, "--batches", os.path.join(folder, "expected.safetensors"), "--logits-out",
                     logits_file, "--grads-out", grads_file, f"dtype={dtype}", f"device={part.device}"], 60)
    expected, logits, grads = (read_safetensors(path) for path in (os.path.join(folder, "expected.safetensors"), logits_file,
                                                                    grads_file))
    loss = relative(json.loads(line)["loss"], expected["loss"].item())
    worst_logit = max(((logits[name].double() - expected[name].double()).norm() / expected[name].double().norm()).item()
                      for name in logits if name in expected)
    largest = max(value.item() for name, value in expected.items() if name.startswith("grad_norm."))
    worst_norm = 0.0
    for name, value in grads.items():
        norm = expected[f"grad_norm.{name}"].item()
        if norm > 1e-6 * largest:
            worst_norm = max(worst_norm, relative(value.double().norm().item(), norm))
    bounds = BOUNDS[dtype]
    return (loss <= bounds[0] and worst_logit <= bounds[1] and worst_norm <= bounds[2],
            {"loss": loss, "logits": worst_logit, "gradient_norms": worst_norm, "bounds": bounds})


def main():
    part = Part()
    models = sorted(os.listdir(os.path.join(part.data, "hf_tiny")))
    models.sort(key=lambda name: name not in ("llama", "gpt2"))
    for dtype in BOUNDS:
        for model in models:
            part.attempt(f"{model}, {dtype}", lambda model=model, dtype=dtype: compare(part, model, dtype))


main()
