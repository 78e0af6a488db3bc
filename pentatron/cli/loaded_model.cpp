#include "pentatron/cli/loaded_model.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/read_model.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/named_adapters.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/objective_tokenizer.h"
#include "pentatron/data/sft/chat_text.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/models/model.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallelize/load_model.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/model_tokenizer.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

using Kind = checkpoint::TokenizerPlace::Kind;

std::shared_ptr<const data::Tokenizer> make_tokenizer_of(const checkpoint::ModelFacts& facts,
                                                         data::TokenizerConfig config) {
  if (facts.tokenizer.kind == Kind::kConfig) return data::make_tokenizer(config);
  if (config.path.empty()) return data::tokenizer::open_tokenizer({.path = facts.tokenizer.path});
  config.path = facts.tokenizer.path;
  return data::make_tokenizer(config);
}

/// What the user gave as the context is one that the model has.
void check_context(const OpenedModel& opened) {
  const int64_t context = opened.source->facts().context, given = opened.config.train.seq_length;
  const int64_t most = opened.config.model.longest_sequence().value_or(context);
  if (given != context && given > most)
    raise<ConfigError>("train.seq_length={} is more than the {} tokens of the longest sequence of "
                       "{}\n  try: train.seq_length={}",
                       given, most, opened.where, most);
}

/// Ranks that divide experts do nothing for a model that has none.
void check_experts(const models::ModelConfig& model, const std::vector<std::string>& keys,
                   const std::string& remedy) {
  const std::string key = "parallel.expert_model_parallel_size";
  for (const std::string& setting : keys)
    if (!model.num_moe_experts && setting.starts_with(key + "=") && setting != key + "=1" &&
        setting.find_first_not_of("0123456789", key.size() + 1) == std::string::npos)
      raise<ConfigError>("{} has no effect on a model without experts\n  try: {}", setting,
                         remedy.empty() ? "remove " + key : remedy);
}

/// One copy of a model has its experts on tensor-parallel ranks.
void check_expert_ranks(const std::vector<std::string>& keys, int ranks) {
  const auto value_of = [&](const std::string& key, int64_t otherwise) {
    int64_t value = otherwise;
    for (const std::string& setting : keys)
      if (setting.starts_with(key + "="))
        std::from_chars(setting.data() + key.size() + 1, setting.data() + setting.size(), value);
    return std::max<int64_t>(1, value);
  };
  const std::string ep_key = "parallel.expert_model_parallel_size",
                    tp_key = "parallel.tensor_model_parallel_size",
                    etp_key = "parallel.expert_tensor_parallel_size",
                    pp_key = "parallel.pipeline_model_parallel_size";
  const int64_t ep = value_of(ep_key, 1), tp = value_of(tp_key, 1), pp = value_of(pp_key, 1),
                etp = value_of(etp_key, tp);
  if (ep == 1 || (tp * pp == ranks && tp % (ep * etp) == 0)) return;
  const int64_t own = ranks % (pp * ep) == 0 ? ranks / pp : ep; // tensor-parallel ranks that fit
  raise<ConfigError>("{}={} with {}={} and {}: this command runs one copy of the model, whose "
                     "tensor-parallel ranks hold the experts\n  try: --ranks {} {}={} {}={}{}",
                     ep_key, ep, tp_key, tp, counted(ranks, "rank"), own * pp, tp_key, own, etp_key,
                     own / ep, pp > 1 ? fmt::format(" {}={}", pp_key, pp) : "");
}

} // namespace

trainer::Config saved_config(const checkpoint::ModelFacts& facts) {
  trainer::Config saved;
  if (facts.saved_config.empty()) return saved;
  config::Violations violations;
  config::apply_yaml(saved, facts.saved_config, facts.path.string(), violations);
  violations.throw_if_any();
  return saved;
}

trainer::Precision precision_of(SafeDtype dtype) {
  if (dtype == SafeDtype::kF64) return trainer::Precision::kFp64;
  return dtype == SafeDtype::kBF16 ? trainer::Precision::kBf16 : trainer::Precision::kFp32;
}

std::string with_adapter(const std::string& model, const std::string& adapter) {
  if (names_adapter(adapter))
    raise<ConfigError>("--adapter {} has a name, which only generate and serve take\n  try: "
                       "--adapter {}",
                       adapter, shell_word(adapter.substr(adapter.find('=') + 1)));
  return adapter.empty() ? model : fmt::format("{}{}{}", model, checkpoint::kWithAdapter, adapter);
}

