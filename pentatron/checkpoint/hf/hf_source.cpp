/// A Hugging Face folder as a ModelSource.
#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/log.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/checkpoint/hf/mxfp4.h"
#include "pentatron/checkpoint/hf/parts.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// A tensor of a model: one of the files, or MXFP4's two.
struct StoredTensor {
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<int64_t> shape;
  const SafeTensor* values = nullptr; ///< or blocks
  const SafeTensor* scales = nullptr; ///< of MXFP4
};

/// Slices [begin, begin + count) of the first dimension, which is not empty.
SafeTensor slices(const SafeTensor& tensor, int64_t begin, int64_t count) {
  const size_t size = tensor.data.size() / static_cast<size_t>(tensor.shape[0]);
  SafeTensor part{.dtype = tensor.dtype, .shape = tensor.shape};
  part.shape[0] = count;
  part.data =
      tensor.data.subspan(static_cast<size_t>(begin) * size, static_cast<size_t>(count) * size);
  return part;
}

/// Rows [begin, begin + rows) of the tensor as the parameter has it, in the type of the file.
at::Tensor rows_of(const WeightMapEntry& entry, const StoredTensor& tensor, int64_t begin,
                   int64_t rows) {
  if (tensor.scales != nullptr) { // their rows are those of the parameter
    WeightMapEntry straight = entry;
    straight.transposed = false;
    return as_parameter(straight, dequantize_mxfp4(slices(*tensor.values, begin, rows),
                                                   slices(*tensor.scales, begin, rows)));
  }
  if (entry.sliceable() && !tensor.shape.empty() && tensor.shape[0] > 0)
    return as_parameter(entry, to_tensor(slices(*tensor.values, begin, rows), /*borrow=*/true));
  return as_parameter(entry, to_tensor(*tensor.values, /*borrow=*/true)).narrow(0, begin, rows);
}

constexpr const char* kOutputLayer = "lm_head.weight"; ///< of decoders and T5

class HfSource final : public ModelSource {
 public:
  HfSource(const fs::path& folder, HfModel model, ModelPurpose purpose)
      : ModelSource({}), files_(folder), family_(find_family(model.family)) {
    const bool said_tied = !model.config.untie_embeddings_and_output_weights;
    const bool without_head = model.without_head && files_.find(kOutputLayer) == nullptr;
    if ((without_head && purpose == ModelPurpose::kHiddenStates) ||
        (family_ != nullptr && family_->tensors_decide_tying))
      model.config.untie_embeddings_and_output_weights = false;
    if (family_ != nullptr && family_->fit != nullptr)
      family_->fit([&](std::string_view name) { return files_.find(name) != nullptr; },
                   model.config);
    if (untie_what_differs(model) && said_tied)
      log::shared_warning("{}: the weights of the embedding and of the output layer differ, so "
                          "they are not tied, as in transformers",
                          folder.string());
    facts_ = {.format = ModelFormat::kHuggingFace,
              .path = folder,
              .config = model.config,
              .family = model.family,
              .context = model.config.max_position_embeddings,
              .generation = generation_defaults(folder),
              .companions = companion_files(folder)};
    facts_.without_head = without_head;
    if (has_tokenizer_files(folder)) facts_.tokenizer = {TokenizerPlace::Kind::kFiles, folder};
    match(model);
  }

  void read(const std::string& param, const Box& box, const at::Tensor& target) override {
    const auto found = parts_.find(param);
    PT_DCHECK(found != parts_.end());
    read_parts(found->second, box, target, rows_of);
    for (const ParamPart<StoredTensor>& part : found->second) {
      release_pages(part.tensor->values->data);
      if (part.tensor->scales != nullptr) release_pages(part.tensor->scales->data);
    }
    files_.check_sizes();
  }

 private:
  /// transformers 5 ties only weights that are equal, whatever config.json says.
  bool untie_what_differs(HfModel& model) const {
    if (model.config.untie_embeddings_and_output_weights) return false;
    HfModel untied = model;
    untied.config.untie_embeddings_and_output_weights = true;
    const SafeTensor *words = nullptr, *output = nullptr;
    for (const WeightMapEntry& entry : weight_map(untied)) {
      const bool input = entry.param == "embedding.word.weight";
      if (!input && entry.param != "output.weight") continue;
      for (const std::string& name : spellings_of(entry.hf))
        if (const SafeTensor* const tensor = files_.find(name)) (input ? words : output) = tensor;
    }
    model.config.untie_embeddings_and_output_weights =
        words != nullptr && output != nullptr && !std::ranges::equal(words->data, output->data);
    return model.config.untie_embeddings_and_output_weights;
  }

  std::vector<std::string> spellings_of(const std::string& name) const {
    return family_ == nullptr ? std::vector{name} : spellings(*family_, name);
  }

  /// Finds a tensor under its name or another spelling.
  const SafeTensor* find(const std::string& name, std::set<std::string>& used) {
    for (const std::string& candidate : spellings_of(name)) {
      const SafeTensor* const tensor = files_.find(candidate);
      if (tensor == nullptr) continue;
      used.insert(candidate);
      if (candidate != name) facts_.hf["names"][name] = candidate;
      return tensor;
    }
    return nullptr;
  }

  /// Of a second copy in the files; transformers does not tie what differs.
  bool differs(const SafeTensor& copy, const std::string& original) const {
    if (original.empty()) return false;
    for (const std::string& name : spellings_of(original))
      if (const SafeTensor* const tensor = files_.find(name))
        return tensor->dtype != copy.dtype || !std::ranges::equal(tensor->data, copy.data);
    return false;
  }

