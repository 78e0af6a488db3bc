#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

BatchesDataset::BatchesDataset(const std::filesystem::path& path, int64_t vocab_size)
    : name_(path.string()) {
  const SafetensorsFile file(path);
  const SafeTensor& tensor = file.at("tokens");
  if (tensor.dtype != SafeDtype::kI64 || tensor.shape.size() != 3) {
    raise<DataError>("{}: tokens is {} [{}], not I64 [steps, batch, sequence + 1]", name_,
                     name_of(tensor.dtype), fmt::join(tensor.shape, ", "));
  }
  steps_ = tensor.shape[0];
  batch_size_ = tensor.shape[1];
  columns_ = tensor.shape[2];
  if (steps_ < 1 || batch_size_ < 1 || columns_ < 2) {
    raise<DataError>("{}: tokens [{}] contains no sample with at least two tokens", name_,
                     fmt::join(tensor.shape, ", "));
  }
  tokens_.resize(static_cast<size_t>(tensor.numel()));
  std::memcpy(tokens_.data(), tensor.data.data(), tensor.data.size());
  const auto bad = std::find_if(tokens_.begin(), tokens_.end(),
                                [&](int64_t id) { return id < 0 || id >= vocab_size; });
  if (bad != tokens_.end()) {
    const int64_t at = bad - tokens_.begin();
    raise<DataError>("{}: tokens[{}, {}, {}]={} is not in the vocabulary of {}", name_,
                     at / columns_ / batch_size_, at / columns_ % batch_size_, at % columns_, *bad,
                     vocab_size);
  }
}

void BatchesDataset::sample(int64_t n, int64_t* tokens) const {
  if (n < 0 || n >= *size())
    raise<DataError>("{} has {} samples, so sample {} does not exist", name_, *size(), n + 1);
  std::copy_n(tokens_.data() + n * columns_, columns_, tokens);
}

} // namespace pentatron::data
