/// A model for GGUF files whose numbers are all different.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "pentatron/checkpoint/gguf/gguf_export.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {

using Numbers = std::vector<float>;

struct NumberedModel {
  NumberedModel() = default;
  NumberedModel(const NumberedModel&) = delete; // what reads the sources refers to it

  void add(const std::string& name, const std::vector<int64_t>& shape) {
    size_t size = 1;
    for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
    Numbers& numbers = values[name];
    for (size_t i = 0; i < size; ++i) numbers.push_back(next++);
    sources.push_back({name, shape, SafeDtype::kF32, [this, name](std::span<std::byte> to) {
                         ++reads[name];
                         std::memcpy(to.data(), values.at(name).data(), to.size());
                       }});
  }
  void write(const std::filesystem::path& file, GgmlType type = GgmlType::kF32) const {
    write_gguf(file, config, sources, {.type = type, .name = {}, .tokenizer = {}});
  }
  std::string error() const {
    const TemporaryFolder folder;
    return message_of([&] { write(folder.path() / "x.gguf"); });
  }

  Json config;
  std::vector<GgufSource> sources;
  std::map<std::string, Numbers> values;
  mutable std::map<std::string, int> reads; ///< of each tensor
  float next = 1;
};

} // namespace pentatron::checkpoint