namespace {

[[noreturn]] void refuse_without_text(const std::string& where,
                                      const checkpoint::ModelFacts& facts) {
  raise<ConfigError>(
      "{} is a model of type {}, which does not generate text\n  try: pentatron evaluate {} {} "
      "--hidden-out hidden.safetensors",
      where, config::to_string(facts.config.type), shell_word(where),
      facts.tokenizer.kind == Kind::kNone ? "--batches FILE" : "--text \"It is a truth\"");
}

} // namespace

OpenedModel open_trained_model(const std::string& where, const std::vector<std::string>& keys,
                               int ranks, const ModelUse& use) {
  OpenedModel opened{.where = where, .source = checkpoint::open_model(where), .config = {}};
  const checkpoint::ModelFacts& facts = opened.source->facts();
  if (models::model_spec(facts.config.with_one_layer()).losses.empty())
    refuse_without_text(where, facts); // an encoder without a head
  trainer::Config base;
  base.model = facts.config.without_mtp();
  base.dataset.type = data::DatasetType::kBatches; // of any model; none is read
  base.train.seq_length = facts.context;
  base.train.micro_batch_size = 1;
  base.train.global_batch_size = ranks; // of any number of copies
  base.dtype = precision_of(opened.source->dtype());
  std::vector<std::string> known = {"parallel.tensor_model_parallel_size",
                                    "parallel.pipeline_model_parallel_size",
                                    "parallel.pipeline_model_parallel_layout",
                                    "parallel.expert_model_parallel_size",
                                    "parallel.expert_tensor_parallel_size",
                                    "dist.",
                                    "tokenizer.path",
                                    "train.seq_length"};
  known.insert(known.end(), use.keys.begin(), use.keys.end());
  check_experts(base.model, keys,
                ranks > 1 && !use.copies
                    ? fmt::format("parallel.tensor_model_parallel_size={} instead", ranks)
                    : "");
  if (base.model.num_moe_experts && !use.copies) check_expert_ranks(keys, ranks);
  opened.config = with_runtime_keys(keys, base, known, ranks);
  check_context(opened);
  const parallelize::ParallelConfig& parallel = opened.config.parallel;
  const int64_t needed =
      parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size;
  if (use.copies && ranks % needed == 0) return opened;
  if (needed != ranks) {
    raise<ConfigError>("{} ranks do not match parallel.tensor_model_parallel_size={} x "
                       "parallel.pipeline_model_parallel_size={}: this command runs one copy of "
                       "the model\n  try: --ranks {}, or parallel.tensor_model_parallel_size={}",
                       ranks, parallel.tensor_model_parallel_size,
                       parallel.pipeline_model_parallel_size, needed, ranks);
  }
  return opened;
}

OpenedModel open_generator(const std::string& where, const std::vector<std::string>& keys,
                           int ranks) {
  OpenedModel opened = open_trained_model(where, keys, ranks);
  const models::ModelConfig& model = opened.config.model;
  if (models::model_spec(model).generates == models::Generates::kNothing)
    refuse_without_text(where, opened.source->facts());
  return opened;
}

namespace {

/// Options for stop_strings, which is a string or a list of strings.
std::string stop_options(std::string_view setting) {
  std::vector<std::string> options;
  try {
    const Json stops = parse_json(setting, "stop_strings");
    for (const Json& stop : stops.is_array() ? stops : Json::array({stops}))
      options.push_back("--stop " + shell_word(stop.get<std::string>()));
  } catch (const std::exception&) { // shortened, or no text
    return "--stop STRING";
  }
  return fmt::format("{}", fmt::join(options, " "));
}

} // namespace

void tell_unused_settings(const OpenedModel& opened, const Ranks& ranks,
                          const WritingOptions* given) {
  if (ranks.supervised || ranks.launch.rank > 0) return;
  std::vector<std::string> unused = opened.source->facts().generation.unused, ways;
  const auto replaces = [&](std::string_view setting, bool is_given, const auto& options) {
    const auto found = std::ranges::find_if(
        unused, [&](const std::string& text) { return text.starts_with(setting); });
    if (found == unused.end()) return;
    if (is_given)
      unused.erase(found);
    else
      ways.push_back(options(found->substr(setting.size())));
  };
  if (given != nullptr) {
    replaces("repetition_penalty=", given->options.sampling.repetition_penalty != 1,
             [](const std::string& value) { return "--repetition-penalty " + value; });
    replaces("stop_strings=", !given->stops.empty(), stop_options);
  }
  if (unused.empty()) return;
  log::warning("settings in generation_config.json that are not used: {}{}{}",
               fmt::join(unused, ", "), ways.empty() ? "" : "\n  try: ", fmt::join(ways, " "));
}

