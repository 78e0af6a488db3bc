"""Writes what the experts of a Nemotron-H layer, which work in a latent, give in fp64: NemotronHMoE of transformers.

usage: gen_latent_experts.py OUT.safetensors
x, dy [T, h], y = layer(x), and of x and of each parameter the value and the gradient of sum(y dy), under the program's names.
"""
import sys
import pure64  # first: fp64 throughout
import torch
from safetensors.torch import save_file
from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE

NAMES = {"gate.weight": "router.weight", "gate.e_score_correction_bias": "router.expert_bias", "experts.up_proj": "experts.fc1.weight",
         "experts.down_proj": "experts.fc2.weight", "shared_experts.up_proj.weight": "shared.fc1.weight",
         "shared_experts.down_proj.weight": "shared.fc2.weight"}

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
layer = NemotronHMoE(NemotronHConfig(
    hidden_size=12, n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.5,
    moe_intermediate_size=10, moe_shared_expert_intermediate_size=14, moe_latent_size=8, mlp_hidden_act="relu2", mlp_bias=False))
tensors = {"x": torch.randn(1, 16, 12), "dy": torch.randn(1, 16, 12)}
for p in list(layer.parameters()) + list(layer.buffers()):
    p.data = 0.4 * torch.randn(p.shape)
x = tensors["x"].clone().requires_grad_(True)
tensors["y"] = layer(x)
(tensors["y"] * tensors["dy"]).sum().backward()
tensors["grad.x"] = x.grad
tensors = {name: t.detach()[0] for name, t in tensors.items()}
for name, p in list(layer.named_parameters()) + list(layer.named_buffers()):
    name = NAMES.get(name, name)
    tensors[name] = p.detach()
    if p.grad is not None:
        tensors["grad." + name] = p.grad
save_file({name: t.contiguous().clone() for name, t in tensors.items()}, sys.argv[1])
