#include "pentatron/trainer/adapters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/naming.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/model_files.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/record.h"
#include "pentatron/trainer/described_run.h"

namespace pentatron::trainer {

namespace {

/// model_type of the base's config.json; empty: it has none.
std::string family_of_base(const Config& config) {
  std::string where;
  if (const auto foreign = foreign_model(config.checkpoint)) {
    where = *foreign;
  } else if (const auto run = described_run(config.checkpoint)) {
    where = run->folder.string();
  }
  if (where.empty()) return {};
  for (const auto& [name, text] : checkpoint::model_files(where))
    if (name.ends_with("/config.json"))
      return json_get_or<std::string>(parse_json(text, name), "model_type", "", name);
  return {};
}

} // namespace

void check_adapters(const Config& config, config::Violations& violations) {
  const checkpoint::AdapterSettings& peft = config.peft;
  if (!peft.on()) return;
  if (peft.base_dtype == checkpoint::BaseDtype::kInt8 && config.ddp.zero_stage == 3)
    violations.add("peft.base_dtype",
                   "peft.base_dtype=int8 is not supported with ddp.zero_stage=3, which shards the "
                   "weights of the model",
                   "ddp.zero_stage=2");
  const std::string type = fmt::format("peft.type={}", config::to_string(peft.type));
  if (!peft.base.empty() && (config.checkpoint.load.empty() || config.checkpoint.finetune ||
                             foreign_model(config.checkpoint)))
    violations.add(
        "peft.base",
        fmt::format("peft.base={} has no effect on a run that does not resume", peft.base),
        "peft.base=\"\"");
  if (!config.train.freeze.empty())
    violations.add("train.freeze",
                   fmt::format("train.freeze has no effect with {}, which freezes all weights of "
                               "the model",
                               type),
                   "train.freeze=[]");
  if (peft.dropout > 0 && peft.type == checkpoint::AdapterType::kDora)
    violations.add(
        "peft.dropout",
        fmt::format("peft.dropout={} is not supported with peft.type=dora", peft.dropout),
        "peft.dropout=0");
  if (peft.dropout > 0 && models::model_spec(config.model.with_one_layer()).streams.size() > 1)
    violations.add("peft.dropout",
                   fmt::format("peft.dropout={} is not supported with model.type={}", peft.dropout,
                               config::to_string(config.model.type)),
                   "peft.dropout=0");
  // Names are compared with those of every layer, which takes long for models that cannot be; their
  // names are looked at when the model is built.
  constexpr int64_t kMostLayers = 10000;
  if (config.model.total_layers() > kMostLayers) return;
  const checkpoint::Adapter parts =
      checkpoint::adapter_parts(peft, config.model, family_of_base(config), violations);
  const std::vector<checkpoint::AdaptedModule>& modules = parts.modules;
  using Use = nn::AdaptedUse;
  const auto first = [&](bool embeddings) {
    return std::ranges::find_if(modules, [&](const auto& one) {
      return one.module.experts > 0 || one.module.use == Use::kTokenWise ||
             (embeddings && one.module.use == Use::kEmbedding);
    });
  };
  const auto what = [](const checkpoint::AdaptedModule& one) {
    if (one.module.experts > 0) return "experts";
    return one.module.use == Use::kEmbedding ? "embeddings"
                                             : "routers, gates and projections to latents";
  };
  if (const auto plain = first(true);
      plain != modules.end() && peft.type == checkpoint::AdapterType::kDora)
    violations.add("peft.type",
                   fmt::format("{} is not supported for {} ({} in peft.target_modules)", type,
                               what(*plain), plain->module.hf),
                   "peft.type=lora");
  // Those of embeddings have none in PEFT, whatever lora_dropout is.
  if (const auto plain = first(false); plain != modules.end() && peft.dropout > 0)
    violations.add("peft.dropout",
                   fmt::format("peft.dropout={} is not supported for {} ({} in "
                               "peft.target_modules)",
                               peft.dropout, what(*plain), plain->module.hf),
                   "peft.dropout=0");
}

checkpoint::Adapter configured_adapter(const Config& config) {
  if (!config.peft.on()) return {};
  config::Violations violations;
  checkpoint::Adapter parts =
      checkpoint::adapter_parts(config.peft, config.model, family_of_base(config), violations);
  violations.throw_if_any();
  return parts;
}

std::shared_ptr<const nn::AdapterPlan> plan_adapters(const Config& config) {
  if (!config.peft.on()) return nullptr;
  const checkpoint::Adapter parts = configured_adapter(config);
  return std::make_shared<const nn::AdapterPlan>(
      checkpoint::adapter_plan(parts.modules, config.peft, parts.whole));
}

models::ParamSpecs adapter_specs(const Config& config) {
  const auto model = models::make_model(config.model, {.adapters = plan_adapters(config)});
  models::ParamSpecs specs;
  for (const nn::Param& param : model->params())
    if (param.adapter || param.with_adapters) specs.emplace(param.name(), param.spec());
  return specs;
}

void adopt_adapter(checkpoint::AdapterSettings& settings, const std::string& load) {
  checkpoint::AdapterSettings loaded = checkpoint::read_peft_settings(load);
  loaded.lora_plus_ratio = settings.lora_plus_ratio;
  loaded.load = settings.load;
  loaded.base = settings.base;
  settings = std::move(loaded);
}

void check_adopted(const checkpoint::AdapterSettings& adopted, Config config,
                   config::Violations& violations) {
  const std::string load = config.peft.load;
  const auto refuse = [&](const std::string& why, const char* remedy) {
    violations.add("peft.load", fmt::format("peft.load={} {}", load, why), remedy);
  };
  checkpoint::check_saved_modules(load, adopted, config.model, family_of_base(config));
  if (!config.model.untie_embeddings_and_output_weights && checkpoint::ties_adapters(load))
    refuse("has one adapter for embedding and output layer (ensure_weight_tying), which is "
           "supported for generation alone",
           "peft.load=DIR with an adapter that was trained without ensure_weight_tying");
  config.peft = adopted;
  config::Violations own;
  config::validate(config.peft, own);
  check_adapters(config, own);
  for (const config::Violation& one : own.list()) {
    // Bounds have no section. The rate of dropout may be another one in a run.
    const bool bound = one.path.find('.') == std::string::npos;
    if ((!bound && !one.path.starts_with("peft.")) || one.path.ends_with("dropout")) continue;
    refuse(fmt::format("is not an adapter for this model: {}{} (in its {})", bound ? "peft." : "",
                       one.cause, checkpoint::kPeftConfig),
           "peft.load=DIR with an adapter for this model");
    violations.throw_if_any(); // the rest would be about an adapter that cannot be used
  }
}

checkpoint::Adapter loaded_adapter(const Config& config, const std::string& base) {
  checkpoint::Adapter parts = configured_adapter(config);
  const std::string& load = config.peft.load;
  const auto read = [&] {
    checkpoint::read_peft_tensors(load, parts);
    if (parts.copies.empty()) return;
    if (base.empty()) checkpoint::refuse_copy(load, parts.copies.front());
    checkpoint::check_copies(load, parts, *checkpoint::open_model(base));
  };
  naming("peft.load=", load, read, "peft.load=DIR with an adapter for this model");
  return parts;
}

void begin_adapters(const parallelize::TrainingModel& model, const Config& config,
                    const std::string& base, const comm::Group& tp) {
  const nn::NoAutograd guard;
  if (!config.peft.load.empty()) {
    const checkpoint::Adapter parts = loaded_adapter(config, base);
    model.store->write_trained_values(
        [&](nn::Param& param) { nn::load_global(param, parts.tensors.at(param.name())); });
    return;
  }
  const checkpoint::Adapter parts = configured_adapter(config);
  const std::vector<checkpoint::AdaptedModule>& modules = parts.modules;
  const bool dora = config.peft.type == checkpoint::AdapterType::kDora;
  std::map<std::string, at::Tensor> known; // magnitudes, and the base's values of whole modules
  if (!parts.whole.empty())
    model.store->read_values([&](const nn::Param& param) {
      if (param.with_adapters) known[param.name()] = param.value().clone();
    });
  if (dora) { // B is zero, so they are the norms of the weights' rows
    std::map<std::string, std::vector<const checkpoint::AdaptedModule*>> of_weight;
    for (const checkpoint::AdaptedModule& one : modules)
      of_weight[one.module.values].push_back(&one);
    model.store->read_values([&](const nn::Param& param) {
      const auto found = of_weight.find(param.name());
      if (found == of_weight.end()) return;
      const at::Tensor squares = param.value().to(nn::acc_dtype(param.dtype())).square().sum(1);
      if (param.spec().placement("tp") == nn::Placement::shard(1))
        comm::all_reduce_(squares, comm::ReduceOp::kSum, tp);
      const at::Tensor norms = squares.sqrt();
      for (const checkpoint::AdaptedModule* const one : found->second) {
        const checkpoint::LinearModule& m = one->module;
        const int64_t begin = nn::local_rows_before(param.spec(), param.where(), m.first);
        const int64_t end = nn::local_rows_before(param.spec(), param.where(), m.first + m.count);
        known[nn::adapter_name(m.weight, "lora_magnitude", m.part)] =
            m.part.empty() ? norms : norms.narrow(0, begin, end - begin).clone();
      }
    });
  }
  model.store->write_trained_values([&](nn::Param& param) {
    const auto value = known.find(param.name());
    if (value == known.end())
      param.initialize(config.seed);
    else
      at::Tensor(param.value()).copy_(value->second);
  });
}

} // namespace pentatron::trainer
