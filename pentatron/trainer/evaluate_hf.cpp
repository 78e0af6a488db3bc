#include "pentatron/trainer/evaluate_hf.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/hf_weights.h"
#include "pentatron/checkpoint/read_model.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/data/batches_dataset.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/parallelize/load_model.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/step_inputs.h"

namespace pentatron::trainer {

namespace {

constexpr const char* kContent = "content"; ///< in the metadata: what this command wrote

/// Whether the file is one that an earlier call has written, so that it may be replaced.
bool is_own(const std::filesystem::path& file, const std::string& content) {
  try {
    const SafetensorsFile written(file);
    const auto found = written.metadata().find(kContent);
    return found != written.metadata().end() && found->second == content;
  } catch (const Error&) {
    return false;
  }
}

/// Before the work, not after it.
void require_place(const char* option, const std::filesystem::path& file,
                   const std::string& content) {
  if (file.empty()) return;
  std::error_code error;
  if (std::filesystem::is_regular_file(file, error) && std::filesystem::file_size(file) > 0 &&
      !is_own(file, content))
    raise<ConfigError>("{} {} exists and contains no {} written by this command\n  try: {} {}",
                       option, file.string(), content, option,
                       shell_word(free_path(file).string()));
  require_folder_of(file, option, ".safetensors");
}

/// What the command writes, each to a file of its own.
struct Output {
  const char* option;
  const char* content;
  std::filesystem::path file;
};

std::vector<Output> outputs_of(const HfEvaluation& options) {
  return {{"--logits-out", "logits", options.logits_out},
          {"--grads-out", "gradients", options.grads_out},
          {"--hidden-out", "hidden states", options.hidden_out}};
}

void require_places(const HfEvaluation& options) {
  std::map<std::filesystem::path, const char*> taken;
  for (const Output& output : outputs_of(options)) {
    if (output.file.empty()) continue;
    require_place(output.option, output.file, output.content);
    const auto [first, fresh] =
        taken.emplace(std::filesystem::weakly_canonical(output.file), output.option);
    if (fresh) continue;
    const std::string extension =
        fmt::format(".{}.safetensors", std::string(output.option).substr(2, 5));
    raise<ConfigError>(
        "{} and {} both name {}\n  try: {} {}", first->second, output.option, output.file.string(),
        output.option,
        shell_word(std::filesystem::path(output.file).replace_extension(extension).string()));
  }
}

/// The fields to read: labels only if the file has them.
std::vector<data::BatchField> present_fields(const models::ModelSpec& spec,
                                             const std::filesystem::path& file) {
  const SafetensorsFile tensors(file);
  std::vector<data::BatchField> fields;
  for (const data::BatchField& field : spec.fields) {
    const bool label = field.none.has_value() && !field.next_token;
    if (!label || tensors.find(field.name) != nullptr) fields.push_back(field);
  }
  return fields;
}

/// One sample without labels. A decoder begins with its start token.
data::Batch text_batch(const models::ModelSpec& spec, const std::vector<int32_t>& tokens) {
  data::Batch batch{.batch_size = 1, .sample_ids = {0}};
  const auto length = static_cast<int64_t>(tokens.size());
  for (const std::string& stream : spec.streams) {
    const int64_t n = stream == spec.streams.front() ? length : 1;
    data::StreamShape& shape = batch.streams[stream];
    shape.sequence_length = shape.max_seqlen = n;
    shape.sample_starts = shape.cu_seqlens = {0, n};
    shape.real_tokens = n;
    for (int64_t i = 0; i < n; ++i) shape.position_ids.push_back(i);
  }
  for (const data::BatchField& field : spec.fields) {
    if (field.none) continue;
    data::FieldValues values{.field = field, .ints = {}, .floats = {}};
    if (field.start_token) {
      values.ints = {*field.start_token};
    } else if (field.name == "input_ids") {
      values.ints.assign(tokens.begin(), tokens.end());
    } else {
      values.ints.assign(tokens.size(), static_cast<int64_t>(field.absent.value_or(field.fill)));
    }
    batch.fields[field.name] = std::move(values);
  }
  return batch;
}

/// Says what the option takes, if the file is none.
void require_safetensors(const std::filesystem::path& file) {
  if (std::error_code error; !std::filesystem::exists(file, error))
    raise<DataError>(
        "--batches {} does not exist\n  try: --batches FILE.safetensors with input_ids",
        file.string());
  try {
    const SafetensorsFile tensors(file);
  } catch (const DataError& error) {
    raise<DataError>("--batches {} is not a Safetensors file: {}\n  try: --batches "
                     "FILE.safetensors with input_ids, or --file {} for a text",
                     file.string(), parts_of(error.what()).sentence, shell_word(file.string()));
  }
}

bool is_logits(const models::ResultSpec& result) {
  return result.name.ends_with(models::kLogits);
}

/// Refuses outputs that no batch gives.
void require_outputs(const HfEvaluation& options, const models::ModelSpec& spec, bool has_loss) {
  const auto require = [&](bool given, const char* what, const char* option,
                           const std::filesystem::path& file) {
    if (given || file.empty()) return;
    raise<ConfigError>("{} {} needs {}, which {} does not give ({})\n  try: {}", option,
                       file.string(), what, options.model,
                       spec.losses.empty() ? spec.chosen_by : "no output layer",
                       options.hidden_out.empty() ? "--hidden-out " + shell_word(file.string())
                                                  : fmt::format("remove {}", option));
  };
  require(std::ranges::any_of(spec.results, is_logits), "logits", "--logits-out",
          options.logits_out);
  require(has_loss, "a loss", "--grads-out", options.grads_out);
}

/// transformers' models give no loss if the labels of one of its terms are missing.
std::vector<std::string> missing_labels(const models::ModelSpec& spec, const data::Batch& batch) {
  std::vector<std::string> missing;
  for (const models::LossTerm& term : spec.losses)
    if (!batch.num_targets.contains(term.labels)) missing.push_back(term.labels);
  return missing;
}

/// Of terms without a single target, whose mean is undefined.
std::vector<const models::LossTerm*> empty_terms(const models::ModelSpec& spec,
                                                 const data::Batch& batch) {
  std::vector<const models::LossTerm*> empty;
  for (const models::LossTerm& term : spec.losses) {
    const auto targets = batch.num_targets.find(term.labels);
    if (targets != batch.num_targets.end() && targets->second == 0) empty.push_back(&term);
  }
  return empty;
}

/// Gradients are those of a loss, with a target of each term.
void require_gradients(const HfEvaluation& options, const models::ModelSpec& spec,
                       const data::Batch& batch) {
  const std::vector<std::string> missing = missing_labels(spec, batch);
  std::vector<std::string> empty;
  for (const models::LossTerm* term : empty_terms(spec, batch)) empty.push_back(term->labels);
  const std::string labels =
      fmt::format("{}", fmt::join(missing.empty() ? empty : missing, " and "));
  if (!missing.empty())
    raise<ConfigError>("--grads-out {} needs {} too, which {} does not have\n  try: remove "
                       "--grads-out, or --batches FILE with {}",
                       options.grads_out.string(), labels, options.batches.string(), labels);
  if (!empty.empty())
    raise<ConfigError>("--grads-out {} needs a loss, but all {} of {} are ignored\n  try: "
                       "remove --grads-out, or --batches FILE with {}",
                       options.grads_out.string(), labels, options.batches.string(), labels);
}

/// As in transformers, the loss of several terms is undefined if one has no target.
std::optional<Evaluation> result_of(const HfEvaluation& options, const models::ModelSpec& spec,
                                    const data::Batch& batch, nn::StepState& state) {
  EvaluationSums sums;
  for (const models::LossTerm& term : spec.losses)
    sums.terms.push_back({state.loss_sum(term.name), batch.num_targets.at(term.labels)});
  for (const models::LossTerm* term : empty_terms(spec, batch)) {
    log::warning("{} has no target in {}, where all {} are ignored, so the total loss is "
                 "undefined, as in transformers",
                 term->name, options.batches.string(), term->labels);
  }
  return losses_of(spec, sums);
}

/// Why a batch gives outputs and no loss, which its model could give.
void tell_no_loss(const HfEvaluation& options, const std::vector<std::string>& missing) {
  if (options.batches.empty()) return; // a text, which has no labels
  if (missing.empty())
    log::info("no loss is computed, because all labels of {} are ignored",
              options.batches.string());
  else
    log::info("no loss is computed, because {} does not contain {}", options.batches.string(),
              fmt::join(missing, " and "));
}

data::Batch batch_of(const HfEvaluation& options, const models::ModelSpec& spec,
                     int64_t vocab_size) {
  if (!options.batches.empty()) require_safetensors(options.batches);
  if (!options.batches.empty())
    return data::read_batch(options.batches, present_fields(spec, options.batches));
  for (const int32_t token : options.tokens)
    if (token >= vocab_size)
      raise<DataError>("the tokenizer produces token {}, which is outside the model's vocabulary "
                       "of {} tokens\n  try: --batches FILE with token ids",
                       token, vocab_size);
  return text_batch(spec, options.tokens);
}

/// [B, S, ...], of a result for each sample [B, ...].
at::Tensor shaped(const at::Tensor& value, const models::ResultSpec& result,
                  const nn::Microbatch& batch) {
  if (result.stream == models::kPerSample) return value;
  const nn::SequenceLayout& layout = batch.layouts[static_cast<size_t>(result.stream)];
  return value.unflatten(0, {layout.batch, layout.sequence});
}

void write_results(const std::filesystem::path& file, const char* content, bool logits,
                   const nn::PassResults& results, const models::ModelSpec& spec,
                   const nn::Microbatch& batch) {
  if (file.empty()) return;
  std::map<std::string, at::Tensor> tensors;
  for (const models::ResultSpec& result : spec.results) {
    const auto found = results.find(result.name);
    if (is_logits(result) != logits || found == results.end()) continue;
    const bool wide = !logits && found->second.scalar_type() == at::kDouble;
    tensors[result.name] =
        nn::host_values(shaped(found->second, result, batch)).to(wide ? at::kDouble : at::kFloat);
  }
  checkpoint::write_tensors(file, tensors, {{kContent, content}});
}

/// Of tables of rotary positions that a file may ask for.
constexpr int64_t kMostPositions = int64_t{1} << 20;

bool rotates(const models::ModelConfig& config) {
  return config.position_embedding_type == models::PositionEmbedding::kRope;
}

/// What rotary scalings take for the longest sequence: as in transformers, what the positions of
/// the file say, if it has some, whatever the number of tokens. Of a table that was learned they
/// are rows, however long the batch is.
int64_t longest_of(const data::Batch& batch, const models::ModelConfig& config) {
  int64_t longest = 1;
  for (const auto& [name, shape] : batch.streams) {
    if (!shape.positions_given) longest = std::max(longest, shape.sequence_length);
    if (!shape.positions_given || !rotates(config)) continue;
    for (const int64_t position : shape.position_ids) longest = std::max(longest, position + 1);
  }
  return longest;
}

/// Rotary positions of the file may lie behind those of the model, as in transformers; not with
/// dynamic scaling, which takes the model's for what it was trained with.
models::ModelConfig with_positions_of(const data::Batch& batch, models::ModelConfig config,
                                      const std::filesystem::path& file) {
  const bool given = std::ranges::any_of(
      batch.streams, [](const auto& stream) { return stream.second.positions_given; });
  const auto own = config.longest_sequence();
  if (!given || !own || !rotates(config)) return config;
  constexpr auto kDynamic = models::RopeScalingType::kDynamic;
  const bool dynamic =
      config.rope_scaling.type == kDynamic || config.rope_local_scaling.type == kDynamic;
  const int64_t longest = longest_of(batch, config),
                most = dynamic ? *own : std::max(*own, kMostPositions);
  if (longest > most)
    raise<DataError>("{}: position_ids reach {}, but the model's positions are 0 to {}\n  try: "
                     "position_ids from 0 to {}",
                     file.string(), longest - 1, most - 1, most - 1);
  if (!dynamic) config.max_position_embeddings += std::max<int64_t>(0, longest - *own);
  return config;
}

/// Gradients have the names of Hugging Face's tensors.
std::string family_of(const checkpoint::ModelSource& source) {
  try {
    return checkpoint::make_hf_config(source.config(), source.facts().family).family;
  } catch (const ConfigError& error) {
    raise<ConfigError>("--grads-out needs Hugging Face's names of tensors: {}\n  try: remove "
                       "--grads-out",
                       parts_of(error.what()).sentence);
  }
}

} // namespace

checkpoint::ModelPurpose HfEvaluation::purpose() const {
  return !hidden_out.empty() && logits_out.empty() && grads_out.empty()
             ? checkpoint::ModelPurpose::kHiddenStates
             : checkpoint::ModelPurpose::kAll;
}

bool gives_loss(const checkpoint::ModelSource& source) {
  return !source.facts().without_head && !models::model_spec(source.config()).losses.empty();
}

std::optional<Evaluation> evaluate_hf(const HfEvaluation& options) {
  set_compute_threads(options.num_threads);
  const at::Device device = choose_device(options.device);
  require_places(options);
  const auto source = checkpoint::open_model(options.model, options.purpose());
  models::ModelConfig config = source->config().without_mtp();
  const models::ModelSpec spec = models::model_spec(config);
  require_outputs(options, spec, gives_loss(*source));
  const data::Batch read = batch_of(options, spec, config.vocab_size);
  config = with_positions_of(read, config, options.batches);
  const bool with_grads = !options.grads_out.empty();
  if (with_grads) require_gradients(options, spec, read);
  const std::vector<std::string> missing = missing_labels(spec, read);
  const bool any_targets =
      missing.empty() && gives_loss(*source) &&
      std::ranges::any_of(read.num_targets, [](const auto& field) { return field.second > 0; });
  const bool outputs = !options.logits_out.empty() || !options.hidden_out.empty();
  if (outputs && !any_targets && gives_loss(*source)) tell_no_loss(options, missing);
  const std::string family = with_grads ? family_of(*source) : "";
  std::optional<parallelize::RankModel> loaded;
  checkpoint::read_model(
      options.model, source->facts().path, {},
      [&](checkpoint::ModelSource& files) {
        loaded.emplace(
            parallelize::load_model(files, {.config = config,
                                            .build = {.dtype = scalar_type(options.dtype)},
                                            .device = device,
                                            .max_sequence = longest_of(read, config),
                                            .gradients = with_grads}));
      },
      options.purpose());
  parallelize::RankModel& model = *loaded;

  const nn::Microbatch batch = model_input(read, spec.streams, device);
  nn::StepState state;
  nn::WgradQueue wgrad;
  nn::PassResults results;
  nn::ForwardContext ctx;
  ctx.batch = &batch;
  ctx.wanted.loss = any_targets;
  ctx.wanted.logits = !options.logits_out.empty();
  ctx.wanted.hidden = !options.hidden_out.empty();
  ctx.results = &results;
  ctx.wgrad = &wgrad;
  ctx.state = &state;
  for (const models::LossTerm& term : spec.losses) {
    const auto targets = read.num_targets.find(term.labels);
    const bool counts = targets != read.num_targets.end() && targets->second > 0;
    ctx.loss_scales[term.name] = counts ? term.weight / static_cast<double>(targets->second) : 0;
  }
  nn::Tape tape;
  model.model->whole().forward({}, ctx, *model.store, with_grads ? &tape : nullptr);
  write_results(options.logits_out, "logits", true, results, spec, batch);
  write_results(options.hidden_out, "hidden states", false, results, spec, batch);
  if (with_grads) {
    model.model->whole().backward({}, ctx, *model.store, tape);
    checkpoint::write_tensors(options.grads_out,
                              checkpoint::hf_tensors({family, config}, model.model->params(),
                                                     [](const nn::Param& param) {
                                                       return nn::host_values(param.main_grad());
                                                     }),
                              {{kContent, "gradients"}});
  }
  if (!any_targets) return std::nullopt;
  return result_of(options, spec, read, state);
}

} // namespace pentatron::trainer
