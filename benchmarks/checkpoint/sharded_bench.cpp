// Saving and reading 500 MB of checkpoint on the disk of the current folder, beside what the
// machine can do at best: the same bytes by plain writes and one fsync; all bytes of a mapped file
// touched and checksummed. Best run of --benchmark_repetitions.
#include <benchmark/benchmark.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/checkpoint/sharded/checkpoint_writer.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/sharded/shard_writer.h"
#include "pentatron/checkpoint/sharded/verify.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTensors = 30, kRows = 4096, kColumns = 1024; // 16.8 MB each
const fs::path kDir = "pentatron-bench-checkpoint";

const std::vector<std::byte>& tensor_bytes() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> out(kRows * kColumns * 4);
    uint64_t state = 1;
    for (std::byte& b : out) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      b = static_cast<std::byte>(state >> 56);
    }
    return out;
  }();
  return bytes;
}

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * kTensors *
                          static_cast<int64_t>(tensor_bytes().size()));
}

fs::path save(uint64_t chunk_bytes) {
  CheckpointWriter writer(kDir, 1);
  std::vector<EntrySpec> specs;
  const std::vector<int64_t> shape = {kRows, kColumns};
  for (int64_t i = 0; i < kTensors; ++i)
    specs.push_back({.name = fmt::format("layers.{}.weight", i),
                     .dtype = SafeDtype::kF32,
                     .shape = shape,
                     .boxes = {whole_box(shape)}});
  ShardFileWriter file(writer.path(), shard_name("model", 0, 1), specs, {}, chunk_bytes);
  for (const EntrySpec& spec : specs) file.write(spec.name, tensor_bytes());
  const std::vector<std::string> descriptions = {file.finish()};
  return writer.commit(descriptions, {});
}

void BM_WriteRaw(benchmark::State& state) {
  fs::create_directories(kDir);
  const fs::path file = kDir / "raw";
  for (auto _ : state) {
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (int64_t i = 0; i < kTensors; ++i) {
      if (::write(descriptor, tensor_bytes().data(), tensor_bytes().size()) !=
          static_cast<ssize_t>(tensor_bytes().size()))
        std::abort();
    }
    if (::fsync(descriptor) != 0) std::abort();
    ::close(descriptor);
    state.PauseTiming();
    fs::remove(file);
    state.ResumeTiming();
  }
  count_bytes(state);
}

void BM_Save(benchmark::State& state) {
  for (auto _ : state) {
    save(static_cast<uint64_t>(state.range(0)) << 10);
    state.PauseTiming();
    fs::remove_all(kDir);
    state.ResumeTiming();
  }
  count_bytes(state);
}

void BM_TouchMapped(benchmark::State& state) {
  const fs::path file = save(kDefaultChunk) / shard_name("model", 0, 1);
  for (auto _ : state) {
    const MappedFile mapped(file, MappedFile::Access::kSequential);
    benchmark::DoNotOptimize(crc32c(mapped.bytes()));
  }
  count_bytes(state);
}

/// The mapped file checked and copied to where the values are wanted.
void BM_CopyMapped(benchmark::State& state) {
  const fs::path path = save(kDefaultChunk) / shard_name("model", 0, 1);
  std::vector<std::byte> target(tensor_bytes().size());
  for (auto _ : state) {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      benchmark::DoNotOptimize(crc32c(tensor.data));
      std::memcpy(target.data(), tensor.data.data(), tensor.data.size());
    }
  }
  count_bytes(state);
}

/// Into memory that is there and aligned to a cache line, as a model's is.
void BM_Read(benchmark::State& state) {
  const fs::path folder = save(static_cast<uint64_t>(state.range(0)) << 10);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const size_t bytes = tensor_bytes().size();
  std::vector<Line> model(kTensors * bytes / sizeof(Line));
  const std::span<std::byte> values = std::as_writable_bytes(std::span(model));
  for (auto _ : state) {
    CheckpointReader reader(folder);
    size_t at = 0;
    for (const auto& [name, info] : reader.manifest().tensors) {
      reader.read(name, whole_box(info.shape), values.subspan(at, bytes));
      at += bytes;
    }
  }
  count_bytes(state);
}

/// In place, every byte checked, as generate loads.
void BM_Map(benchmark::State& state) {
  const fs::path folder = save(static_cast<uint64_t>(state.range(0)) << 10);
  for (auto _ : state) {
    CheckpointReader reader(folder);
    std::vector<CheckpointReader::Wanted> wanted;
    for (const auto& [name, info] : reader.manifest().tensors)
      wanted.push_back({name, whole_box(info.shape)});
    for (const auto& mapped : reader.map(wanted))
      if (!mapped) std::abort();
  }
  count_bytes(state);
}

/// The right half of each matrix, as one of two ranks that split columns reads it.
void BM_ReadColumns(benchmark::State& state) {
  const fs::path folder = save(static_cast<uint64_t>(state.range(0)) << 10);
  std::vector<std::byte> target(tensor_bytes().size() / 2);
  const Box half{.offset = {0, kColumns / 2}, .size = {kRows, kColumns / 2}};
  for (auto _ : state) {
    CheckpointReader reader(folder);
    for (const auto& [name, info] : reader.manifest().tensors) reader.read(name, half, target);
  }
  count_bytes(state);
}

void BM_Verify(benchmark::State& state) {
  const fs::path folder = save(kDefaultChunk);
  for (auto _ : state) {
    if (!verify(folder).ok()) std::abort();
  }
  count_bytes(state);
}

void BM_Crc32c(benchmark::State& state) {
  const auto bytes = std::span(tensor_bytes()).first(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

#define CHECKPOINT_BENCHMARK(name)                                                                 \
  BENCHMARK(name)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(2)
CHECKPOINT_BENCHMARK(BM_WriteRaw);
CHECKPOINT_BENCHMARK(BM_Save)->ArgName("chunk_KiB")->Arg(256)->Arg(1024)->Arg(4096);
CHECKPOINT_BENCHMARK(BM_TouchMapped);
CHECKPOINT_BENCHMARK(BM_CopyMapped);
CHECKPOINT_BENCHMARK(BM_Read)->ArgName("chunk_KiB")->Arg(256)->Arg(1024)->Arg(4096);
CHECKPOINT_BENCHMARK(BM_Map)->ArgName("chunk_KiB")->Arg(256)->Arg(1024)->Arg(4096);
CHECKPOINT_BENCHMARK(BM_ReadColumns)->ArgName("chunk_KiB")->Arg(256)->Arg(1024)->Arg(4096);
CHECKPOINT_BENCHMARK(BM_Verify);
BENCHMARK(BM_Crc32c)->Arg(1 << 10)->Arg(1 << 20)->Arg(16 << 20);

} // namespace
} // namespace pentatron::checkpoint
