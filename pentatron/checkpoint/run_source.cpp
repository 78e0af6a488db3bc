/// A checkpoint of pentatron as a ModelSource: state of an optimizer is passed over.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/meant_checkpoints.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/config/config.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/optim/optimizer.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// What is wanted of a run's configuration.
struct ModelSection {
  models::ModelConfig model;
  static constexpr auto fields() {
    return std::tuple{config::field("model", &ModelSection::model, "the model")};
  }
};

ModelSection read_saved(const std::string& yaml, const std::string& where) {
  ModelSection saved;
  config::Violations violations;
  config::apply_yaml(saved, yaml, where, violations);
  config::Violations of_model;
  config::validate(saved.model, of_model);
  for (const config::Violation& v : violations.list())
    if (v.path.empty() || v.path == "model" || v.path.starts_with("model."))
      of_model.add_at(v.where, v.path, v.cause, v.suggestion);
  of_model.throw_if_any();
  return saved;
}

/// One checkpoint: `where` itself, or the newest of a run's folder whose structure is intact. Who
/// reads the weights finds damage in them, see read_model().
fs::path choose(const fs::path& where) {
  if (is_file(where / kManifestName)) return where;
  const auto found = newest_checkpoint(where, VerifyScope::kWeightsStructure);
  if (!found)
    raise<CheckpointError>(
        "{} {}\n  try: {}", where.string(), lack_of_checkpoints(where),
        meant_checkpoints(where, "", "the folder that was given as checkpoint.save"));
  if (!found->passed_over.empty()) log::shared_warning("{}", passed_over_text(*found));
  return found->folder;
}

/// The rank's tensor as one box of the true tensor, if it is one; padding makes it too large.
std::optional<Box> one_box(const nn::Param& param) {
  std::optional<Box> whole;
  for (const nn::LocalBox& part : nn::local_boxes(param.spec(), param.where())) {
    std::vector<int64_t> begin = part.global;
    for (size_t d = 0; d < begin.size(); ++d) begin[d] -= part.local[d];
    if (!whole) whole = Box{begin, param.shape()};
    if (whole->offset != begin) return std::nullopt;
  }
  return whole;
}

class RunSource final : public ModelSource {
 public:
  RunSource(const fs::path& folder, bool average)
      : ModelSource({}), reader_(folder), average_(average) {
    const Manifest& manifest = reader_.manifest();
    const ModelSection saved = read_saved(manifest.config_yaml, folder.string());
    facts_ = {.format = ModelFormat::kPentatron,
              .path = folder,
              .config = saved.model,
              .context = saved.model.max_position_embeddings,
              .generation = {},
              .saved_config = manifest.config_yaml};
    facts_.tokenizer = {TokenizerPlace::Kind::kConfig, folder};
    read_companions();
    if (facts_.generation.eos.empty() && manifest.state.contains(kEod)) {
      const auto eod = json_get<int64_t>(manifest.state, kEod, folder.string());
      if (eod >= 0 && eod < saved.model.vocab_size) facts_.generation.eos = {eod};
    }
    facts_.trained = manifest.state.contains("optimizer_steps");
    if (manifest.state.contains("huggingface")) read_huggingface(manifest.state["huggingface"]);
    check_tensors();
  }

  void on_progress(std::function<void()> call) override {
    reader_.on_progress(call);
    ModelSource::on_progress(std::move(call));
  }

  std::set<const nn::Param*> lend(nn::ParamList& params) override {
    std::vector<nn::Param*> wanting;
    std::vector<CheckpointReader::Wanted> wanted;
    for (nn::Param& param : params) {
      const auto found = facts_.tensors.find(param.name());
      if (found == facts_.tensors.end() || found->second.shape != param.spec().shape ||
          scalar_type(reader_.info(stored_name(param.name())).dtype) != param.dtype())
        continue;
      if (const auto box = one_box(param)) {
        wanting.push_back(&param);
        wanted.push_back({stored_name(param.name()), *box});
      }
    }
    const auto mapped = reader_.map(wanted);
    std::set<const nn::Param*> lent;
    for (size_t i = 0; i < mapped.size(); ++i) {
      if (!mapped[i]) continue;
      wanting[i]->set_value(at::from_blob(
          const_cast<std::byte*>(mapped[i]->bytes.data()), wanting[i]->shape(),
          [file = mapped[i]->file](void*) {}, at::TensorOptions(wanting[i]->dtype())));
      lent.insert(wanting[i]);
    }
    return lent;
  }

