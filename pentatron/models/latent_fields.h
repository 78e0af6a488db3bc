/// Keys of a model with multi-head latent attention, of ModelConfig C.
#pragma once

#include <tuple>

#include "pentatron/config/field.h"
#include "pentatron/models/model_enums.h"

namespace pentatron::models {

template <class C> constexpr auto latent_fields() {
  using config::field;
  using T = ModelType;
  return std::tuple{
      field("multi_latent_attention", &C::multi_latent_attention,
            "multi-head latent attention (DeepSeek): compute the keys and values of all heads from "
            "one small latent vector per token; generation caches only this vector")
          .only_for(T::kGpt),
      field("q_lora_rank", &C::q_lora_rank,
            "multi_latent_attention: size of the latent vector that queries are computed from; "
            "default: queries are computed from the hidden states")
          .size()
          .only_for(T::kGpt),
      field("kv_lora_rank", &C::kv_lora_rank,
            "multi_latent_attention: size of the latent vector that keys and values are computed "
            "from")
          .size()
          .only_for(T::kGpt),
      field(
          "qk_head_dim", &C::qk_head_dim,
          "multi_latent_attention: size of the part of each query and key head that is not rotated")
          .size()
          .only_for(T::kGpt),
      field("qk_pos_emb_head_dim", &C::qk_pos_emb_head_dim,
            "multi_latent_attention: size of the part of each query and key head that is rotated "
            "(rotary position embeddings); all key heads share this part of the key")
          .size()
          .multiple_of(2)
          .only_for(T::kGpt),
      field("v_head_dim", &C::v_head_dim, "multi_latent_attention: size of each value head")
          .size()
          .only_for(T::kGpt),
      field("latent_layernorm_epsilon", &C::latent_layernorm_epsilon,
            "multi_latent_attention: layernorm_epsilon of the norms of the latent vectors; "
            "default: layernorm_epsilon")
          .positive()
          .only_for(T::kGpt)};
}

} // namespace pentatron::models
