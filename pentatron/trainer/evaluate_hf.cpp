#include "pentatron/trainer/evaluate_hf.h"

#include <ATen/ATen.h>

#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/hf_weights.h"
#include "pentatron/checkpoint/read_model.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/parallelize/load_model.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

at::Tensor read_input_ids(const std::filesystem::path& file, int64_t vocab_size) {
  const SafetensorsFile batches(file);
  const SafeTensor& entry = batches.at("input_ids");
  if (entry.dtype != SafeDtype::kI64 || entry.shape.size() != 2 || entry.shape[0] < 1 ||
      entry.shape[1] < 2) {
    raise<DataError>(
        "{}: input_ids must be I64 [batch, sequence] with at least 2 tokens per sequence",
        file.string());
  }
  const at::Tensor ids = checkpoint::to_tensor(entry);
  const int64_t bad = kernels::first_bad_id(ids.data_ptr<int64_t>(), ids.numel(), vocab_size);
  if (bad >= 0) {
    raise<DataError>("{}: input_ids contains {} at position {}, outside the vocabulary of {}",
                     file.string(), ids.view({-1})[bad].item<int64_t>(), bad, vocab_size);
  }
  return ids;
}

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
    raise<ConfigError>(
        "{} {} exists and contains no {} written by this command\n  try: {} {}-2.safetensors",
        option, file.string(), content, option, (file.parent_path() / file.stem()).string());
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (std::filesystem::is_directory(folder) && !std::filesystem::is_directory(file)) return;
  raise<ConfigError>("{} {} is not a file in an existing folder\n  try: {} {}", option,
                     file.string(), option,
                     file.filename().replace_extension(".safetensors").string());
}

} // namespace

double evaluate_hf(const HfEvaluation& options) {
  set_compute_threads(options.num_threads);
  const at::Device device = choose_device(options.device);
  require_place("--logits-out", options.logits_out, "logits");
  require_place("--grads-out", options.grads_out, "gradients");
  if (!options.logits_out.empty() && std::filesystem::weakly_canonical(options.logits_out) ==
                                         std::filesystem::weakly_canonical(options.grads_out))
    raise<ConfigError>(
        "--logits-out and --grads-out both name {}\n  try: --grads-out {}",
        options.logits_out.string(),
        std::filesystem::path(options.logits_out).replace_extension(".grads.safetensors").string());
  const auto source = checkpoint::open_model(options.model);
  const models::ModelConfig& config = source->config();
  const at::Tensor ids_bs = read_input_ids(options.batches, config.vocab_size);
  const int64_t b = ids_bs.size(0), s = ids_bs.size(1);
  const bool with_grads = !options.grads_out.empty();
  std::optional<parallelize::RankModel> loaded;
  checkpoint::read_model(
      options.model, source->facts().path, {}, [&](checkpoint::ModelSource& files) {
        loaded.emplace(
            parallelize::load_model(files, {.config = config,
                                            .build = {.dtype = scalar_type(options.dtype)},
                                            .device = device,
                                            .max_sequence = s,
                                            .gradients = with_grads}));
      });
  parallelize::RankModel& model = *loaded;

  std::vector<uint64_t> samples(static_cast<size_t>(b));
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = i;
  // The label of a token is the next one; the last of a sequence has none.
  const at::Tensor labels = at::full({b, s}, -100, at::kLong);
  labels.narrow(1, 0, s - 1).copy_(ids_bs.narrow(1, 1, s - 1));
  const double targets = static_cast<double>(b * (s - 1));
  nn::StepState state;
  nn::WgradQueue wgrad;
  const nn::Microbatch batch{.fields = {{"input_ids", ids_bs.view({-1}).to(device)},
                                        {"labels", labels.view({-1}).to(device)}},
                             .layouts = {nn::SequenceLayout::dense(b, s, samples, device)}};
  nn::PassResults results;
  nn::ForwardContext ctx;
  ctx.batch = &batch;
  ctx.wanted.logits = !options.logits_out.empty();
  ctx.results = &results;
  ctx.wgrad = &wgrad;
  ctx.state = &state;
  ctx.loss_scales["lm loss"] = 1.0 / targets;
  nn::Tape tape;
  model.model->whole().forward({}, ctx, *model.store, with_grads ? &tape : nullptr);
  if (!options.logits_out.empty()) {
    const at::Tensor logits = results.at("logits").to(at::kFloat).view({b, s, config.vocab_size});
    checkpoint::write_tensors(options.logits_out, {{"logits", logits}}, {{kContent, "logits"}});
  }
  if (with_grads) {
    model.model->whole().backward({}, ctx, *model.store, tape);
    const std::string family = checkpoint::make_hf_config(config, source->facts().family).family;
    checkpoint::write_tensors(
        options.grads_out,
        checkpoint::hf_tensors({family, config}, model.model->params(),
                               [](const nn::Param& param) { return param.main_grad().cpu(); }),
        {{kContent, "gradients"}});
  }
  return state.loss_sums["lm loss"] / targets;
}

} // namespace pentatron::trainer