namespace {

std::vector<nn::AdapterPlan> plans_of(const std::vector<checkpoint::Adapter>& variants) {
  std::vector<nn::AdapterPlan> plans;
  for (const checkpoint::Adapter& adapter : variants)
    plans.push_back(checkpoint::adapter_plan(adapter.modules, adapter.settings));
  return plans;
}

/// The values of the rank's parts of the adapters.
void fill_variants(nn::ParamList& params, const std::vector<checkpoint::Adapter>& variants) {
  const nn::NoAutograd guard;
  for (nn::Param& param : params) {
    if (!param.adapter) continue;
    for (size_t i = 0; i < variants.size(); ++i) {
      std::string name = param.name();
      const std::string mark = nn::variant_suffix(i + 1);
      const size_t at = name.find(mark);
      if (at == std::string::npos) continue;
      const size_t end = at + mark.size();
      if (end < name.size() && name[end] != '.') continue; // "@1" of "@12"
      nn::load_global(param, variants[i].tensors.at(name.erase(at, mark.size())));
    }
  }
}

} // namespace

LoadedModel load_model_in_groups(const OpenedModel& opened, const comm::Group& world,
                                 const std::vector<checkpoint::Adapter>& variants) {
  const trainer::Config& config = opened.config;
  const parallelize::PipelinePlan plan = parallelize::plan_pipeline(config.parallel, config.model);
  const at::Device device = trainer::choose_device(config.device);
  trainer::choose_kernels_quietly(config, device, world);
  LoadedModel loaded{
      .model = {},
      .groups = parallelize::make_groups(world, config.parallel, nullptr, config.model, plan)};
  // Each rank opens the files: readers are for one thread at a time, and ranks may be threads.
  checkpoint::read_model(
      opened.where, opened.source->facts().path, world, [&](checkpoint::ModelSource& source) {
        loaded.model =
            parallelize::load_model(source,
                                    {.config = config.model,
                                     .build = {.dtype = trainer::scalar_type(config.dtype),
                                               .tp = loaded.groups.tp(),
                                               .variants = plans_of(variants)},
                                     .device = device,
                                     .max_sequence = config.train.seq_length,
                                     .gradients = false},
                                    loaded.groups, plan);
      });
  fill_variants(loaded.model.model->params(), variants);
  return loaded;
}

parallelize::RankModel load_model(const OpenedModel& opened, const comm::Group& world,
                                  const std::vector<checkpoint::Adapter>& variants) {
  return load_model_in_groups(opened, world, variants).model;
}

std::filesystem::path tokenizer_path(const OpenedModel& opened) {
  if (!opened.config.tokenizer.path.empty()) return opened.config.tokenizer.path;
  return trainer::tokenizer_path(opened.source->facts());
}

std::optional<ChatFormat> open_chat_format(const OpenedModel& opened,
                                           const data::Tokenizer& tokenizer,
                                           const checkpoint::AdapterOrigin* adapter) {
  std::optional<std::string> source;
  if (!opened.config.tokenizer.path.empty())
    source = data::tokenizer::find_chat_template(opened.config.tokenizer.path);
  checkpoint::ModelFacts facts = opened.source->facts();
  if (adapter != nullptr) facts.adapter = *adapter;
  if (!source) source = trainer::chat_template_of(facts);
  if (!source) return std::nullopt;
  ChatFormat format{.text = data::tokenizer::ChatTemplate(*source)};
  // Where the end of a message is no token of its own, the model writes it out.
  std::vector<int32_t> end;
  tokenizer.encode(data::kChatmlEnd, end);
  if (end.size() > 1 && source->find(data::kChatmlEnd) != std::string::npos)
    format.stops = {data::kChatmlEnd};
  return format;
}

std::shared_ptr<const data::Tokenizer> open_plain_tokenizer(const OpenedModel& opened) {
  if (const std::string& path = opened.config.tokenizer.path; !path.empty())
    return naming("tokenizer.path=", path,
                  [&] { return data::tokenizer::open_tokenizer({.path = path}); });
  if (opened.config.tokenizer.type == data::TokenizerType::kBytes) // tokenizer.path=bytes
    return data::make_tokenizer(opened.config.tokenizer);
  const checkpoint::ModelFacts& facts = opened.source->facts();
  if (facts.tokenizer.kind == Kind::kNone) return nullptr;
  return make_tokenizer_of(facts, saved_config(facts).tokenizer);
}

std::shared_ptr<const data::Tokenizer> open_tokenizer_of(const OpenedModel& opened) {
  std::shared_ptr<const data::Tokenizer> plain = open_plain_tokenizer(opened);
  if (plain == nullptr) return nullptr;
  return data::with_objective_tokens(std::move(plain),
                                     saved_config(opened.source->facts()).dataset);
}

} // namespace pentatron::cli
