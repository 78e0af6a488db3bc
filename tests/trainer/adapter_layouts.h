/// The part of the equivalence matrix that trains adapters.
#pragma once

#include <string>
#include <vector>

#include "tests/trainer/layout.h"

namespace pentatron::test {

/// Beside models of these keys.
inline std::vector<Work> adapter_works(const std::string& gpt2, const std::string& bert,
                                       const std::string& t5) {
  return {
      // Adapters beside a frozen model: of all layers, with dropout and a faster B; of some, of
      // several ranks and scales, with trained magnitudes of rows.
      {"lora", gpt2 + " peft.type=lora peft.r=3 peft.alpha=12 peft.dropout=0.1 "
                      "peft.lora_plus_ratio=4"},
      {"dora", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
               "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
               "model.add_mlp_bias=true optimizer.clip_grad=0.5 "
               "peft.type=dora peft.r=4 peft.alpha=8 peft.use_rslora=true "
               "peft.target_modules=[q,v,proj,\"layers.[12].*.up\",\"layers.3.mlp.*\"] "
               "peft.rank_pattern=[\"v=2\"] peft.alpha_pattern=[\"layers.3.*=16\"]"},
      // Beside latents, and beside experts, which have none.
      {"lora_latents_moe",
       "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
       "model.ffn_hidden_size=64 model.multi_latent_attention=true model.kv_lora_rank=16 "
       "model.qk_head_dim=8 model.qk_pos_emb_head_dim=4 model.v_head_dim=8 "
       "model.num_moe_experts=8 model.moe_router_topk=2 model.moe_ffn_hidden_size=16 "
       "model.moe_layer_freq=[0]+[1]*3 model.moe_router_score_function=sigmoid "
       "model.moe_shared_expert_intermediate_size=16 model.moe_router_enable_expert_bias=true "
       "peft.type=lora peft.r=4 peft.dropout=0.1"},
      // Beside the experts themselves, and what they share.
      {"lora_experts", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
                       "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
                       "model.add_mlp_bias=true model.num_moe_experts=8 model.moe_router_topk=3 "
                       "model.moe_ffn_hidden_size=24 model.moe_layer_freq=[0]+[1]*3 "
                       "model.moe_shared_expert_intermediate_size=16 model.moe_aux_loss_coeff=0.05 "
                       "peft.type=lora peft.r=3 peft.target_modules=[\"experts.*\",all-linear] "
                       "peft.rank_pattern=[\"experts.fc2=2\"] optimizer.clip_grad=0.5"},
      // Beside a base in 8 bits, with experts.
      {"dora_int8", "model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 "
                    "model.num_query_groups=2 model.ffn_hidden_size=128 peft.type=dora peft.r=4 "
                    "peft.base_dtype=int8"},
      {"lora_int8_experts",
       "model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 "
       "model.num_query_groups=2 model.ffn_hidden_size=128 model.num_moe_experts=4 "
       "model.moe_router_topk=2 model.moe_ffn_hidden_size=64 model.moe_layer_freq=[0]+[1]*3 "
       "model.moe_shared_expert_intermediate_size=64 peft.type=lora peft.r=3 "
       "peft.target_modules=[\"experts.*\",all-linear] peft.base_dtype=int8"},
      // Beside experts, routers, norms and projections that train whole.
      {"lora_modules", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
                       "model.num_query_groups=2 model.ffn_hidden_size=64 "
                       "model.num_moe_experts=8 model.moe_router_topk=3 "
                       "model.moe_ffn_hidden_size=24 model.moe_layer_freq=[0]+[1]*3 "
                       "model.moe_aux_loss_coeff=0.05 peft.type=lora peft.r=3 "
                       "peft.modules_to_save=[\"experts.fc1\",router,\"*norm*\",qkv] "
                       "optimizer.clip_grad=0.5"},
      // Beside the vocabulary: a table for both of its uses, and one for each with trained
      // magnitudes.
      {"lora_words", gpt2 + " peft.type=lora peft.r=3 peft.dropout=0.1 "
                            "peft.target_modules=[embedding.word,output,qkv]"},
      {"dora_output", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
                      "model.num_query_groups=2 model.ffn_hidden_size=64 "
                      "model.untie_embeddings_and_output_weights=true peft.type=dora peft.r=3 "
                      "peft.target_modules=[output,qkv]"},
      // The same of one table, whose embedding has no adapter.
      {"dora_tied_output", "model.num_layers=2 model.hidden_size=32 model.num_attention_heads=4 "
                           "model.ffn_hidden_size=64 peft.type=dora peft.r=3 "
                           "peft.target_modules=[output,proj]"},
      {"lora_bert",
       bert + " peft.type=lora peft.r=4 peft.dropout=0.1 "
              "peft.target_modules=[all-linear,embedding.word,output]",
       "stories.jsonl"},
      {"lora_t5", t5 + " peft.type=lora peft.r=4 peft.target_modules=[all-linear,output]",
       "stories.jsonl"},
  };
}

inline std::vector<Layout> adapter_layouts() {
  const std::string tp = " parallel.tensor_model_parallel_size=",
                    pp = " parallel.pipeline_model_parallel_size=",
                    vp = " parallel.virtual_pipeline_model_parallel_size=",
                    sp = " parallel.sequence_parallel=true",
                    schedule = " parallel.pipeline_schedule=", zero = " ddp.zero_stage=",
                    recompute = " train.recompute=full", selective = " train.recompute=selective",
                    small = " ddp.bucket_size=1000", chunks = " comm_overlap.tp=true",
                    ep = " parallel.expert_model_parallel_size=",
                    cp = " parallel.context_parallel_size=";
  return {
      {"lora_tp2_sp", "lora", 2, tp + "2" + sp, true},
      {"lora_tp4_sp_chunks_recompute", "lora", 4,
       tp + "4" + sp + chunks + recompute + " train.micro_batch_size=8", true},
      {"lora_pp2_zb_v_selective", "lora", 2, pp + "2" + schedule + "zb_v" + selective, true},
      {"lora_zero3", "lora", 4, zero + "3" + small, true},
      {"lora_tp2_sp_pp2_zb_h1_zero2", "lora", 8,
       tp + "2" + sp + pp + "2" + zero + "2" + schedule + "zb_h1", true},
      {"lora_cp2_ring", "lora", 2, cp + "2", true},
      {"dora_tp4", "dora", 4, tp + "4", true},
      {"dora_tp2_sp_pp2_interleaved_zero1", "dora", 8,
       tp + "2" + sp + pp + "2" + vp + "2" + schedule + "interleaved" + zero + "1", true},
      {"dora_zero3_recompute", "dora", 2, zero + "3" + recompute, true},
      {"lora_latents_moe_tp2_sp_ep2", "lora_latents_moe", 4, tp + "2" + sp + ep + "2", true},
      // Keys are made of latents where the adapter is, and travel in their place.
      {"lora_latents_moe_cp2", "lora_latents_moe", 2, cp + "2", true},
      {"lora_experts_tp2_sp_ep2_etp2", "lora_experts", 4, tp + "2" + sp + ep + "2", true},
      {"lora_experts_ep4_pp2_zb_h1_zero3", "lora_experts", 8,
       ep + "4" + pp + "2" + schedule + "zb_h1" + zero + "3", true},
      {"dora_int8_tp2_sp_zero2", "dora_int8", 4, tp + "2" + sp + zero + "2", true},
      {"lora_int8_experts_tp2_ep2_pp2_zb_h1", "lora_int8_experts", 8,
       tp + "2" + ep + "2" + pp + "2" + schedule + "zb_h1" + " train.recompute=full", true},
      {"lora_modules_tp2_sp_ep2_pp2_zb_h1_zero3", "lora_modules", 8,
       tp + "2" + sp + ep + "2" + pp + "2" + schedule + "zb_h1" + zero + "3", true},
      {"lora_words_tp2_sp_pp2_zero1", "lora_words", 8, tp + "2" + sp + pp + "2" + zero + "1", true},
      {"lora_words_tp4_zero3", "lora_words", 8, tp + "4" + zero + "3" + recompute, true},
      {"lora_words_cp2", "lora_words", 2, cp + "2", true},
      {"dora_output_tp2_sp_pp2", "dora_output", 4, tp + "2" + sp + pp + "2", true},
      {"dora_output_tp2_zero3", "dora_output", 4, tp + "2" + zero + "3" + recompute, false},
      {"dora_tied_output_tp2_sp_pp2", "dora_tied_output", 4, tp + "2" + sp + pp + "2", true},
      {"dora_tied_output_tp2_zero3", "dora_tied_output", 4, tp + "2" + zero + "3" + small, false},
      {"lora_bert_tp2_sp_pp2", "lora_bert", 4, tp + "2" + sp + pp + "2", true},
      {"lora_t5_tp2_pp2_dp2", "lora_t5", 8, tp + "2" + pp + "2" + zero + "3", true},
  };
}

} // namespace pentatron::test
