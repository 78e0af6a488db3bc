/// The section `peft`: low-rank adapters for a frozen model. Keys keep the names of Hugging Face's
/// PEFT, without "lora_".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/config/field.h"

namespace pentatron::checkpoint {

enum class AdapterType : uint8_t { kNone, kLora, kDora };
constexpr auto enum_names(AdapterType) {
  return std::array{config::name(AdapterType::kNone, "none"),
                    config::name(AdapterType::kLora, "lora"),
                    config::name(AdapterType::kDora, "dora")};
}

/// How the frozen weights of linear layers are held.
enum class BaseDtype : uint8_t { kModel, kInt8 };
constexpr auto enum_names(BaseDtype) {
  return std::array{config::name(BaseDtype::kModel, "model"),
                    config::name(BaseDtype::kInt8, "int8")};
}

struct AdapterSettings {
  AdapterType type = AdapterType::kNone;
  int64_t r = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> target_modules = {"all-linear"};
  std::vector<std::string> modules_to_save;
  bool use_rslora = false;
  double lora_plus_ratio = 1;
  std::vector<std::string> rank_pattern, alpha_pattern;
  BaseDtype base_dtype = BaseDtype::kModel;
  std::string load;
  std::string base;

  bool on() const { return type != AdapterType::kNone; }

  static constexpr auto fields() {
    using C = AdapterSettings;
    using config::field;
    using config::OnResume;
    return std::tuple{
        field("type", &C::type,
              "kind of adapter to train instead of the model's weights; lora: low-rank additions "
              "to linear layers and embeddings; dora: lora with trained magnitudes of the rows")
            .on_resume(OnResume::kState),
        field("r", &C::r, "rank of adapters").size().on_resume(OnResume::kState),
        field("alpha", &C::alpha,
              "scale of adapters: an adapter's output is multiplied by alpha / r")
            .positive()
            .on_resume(OnResume::kState),
        field("dropout", &C::dropout,
              "dropout rate of adapter inputs; adapters of embeddings have none")
            .min(0)
            .less_than(1),
        field("target_modules", &C::target_modules,
              "names of linear layers and embeddings that get adapters, with wildcards: Hugging "
              "Face or pentatron names, complete or only the end after a dot (q_proj, layers.0.*, "
              "lm_head, embed_tokens); all-linear: all linear layers except the output layer, "
              "experts, routers, gates and projections to latents")
            .on_resume(OnResume::kState),
        field(
            "modules_to_save", &C::modules_to_save,
            "names of modules whose own weights are trained in addition to the adapters and "
            "stored with them, such as [lm_head, embed_tokens]; written as in peft.target_modules")
            .on_resume(OnResume::kState),
        field("use_rslora", &C::use_rslora,
              "rank-stabilized LoRA: multiply an adapter's output by alpha / sqrt(r)")
            .on_resume(OnResume::kState),
        field("lora_plus_ratio", &C::lora_plus_ratio,
              "LoRA+: learning rate of the matrices B of adapters, and of the magnitudes of dora, "
              "as a multiple of optimizer.lr")
            .positive(),
        field("rank_pattern", &C::rank_pattern,
              "ranks of individual target modules, instead of r, such as [\"q_proj=16\"]")
            .on_resume(OnResume::kState),
        field("alpha_pattern", &C::alpha_pattern,
              "alphas of individual target modules, instead of alpha, such as [\"q_proj=32\"]")
            .on_resume(OnResume::kState),
        field("base_dtype", &C::base_dtype,
              "data type of the frozen weights of linear layers and experts; model: dtype; int8: 8 "
              "bits with one scale per 32 columns, quantized when the model is loaded"),
        field("load", &C::load,
              "folder of a Hugging Face PEFT adapter to start from; its adapter_config.json sets "
              "the type, ranks, scales and target modules")
            .on_resume(OnResume::kTold),
        field("base", &C::base,
              "when resuming: the model that the adapters belong to, if it has been moved since "
              "the run started; another model is rejected")
            .on_resume(OnResume::kIgnored)};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::checkpoint
