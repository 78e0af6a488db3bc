// What a rank pays for its batches: samples of 1024 tokens in random order from a corpus in the
// page cache, alone and through the loader. Every rank of a tensor-parallel group reads for itself;
// the alternative is to read once and to broadcast.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/data/loader.h"
#include "pentatron/data/token_samples.h"

namespace pentatron::data {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kSequence = 1024, kDocuments = 100'000, kVocab = 50'257;

class Corpus {
 public:
  Corpus() : folder_(fs::temp_directory_path() / fmt::format("loader_bench_{}", ::getpid())) {
    fs::create_directories(folder_);
    const std::string prefix = folder_ / "corpus";
    IndexedWriter writer(prefix, {});
    std::mt19937 random(1);
    std::vector<int32_t> document;
    for (int64_t i = 0; i < kDocuments; ++i) {
      document.resize(1 + random() % 1999);
      for (int32_t& token : document) token = static_cast<int32_t>(random() % kVocab);
      writer.add_sequence(document);
      writer.end_document();
    }
    writer.commit();
    const auto corpus = std::make_shared<const IndexedDataset>(prefix);
    const auto index = std::make_shared<const GptIndex>(build_gpt_index(
        corpus->lengths(0, corpus->num_sequences()), 0, {.sequence_length = kSequence}));
    dataset_ = std::make_shared<const GptDataset>(corpus, index, kVocab);
  }
  ~Corpus() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::shared_ptr<const GptDataset> dataset() const { return dataset_; }

 private:
  fs::path folder_;
  std::shared_ptr<const GptDataset> dataset_;
};

std::shared_ptr<const GptDataset> dataset() {
  static const Corpus corpus;
  return corpus.dataset();
}

void BM_Sample(benchmark::State& state) {
  const auto samples = dataset();
  std::vector<int64_t> tokens(kSequence + 1);
  int64_t n = 0;
  for (auto _ : state) {
    samples->sample(n, tokens.data());
    benchmark::DoNotOptimize(tokens.data());
    n = (n + 1) % *samples->size();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Sample)->Unit(benchmark::kMicrosecond);

/// A step of 8 samples of which the consumer takes no time at all: the loader can only be late.
void BM_Loader(benchmark::State& state) {
  const auto samples = dataset();
  Loader loader(std::make_shared<TokenSamples>(samples, TokenSamples::Options{}),
                LoaderOptions{.global_batch_size = 8, .micro_batch_size = 8});
  for (auto _ : state) {
    if (loader.consumed_samples() + 32 > *samples->size()) loader.seek(0);
    benchmark::DoNotOptimize(loader.next().num_targets.size());
  }
  state.SetItemsProcessed(state.iterations() * 8);
}
BENCHMARK(BM_Loader)->Unit(benchmark::kMicrosecond)->UseRealTime();

} // namespace
} // namespace pentatron::data
