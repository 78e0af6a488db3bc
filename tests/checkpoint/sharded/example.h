/// Checkpoints for the tests of this folder: tensors whose values follow from name and iteration,
/// cut among ranks in ways of their own.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "pentatron/checkpoint/sharded/checkpoint_writer.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/sharded/shard_writer.h"
#include "tests/checkpoint/sharded/copy_box.h"

namespace pentatron::checkpoint::test {

/// Tensors of odd shapes; those with "/" are optimizer state.
inline TensorInfos example_tensors(int64_t scale = 1) {
  return {{"embedding.weight", {SafeDtype::kF32, {13 * scale, 24}}},
          {"layers.0.qkv.weight", {SafeDtype::kBF16, {24, 11, 3 * scale}}},
          {"layers.0.norm.weight", {SafeDtype::kF32, {24}}},
          {"scale", {SafeDtype::kF64, {}}},
          {"nothing", {SafeDtype::kF32, {0, 3}}},
          {"embedding.weight/exp_avg", {SafeDtype::kF32, {13 * scale, 24}}},
          {"layers.0.qkv.weight/exp_avg", {SafeDtype::kF32, {24, 11, 3 * scale}}},
          {"layers.0.qkv.weight/master", {SafeDtype::kF32, {24, 11, 3 * scale}}}};
}

/// The bytes of a tensor: a hash of name, iteration and place.
inline std::vector<std::byte> example_bytes(const std::string& name, const TensorInfo& info,
                                            int64_t iteration) {
  uint64_t state = static_cast<uint64_t>(iteration) * 0x9E3779B97F4A7C15u + 1;
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  std::vector<std::byte> bytes(static_cast<size_t>(info.bytes()));
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

/// What a rank of so many holds: optimizer state by flat ranges (as ZeRO cuts it), of the others
/// rows for names of even length and columns for odd ones. The first rank has what cannot be cut.
inline std::vector<Box> boxes_of(const std::string& name, const TensorInfo& info, int64_t rank,
                                 int64_t ranks) {
  const int64_t n = numel(info.shape);
  if (info.shape.empty() || n == 0)
    return rank == 0 ? std::vector{whole_box(info.shape)} : std::vector<Box>{};
  if (name.find('/') != std::string::npos)
    return flat_range_boxes(info.shape, n * rank / ranks,
                            n * (rank + 1) / ranks - n * rank / ranks);
  const size_t d = name.size() % 2 == 0 ? 0 : info.shape.size() - 1;
  Box box = whole_box(info.shape);
  box.offset[d] = info.shape[d] * rank / ranks;
  box.size[d] = info.shape[d] * (rank + 1) / ranks - box.offset[d];
  return box.size[d] == 0 ? std::vector<Box>{} : std::vector{box};
}

/// One rank's file of one kind ("model" or "optimizer"); returns the description.
inline std::string write_shard(const std::filesystem::path& folder, const std::string& kind,
                               const TensorInfos& tensors, int64_t iteration, int64_t rank,
                               int64_t ranks, uint64_t chunk_bytes = kMinChunk) {
  std::vector<EntrySpec> specs;
  for (const auto& [name, info] : tensors) {
    if ((name.find('/') != std::string::npos) != (kind == "optimizer")) continue;
    std::vector<Box> boxes = boxes_of(name, info, rank, ranks);
    if (!boxes.empty())
      specs.push_back(
          {.name = name, .dtype = info.dtype, .shape = info.shape, .boxes = std::move(boxes)});
  }
  ShardFileWriter writer(folder, shard_name(kind, rank, ranks), specs, {{"format", "pt"}},
                         chunk_bytes);
  for (const EntrySpec& spec : specs) {
    const TensorInfo& info = tensors.find(spec.name)->second;
    const std::vector<std::byte> bytes = example_bytes(spec.name, info, iteration);
    const Box whole = whole_box(info.shape);
    for (const Box& box : spec.boxes) {
      std::vector<std::byte> piece(static_cast<size_t>(numel(box)) * size_of(info.dtype));
      copy_box(box, whole, bytes, box, piece, size_of(info.dtype));
      for (std::span<const std::byte> left(piece); !left.empty();) { // in uneven pieces
        const size_t size = std::min<size_t>(left.size(), 1777);
        writer.write(spec.name, left.first(size));
        left = left.subspan(size);
      }
    }
  }
  return writer.finish();
}

/// Two small files, one of them in a folder.
inline std::map<std::string, std::string> example_attachments() {
  return {{"notes.txt", "of the run"}, {"tokenizer/tokenizer.json", "{\"model\": {}}\n"}};
}

/// A whole checkpoint of so many ranks.
inline std::filesystem::path write_example(const std::filesystem::path& dir, int64_t iteration,
                                           int64_t ranks,
                                           const TensorInfos& tensors = example_tensors(),
                                           Json state = Json::object(),
                                           uint64_t chunk_bytes = kMinChunk) {
  CheckpointWriter writer(dir, iteration);
  std::vector<std::string> descriptions;
  for (const char* kind : {"model", "optimizer"}) {
    for (int64_t rank = 0; rank < ranks; ++rank)
      descriptions.push_back(
          write_shard(writer.path(), kind, tensors, iteration, rank, ranks, chunk_bytes));
  }
  state["consumed_samples"] = iteration * 8;
  return writer.commit(descriptions, {.state = std::move(state),
                                      .config_yaml = "seed: 1\n",
                                      .tokenizer = "abc",
                                      .attachments = example_attachments(),
                                      .parity = 1});
}

/// The names of tensors and files that are not what example_bytes() and example_attachments() say.
inline std::vector<std::string> wrong_tensors(const std::filesystem::path& folder) {
  CheckpointReader reader(folder);
  std::vector<std::string> wrong;
  for (const auto& [name, info] : reader.manifest().tensors) {
    if (reader.read(name) != example_bytes(name, info, reader.manifest().iteration))
      wrong.push_back(name);
  }
  for (const auto& [name, attachment] : reader.attachments()) {
    if (reader.read_attachment(name) != example_attachments()[name]) wrong.push_back(name);
  }
  return wrong;
}

} // namespace pentatron::checkpoint::test
