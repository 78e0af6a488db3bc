#include "pentatron/checkpoint/without_mtp.h"

namespace pentatron::checkpoint {

namespace {

class SourceWithoutMtp final : public ModelSource {
 public:
  explicit SourceWithoutMtp(ModelSource& model) : ModelSource(model.facts()), model_(model) {
    facts_.mtp_left_out = facts_.config.mtp_num_layers > 0;
    facts_.config = facts_.config.without_mtp();
    std::erase_if(facts_.tensors,
                  [](const auto& tensor) { return tensor.first.starts_with("mtp."); });
  }
  void read(const std::string& param, const Box& box, const at::Tensor& target) override {
    model_.read(param, box, target);
  }

 private:
  ModelSource& model_;
};

} // namespace

std::unique_ptr<ModelSource> without_mtp(ModelSource& model) {
  return std::make_unique<SourceWithoutMtp>(model);
}

} // namespace pentatron::checkpoint