  void add(const WeightMapEntry& entry, StoredTensor tensor) {
    stored_.push_back(std::move(tensor));
    parts_[entry.param].push_back({entry, &stored_.back()});
  }

  /// Whether the files have a stack of matrices as blocks and scales.
  bool match_mxfp4(const WeightMapEntry& entry, std::set<std::string>& used,
                   TensorProblems& problems) {
    if (!entry.transposed || entry.shape.size() != 3 || entry.one_of_stack) return false;
    const std::string names[] = {entry.hf + "_blocks", entry.hf + "_scales"};
    const SafeTensor* const blocks = files_.find(names[0]);
    const SafeTensor* const scales = files_.find(names[1]);
    if (blocks == nullptr && scales == nullptr) return false;
    for (const auto& [name, tensor] :
         {std::pair{&names[0], blocks}, std::pair{&names[1], scales}}) {
      used.insert(*name);
      if (tensor == nullptr) problems.missing(*name);
    }
    if (blocks == nullptr || scales == nullptr) return true;
    if (const std::string wrong = mxfp4_misfit(*blocks, *scales, entry.shape); !wrong.empty())
      problems.misfit(fmt::format("{}: {}", entry.hf, wrong));
    add(entry,
        {.dtype = SafeDtype::kBF16, .shape = entry.hf_shape(), .values = blocks, .scales = scales});
    return true;
  }

  void match(const HfModel& model) {
    TensorProblems problems;
    std::set<std::string> used;
    bool lacks_more = false; // than an output layer
    for (const WeightMapEntry& entry : weight_map(model)) {
      const SafeTensor* const tensor = find(entry.hf, used);
      if (tensor == nullptr) {
        if (match_mxfp4(entry, used, problems)) continue;
        problems.missing(entry.hf);
        lacks_more = lacks_more || entry.hf != kOutputLayer;
        continue;
      }
      if (tensor->shape != entry.hf_shape())
        problems.misfit(fmt::format("{} has shape {} instead of {}", entry.hf,
                                    shape_text(tensor->shape), shape_text(entry.hf_shape())));
      if (!is_weight_dtype(tensor->dtype))
        problems.misfit(fmt::format("{} is of type {}", entry.hf, name_of(tensor->dtype)));
      add(entry, {.dtype = tensor->dtype, .shape = tensor->shape, .values = tensor});
    }
    const auto copies = hf_copies(model);
    if (!copies.empty() && std::ranges::none_of(copies, [&](const auto& copy) {
          return files_.find(copy.first) != nullptr;
        }))
      facts_.hf["copies"] = false;
    for (const auto& [name, tensor] : files_.tensors()) {
      if (used.contains(name)) continue;
      if (!is_known_extra(name, model))
        problems.unexpected(name);
      else if (!is_fixed_table(name) && original_of(name, model).empty() && name != kOutputLayer)
        facts_.unused.push_back(name);
      if (const std::string original = original_of(name, model); differs(tensor, original))
        problems.misfit(
            fmt::format("{} is not equal to {}, although it must be a copy of it in this model",
                        name, original));
    }
    if (facts_.without_head && !problems.empty() && problems.only_missing() && !lacks_more)
      raise<CheckpointError>("{} has no output layer: {} is missing\n  try: pentatron evaluate {} "
                             "--batches FILE --hidden-out hidden.safetensors",
                             facts_.path.string(), kOutputLayer, shell_word(facts_.path.string()));
    problems.throw_if_any(
        fmt::format("the tensors in {} do not match the {} model in its config.json",
                    facts_.path.string(), model.family));
    facts_.tensors = describe_parts(parts_, facts_.hf);
  }

  SafetensorsFolder files_;
  const Family* family_;
  std::deque<StoredTensor> stored_; // whose addresses stay
  PartsByParam<StoredTensor> parts_;
};

/// Refuses weights that are pickled, and a folder without weights.
void require_weights(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "model.safetensors", error) ||
      fs::exists(folder / "model.safetensors.index.json", error))
    return;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".bin" && name != "pytorch_model.bin.index.json") continue;
    raise<DataError>("{} has its weights in {}, which contains pickled objects; these can run code "
                     "and are not loaded\n  try: save the model as Safetensors, with "
                     "model.save_pretrained(DIR) of transformers",
                     folder.string(), name);
  }
  raise<DataError>("{} contains neither model.safetensors nor model.safetensors.index.json\n  "
                   "try: {}",
                   folder.string(),
                   download_or(folder, "the folder of a Hugging Face model, with config.json and "
                                       "model.safetensors"));
}

/// An interrupted download leaves an index without some of its files.
std::unique_ptr<ModelSource> open_files(const fs::path& folder, const HfModel& model,
                                        ModelPurpose purpose) {
  try {
    return std::make_unique<HfSource>(folder, model, purpose);
  } catch (const DataError& error) {
    const std::string remedy = download_or(folder, "");
    if (remedy.empty() || !parts_of(error.what()).remedy.empty()) throw;
    raise<DataError>("{}\n  try: {}", error.what(), remedy);
  }
}

} // namespace

std::unique_ptr<ModelSource> open_hf_model(const fs::path& folder, ModelPurpose purpose) {
  return open_hf_model(folder, read_hf_config(folder), purpose);
}

std::unique_ptr<ModelSource> open_hf_model(const fs::path& folder, const HfModel& model,
                                           ModelPurpose purpose) {
  require_weights(folder);
  return open_files(folder, model, purpose);
}

} // namespace pentatron::checkpoint
