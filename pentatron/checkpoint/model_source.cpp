#include "pentatron/checkpoint/model_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"
#include "pentatron/base/tokenizer_names.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/meant_checkpoints.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/source_facts.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

at::Tensor narrow_to(at::Tensor tensor, const std::vector<int64_t>& begin,
                     const std::vector<int64_t>& size) {
  for (size_t d = 0; d < size.size(); ++d)
    tensor = tensor.narrow(static_cast<int64_t>(d), begin[d], size[d]);
  return tensor;
}

void fill(ModelSource& source, nn::Param& param) {
  at::Tensor value = param.value();
  const at::Tensor host =
      value.is_cpu() ? value : at::empty(value.sizes(), value.options().device(at::kCPU));
  if (param.spec().shard_multiple > 0) host.zero_(); // padding
  for (const nn::LocalBox& box : nn::local_boxes(param.spec(), param.where()))
    source.read(param.name(), Box{box.global, box.size}, narrow_to(host, box.local, box.size));
  if (!value.is_cpu()) value.copy_(host);
}

constexpr std::string_view kAveragePrefix = "ema:";

std::string what_is_a_model(const fs::path& where) {
  return meant_checkpoints(
      where, "",
      "a Hugging Face folder, a run's checkpoint folder (checkpoint.save), or a .gguf file");
}

/// What an argument that is a file would have to be.
[[noreturn]] void refuse_file(const fs::path& file) {
  const std::string extension = file.extension().string();
  if (extension == ".safetensors")
    raise<DataError>(
        "{} is only one file of a model\n  try: the folder that contains it and config.json",
        file.string());
  if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt")
    raise<DataError>(
        "{} contains pickled objects, which can run code and are not loaded\n  try: save the model "
        "as Safetensors, with model.save_pretrained(DIR) of transformers",
        file.string());
  raise<DataError>("{} is not a model: it is a file, but not a GGUF file\n  try: a Hugging Face "
                   "folder, a run's checkpoint folder (checkpoint.save), or a .gguf file",
                   file.string());
}

} // namespace

std::string_view name_of(ModelFormat format) {
  switch (format) {
  case ModelFormat::kPentatron:
    return "pentatron";
  case ModelFormat::kHuggingFace:
    return "hf";
  case ModelFormat::kGguf:
    return "gguf";
  }
  PT_DCHECK(false);
}

SafeDtype ModelSource::dtype() const {
  std::map<SafeDtype, int64_t> elements;
  for (const auto& [name, info] : facts_.tensors) elements[info.dtype] += numel(info.shape);
  const auto most =
      std::max_element(elements.begin(), elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == elements.end() ? SafeDtype::kF32 : most->first;
}

std::set<const nn::Param*> ModelSource::lend(nn::ParamList&) {
  return {};
}

void ModelSource::load(nn::ParamList& params) {
  load(params, [&](const std::function<void(nn::Param&)>& each) {
    for (nn::Param& param : params) each(param);
  });
}

std::vector<std::string> ModelSource::check(const models::ParamSpecs& specs,
                                            Strictness strictness) const {
  TensorProblems problems;
  std::vector<std::string> missing;
  for (const auto& [name, spec] : specs) {
    const auto found = facts_.tensors.find(name);
    if (found == facts_.tensors.end()) {
      missing.push_back(name);
      if (strictness != Strictness::kLogAll) problems.missing(name);
    } else if (found->second.shape != spec.shape && strictness == Strictness::kLogAll &&
               name.starts_with(kClassifier)) {
      missing.push_back(name);
    } else if (found->second.shape != spec.shape) {
      problems.misfit(fmt::format("{} has shape {} instead of {}", name,
                                  shape_text(found->second.shape), shape_text(spec.shape)));
    }
  }
  std::string what = facts_.path.string() + " does not match the model of this configuration";
  if (problems.only_missing())
    what += " (checkpoint.strictness=log_all initializes missing tensors)";
  problems.throw_if_any(what);
  return missing;
}

void ModelSource::check_layers(const models::ParamSpecs& tensors, Strictness strictness) const {
  if (strictness != Strictness::kRaiseAll) return;
  TensorProblems problems;
  for (const auto& [name, info] : facts_.tensors) {
    const size_t layers = name.find("layers.");
    const bool of_layer = layers == 0 || (layers != std::string::npos && name[layers - 1] == '.');
    if (of_layer && !name.starts_with("mtp.") && !tensors.contains(name)) problems.unexpected(name);
  }
  problems.throw_if_any(facts_.path.string() +
                        " does not match the model of this configuration "
                        "(checkpoint.strictness=log_unexpected ignores extra tensors)");
}

void ModelSource::load(nn::ParamList& params, const EachParam& each, Strictness strictness) {
  models::ParamSpecs specs;
  for (const nn::Param& param : params)
    if (!param.adapter) specs.emplace(param.name(), param.spec());
  const std::vector<std::string> fresh = check(specs, strictness);
  const auto bytes_of = [&](const nn::Param& param) {
    const auto found = facts_.tensors.find(param.name());
    return found == facts_.tensors.end() || std::ranges::find(fresh, param.name()) != fresh.end()
               ? 0
               : static_cast<int64_t>(found->second.bytes());
  };
  int64_t total = 0, done = 0;
  for (const nn::Param& param : params) total += bytes_of(param);
  pentatron::Progress shown("loading " + excerpt(facts_.path.filename().string(), 30), total,
                            {.unit = pentatron::Progress::Unit::kBytes});
  each([&](nn::Param& param) {
    if (bytes_of(param) == 0) return;
    fill(*this, param);
    shown.update(done += bytes_of(param));
    if (progress_) progress_();
  });
  for (nn::Param& buffer : params.buffers())
    if (facts_.tensors.contains(buffer.name())) fill(*this, buffer);
}

namespace {

bool has_usual_tokenizer(const fs::path& folder) {
  return std::ranges::any_of(kTokenizerNames,
                             [&](const char* name) { return has_tokenizer_file(folder, name); });
}

/// The tokenizer of a folder without one of the usual names.
std::optional<fs::path> other_tokenizer(const fs::path& folder) {
  return has_usual_tokenizer(folder) ? std::nullopt : only_tokenizer_file(folder, true);
}

} // namespace

std::vector<fs::path> companion_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name : kCompanionFiles)
    if (is_file(folder / name)) files.push_back(folder / name);
  if (const auto tokenizer = other_tokenizer(folder)) files.push_back(*tokenizer);
  return files;
}