  void read(const std::string& param, const Box& box, const at::Tensor& target) override {
    const at::ScalarType stored = scalar_type(reader_.info(stored_name(param)).dtype);
    if (target.scalar_type() == stored) {
      read_as_stored(param, box, target);
      return;
    }
    // By rows, so that the copy in the type of the file stays small.
    constexpr int64_t kElements = int64_t{4} << 20;
    const int64_t rows = box.size.empty() ? 1 : box.size[0];
    const int64_t row = rows == 0 ? 1 : std::max<int64_t>(1, numel(box) / rows);
    const int64_t step = std::max<int64_t>(1, kElements / row);
    for (int64_t begin = 0; begin < rows; begin += step) {
      Box part = box;
      at::Tensor to = target;
      if (!box.size.empty()) {
        part.offset[0] += begin;
        part.size[0] = std::min(step, rows - begin);
        to = target.narrow(0, begin, part.size[0]);
      }
      const at::Tensor copy = at::empty(part.size, at::TensorOptions(stored));
      read_as_stored(param, part, copy);
      to.copy_(copy);
    }
  }

 private:
  /// The tensor that has the weights of a parameter: what was frozen has no running mean.
  std::string stored_name(const std::string& param) const {
    std::string name = param + "/" + optim::kAverage;
    return average_ && reader_.contains(name) ? name : param;
  }

  /// The files that lie in the checkpoint, if they are as written.
  void read_companions() {
    for (const auto& [name, attachment] : reader_.manifest().attachments) {
      const fs::path path = facts_.path / name;
      const fs::path parent = path.parent_path().filename();
      if (parent != kCompanionFolder && parent != kTokenizerFolder) continue;
      read_attachment(facts_.path, name, attachment);
      facts_.companions.push_back(path);
    }
    if (facts_.companions.empty()) return;
    facts_.generation = generation_defaults(facts_.path / kCompanionFolder);
    if (has_tokenizer_files(facts_.path / kTokenizerFolder))
      facts_.tokenizer = {TokenizerPlace::Kind::kFiles, facts_.path / kTokenizerFolder};
  }

  void read_huggingface(const Json& json) {
    const std::string where = facts_.path.string() + " (state.huggingface)";
    if (!json.is_object()) raise<CheckpointError>("{} is not an object", where);
    facts_.family = json_get_or<std::string>(json, "family", "", where);
    for (const char* key : {"names", "dtypes"})
      if (json.contains(key) && json[key].is_object()) facts_.hf[key] = json[key];
    if (json.contains("copies") && json["copies"].is_boolean())
      facts_.hf["copies"] = json["copies"];
  }

  void check_tensors() {
    const auto is_average = [](const auto& one) {
      return one.first.ends_with(std::string("/") + optim::kAverage);
    };
    if (average_ && std::ranges::none_of(reader_.manifest().tensors, is_average))
      raise<CheckpointError>("{} has no running mean of the weights: optimizer.ema_decay was 0\n  "
                             "try: the model without --ema",
                             facts_.path.string());
    const models::ParamSpecs expected = models::tensor_specs(facts_.config);
    TensorProblems problems;
    for (const auto& [name, spec] : expected) {
      if (!reader_.contains(name)) {
        problems.missing(name);
        continue;
      }
      const TensorInfo& info = reader_.info(name);
      if (info.shape != spec.shape)
        problems.misfit(fmt::format("{} has shape {} instead of {}", name, shape_text(info.shape),
                                    shape_text(spec.shape)));
      if (!is_weight_dtype(info.dtype))
        problems.misfit(fmt::format("{} is of type {}", name, name_of(info.dtype)));
      facts_.tensors.emplace(name, info);
    }
    for (const auto& [name, info] : reader_.manifest().tensors)
      if (!expected.contains(name) && name.find('/') == std::string::npos)
        problems.unexpected(name);
    problems.throw_if_any(facts_.path.string() + " does not match the model of its configuration");
  }

  void read_as_stored(const std::string& param, const Box& box, const at::Tensor& target) {
    if (target.numel() == 0) return;
    int64_t last = 0;
    for (int64_t d = 0; d < target.dim(); ++d) last += (target.size(d) - 1) * target.stride(d);
    const size_t bytes = static_cast<size_t>(last + 1) * target.element_size();
    reader_.read(stored_name(param), box, {static_cast<std::byte*>(target.data_ptr()), bytes},
                 {target.strides().data(), target.strides().size()});
  }

  CheckpointReader reader_;
  bool average_; ///< read the running mean of the weights
};

} // namespace

std::unique_ptr<ModelSource> open_run_model(const fs::path& where, bool average) {
  const fs::path folder = choose(where);
  if (holds_adapters(folder)) {
    if (average)
      raise<CheckpointError>("{} contains adapters, whose running mean cannot be merged into a "
                             "model\n  try: the model without --ema",
                             folder.string());
    return open_adapted(folder.string());
  }
  return std::make_unique<RunSource>(folder, average);
}

} // namespace pentatron::checkpoint
