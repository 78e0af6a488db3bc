"""Do the programs start, and does a step of training end?"""
import os

from part import Part


def main():
    part = Part()
    part.attempt("the program prints its version", lambda: (True, {"version": part.run([part.program, "--version"]).strip()}))
    part.attempt("the program that loads torch starts", lambda: (bool(part.run([part.program, "config", "presets"])), {}))

    def one_step():
        steps = part.train("start", "dataset.type=mock", "train.train_iters=2", "model.num_layers=2", "model.hidden_size=64",
                           "model.num_attention_heads=4", "train.seq_length=64", "train.global_batch_size=2",
                           "train.micro_batch_size=1")
        return len(steps) >= 2, {"loss": steps[-1].get("loss")}

    part.attempt(f"two steps of a tiny model on device={part.device}", one_step)
    if part.device == "cuda":
        part.check("the program with CUDA kernels is in the bundle", os.path.exists(part.program + "-torch-cuda"))


main()