void TensorProblems::throw_if_any(const std::string& begin) const {
  if (empty()) return;
  std::vector<std::string> lines;
  for (const std::string& name : missing_) lines.push_back(name + " is missing");
  for (const std::string& name : unexpected_) lines.push_back(name + " is not part of the model");
  lines.insert(lines.end(), misfits_.begin(), misfits_.end());
  raise<CheckpointError>("{} ({}):\n    {}", begin, counted(std::ssize(lines), "problem"),
                         fmt::join(lines, "\n    "));
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_weight_dtype(SafeDtype dtype) {
  return dtype == SafeDtype::kF64 || dtype == SafeDtype::kF32 || dtype == SafeDtype::kF16 ||
         dtype == SafeDtype::kBF16;
}

bool has_tokenizer_files(const fs::path& folder) {
  return has_usual_tokenizer(folder) || other_tokenizer(folder);
}

ModelFormat recognise_model(const fs::path& where) {
  std::error_code ignored;
  if (is_file(where)) {
    if (is_gguf(where)) return ModelFormat::kGguf;
    refuse_file(where);
  }
  if (!fs::is_directory(where, ignored))
    raise<DataError>("{} does not exist\n  try: {}", where.string(), what_is_a_model(where));
  if (is_file(where / kManifestName)) return ModelFormat::kPentatron;
  if (is_file(where / "config.json")) return ModelFormat::kHuggingFace;
  const std::vector<CheckpointFolder> folders = saved_in(where);
  for (const CheckpointFolder& folder : folders) // newest first
    if (!is_file(folder.path / kManifestName) && is_file(folder.path / "config.json"))
      raise<DataError>("{} contains exported models, one in each folder\n  try: {}", where.string(),
                       folder.path.string());
  if (latest_name(where) || !folders.empty()) return ModelFormat::kPentatron;
  raise<DataError>("{} contains no model: neither a pentatron checkpoint nor a config.json\n  "
                   "try: {}",
                   where.string(), what_is_a_model(where));
}

std::string averaged(const std::string& where) {
  return std::string(kAveragePrefix) + where;
}

std::optional<std::string> after_average_prefix(const std::string& where) {
  if (!where.starts_with(kAveragePrefix)) return std::nullopt;
  return where.substr(kAveragePrefix.size());
}

std::unique_ptr<ModelSource> open_model(const std::string& where, ModelPurpose purpose) {
  if (where.find(kWithAdapter) != std::string::npos) return open_adapted(where, purpose);
  if (const auto run = after_average_prefix(where)) {
    const fs::path path = resolve_model_path(*run);
    if (recognise_model(path) != ModelFormat::kPentatron)
      raise<CheckpointError>("{} is not a checkpoint of a run; only checkpoints can contain a "
                             "running mean of the weights\n  try: the model without --ema",
                             path.string());
    return open_run_model(path, /*average=*/true);
  }
  if (const auto name = after_hf_prefix(where))
    return open_hf_model(resolve_model_path(*name), purpose);
  std::error_code ignored;
  const bool checkpoint_is_gone =
      !fs::exists(where, ignored) && !meant_checkpoints(where, "", "").empty();
  const fs::path path = checkpoint_is_gone ? fs::path(where) : resolve_model_path(where);
  switch (recognise_model(path)) {
  case ModelFormat::kPentatron:
    return open_run_model(path);
  case ModelFormat::kHuggingFace:
    return open_hf_model(path, purpose);
  case ModelFormat::kGguf:
    return open_gguf_model(path);
  }
  PT_DCHECK(false);
}

} // namespace pentatron::checkpoint
