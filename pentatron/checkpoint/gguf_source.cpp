/// A GGUF file as a ModelSource.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/gguf/gguf_model.h"
#include "pentatron/checkpoint/hf/parts.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace {

class GgufModelSource final : public ModelSource {
 public:
  explicit GgufModelSource(const std::filesystem::path& file) : ModelSource({}), file_(file) {
    const HfModel model = parse_hf_config(file_.config(), file.string());
    facts_ = {.format = ModelFormat::kGguf,
              .path = file,
              .config = model.config,
              .family = model.family,
              .context = model.config.max_position_embeddings,
              .generation = generation_defaults(file_.config(), file.string()),
              .saved_config = {}};
    if (file_.has_tokenizer()) facts_.tokenizer = {TokenizerPlace::Kind::kGguf, file};
    for (const WeightMapEntry& entry : weight_map(model, HfNames::kStacks)) {
      const GgufModel::Tensor* const tensor = file_.find(entry.hf);
      if (tensor == nullptr || tensor->shape != entry.hf_shape()) // GgufModel has checked it all
        raise<CheckpointError>("{} has no tensor {} with shape {}", file.string(), entry.hf,
                               shape_text(entry.hf_shape()));
      parts_[entry.param].push_back({entry, tensor});
    }
    facts_.tensors = describe_parts(parts_, facts_.hf);
  }

  void read(const std::string& param, const Box& box, const at::Tensor& target) override {
    read_parts(
        parts_.at(param), box, target,
        [&](const WeightMapEntry& entry, const GgufModel::Tensor& tensor, int64_t begin,
            int64_t rows) { return as_parameter(entry, whole(tensor)).narrow(0, begin, rows); });
  }

 private:
  /// A tensor is converted as a whole; the last one is kept, for the next box of it.
  const at::Tensor& whole(const GgufModel::Tensor& tensor) {
    if (kept_ != &tensor) {
      kept_ = nullptr;
      value_ = at::Tensor();
      value_ = at::empty(tensor.shape, at::TensorOptions(scalar_type(tensor.dtype)));
      file_.read(tensor.name, {static_cast<std::byte*>(value_.data_ptr()), value_.nbytes()});
      kept_ = &tensor;
    }
    return value_;
  }

  GgufModel file_;
  PartsByParam<GgufModel::Tensor> parts_;
  const GgufModel::Tensor* kept_ = nullptr;
  at::Tensor value_;
};

} // namespace

std::unique_ptr<ModelSource> open_gguf_model(const std::filesystem::path& file) {
  return std::make_unique<GgufModelSource>(file);
}

} // namespace pentatron::checkpoint
