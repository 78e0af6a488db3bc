"""Do several ranks train what one trains? Over NCCL where each has a GPU; else they share a GPU and exchange through the host's memory."""
import torch

from part import Part, relative

TRAIN = ("dataset.type=mock model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 model.vocab_size=256 "
         "train.seq_length=64 train.micro_batch_size=2 train.global_batch_size=16 train.train_iters=6 dtype=fp64").split()
EXPERTS = "model.num_moe_experts=4 model.moe_aux_loss_coeff=0.01".split()
LATENT = ("model.multi_latent_attention=true model.kv_lora_rank=16 model.qk_head_dim=8 model.qk_pos_emb_head_dim=8 "
          "model.v_head_dim=8").split()
TP, PP, CP = (f"parallel.{axis}_parallel_size=2" for axis in ("tensor_model", "pipeline_model", "context"))
EP, SP = "parallel.expert_model_parallel_size=2", "parallel.sequence_parallel=true"
LAYOUTS = {  # name: ranks, the model's keys, the layout's
    "data": (2, [], []),
    "data, ZeRO 3": (2, [], ["ddp.zero_stage=3"]),
    "tensor and sequence": (2, [], [TP, SP]),
    "tensor and sequence, overlapped": (2, [], [TP, SP, "comm_overlap.tp=true"]),
    "pipeline 1f1b": (2, [], [PP, "parallel.pipeline_schedule=1f1b"]),
    "context": (2, [], [CP]),
    "context by heads": (2, [], [CP, "parallel.cp_comm_type=[a2a]"]),
    "pipeline interleaved": (2, [], [PP, "parallel.pipeline_schedule=interleaved", "parallel.virtual_pipeline_model_parallel_size=2"]),
    "pipeline zb_h2": (2, [], [PP, "parallel.pipeline_schedule=zb_h2"]),
    "pipeline zb_v": (2, [], [PP, "parallel.pipeline_schedule=zb_v"]),
    "pipeline dualpipe_v": (2, [], [PP, "parallel.pipeline_schedule=dualpipe_v"]),
    "experts": (2, EXPERTS, [EP]),
    "experts by all-gather": (2, EXPERTS, [EP, "parallel.moe_token_dispatcher_type=allgather"]),
    "latent attention, context": (2, LATENT, [CP]),
    "recomputation and ZeRO 1": (2, [], ["train.recompute=full", "ddp.zero_stage=1"]),
    "Muon, ZeRO 2": (2, ["optimizer.optimizer=muon"], ["ddp.zero_stage=2"]),
    "tensor, pipeline": (4, [], [TP, SP, PP]),
    "experts, tensor, pipeline dualpipe_v": (4, EXPERTS, [EP, TP, SP, PP, "parallel.pipeline_schedule=dualpipe_v",
                                                          "parallel.expert_tensor_parallel_size=1"]),
}
BOUND = 1e-8


def losses(steps):
    return [step["loss"] for step in steps if "loss" in step]


def main():
    part = Part()
    gpus = torch.cuda.device_count() if part.device == "cuda" else 0
    if part.device == "cuda" and gpus < 2:
        part.skip("two ranks over NCCL", "NCCL needs a GPU for each rank, and this machine has one")
    right = {}

    def compare(name, ranks, model, layout):
        if tuple(model) not in right:
            right[tuple(model)] = losses(part.train(f"one_{len(right)}", *TRAIN, *model, timeout=60))
        folder = name.replace(" ", "_").replace(",", "")
        got = losses(part.train(folder, *TRAIN, *model, *layout, *(["dist.gpu_messages=host"] if 0 < gpus < ranks else []),
                                ranks=["--ranks", str(ranks), "--backend", "sockets"], timeout=60))
        worst = max(relative(a, b) for a, b in zip(got, right[tuple(model)], strict=True))
        return worst <= BOUND, {"loss": worst, "bound": BOUND}

    for name, (ranks, model, layout) in LAYOUTS.items():
        part.attempt(name, lambda name=name, ranks=ranks, model=model, layout=layout: compare(name, ranks, model, layout))


main()
