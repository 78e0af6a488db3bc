"""Do two ranks train what one trains? With two GPUs over NCCL; else the CPU's ranks over sockets."""
import torch

from part import Part, relative

TRAIN = ("dataset.type=mock model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 model.vocab_size=256 "
         "train.seq_length=64 train.micro_batch_size=2 train.global_batch_size=16 train.train_iters=10 dtype=fp32").split()
LAYOUTS = {
    "data": [],
    "data, ZeRO 3": ["ddp.zero_stage=3"],
    "tensor and sequence": ["parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"],
    "pipeline 1f1b": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=1f1b"],
    "context": ["parallel.context_parallel_size=2"],
    "pipeline interleaved": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=interleaved",
                             "parallel.virtual_pipeline_model_parallel_size=2"],
    "pipeline zb_v": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=zb_v"],
    "pipeline dualpipe_v": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=dualpipe_v"],
}
BOUND = 1e-4


def losses(steps):
    return [step["loss"] for step in steps if "loss" in step]


def main():
    part = Part()
    gpus = torch.cuda.device_count() if part.device == "cuda" else 0
    keys = list(TRAIN)
    if part.device == "cuda" and gpus < 2:
        part.skip("two ranks over NCCL", "NCCL needs a GPU for each rank, and this machine has one")
        part.device = "cpu"
    right = losses(part.train("one", *TRAIN, timeout=60))

    def compare(name, layout):
        folder = name.replace(" ", "_").replace(",", "")
        got = losses(part.train(folder, *keys, *layout, ranks=["--ranks", "2", "--backend", "sockets"], timeout=60))
        worst = max(relative(a, b) for a, b in zip(got, right))
        return len(got) == len(right) and worst <= BOUND, {"loss": worst, "bound": BOUND}

    for name, layout in LAYOUTS.items():
        part.attempt(name, lambda name=name, layout=layout: compare(name, layout))


main()
