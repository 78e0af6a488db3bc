// Runs a fuzz target without libFuzzer: over every seed file of the folders on the command line,
// over every prefix and single byte change of short seeds, and over random mutations of all. The
// same bytes on every machine and every run.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

void run(const Bytes& bytes) {
  const Bytes exact(bytes.begin(),
                    bytes.end()); // no spare capacity: reads past the end are out of bounds
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes mutate(Bytes bytes, std::mt19937_64& random) {
  const int changes = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < changes; ++i) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 5) {
    case 0:
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(random()));
      break;
    case 1:
      if (!bytes.empty()) bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 2:
      if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << (random() % 8));
      break;
    case 3:
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random() % 2 == 0 ? 0xff : 0x00);
      break;
    default:
      if (!bytes.empty()) bytes.resize(at);
      break;
    }
  }
  return bytes;
}

} // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> seeds = {{}};
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      std::fprintf(stderr, "no seeds: %s is not a folder\n", argv[i]);
      return 1;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  constexpr size_t kShort = 512;
  constexpr int kMutations = 2000;
  size_t runs = 0;
  std::mt19937_64 random(1);
  for (const Bytes& seed : seeds) {
    run(seed);
    ++runs;
    for (size_t n = 0; seed.size() <= kShort && n < seed.size(); ++n) {
      run(Bytes(seed.begin(), seed.begin() + static_cast<std::ptrdiff_t>(n)));
      Bytes changed = seed;
      changed[n] = static_cast<uint8_t>(~changed[n]);
      run(changed);
      runs += 2;
    }
    for (int i = 0; i < kMutations; ++i, ++runs) run(mutate(seed, random));
  }
  std::printf("%zu inputs from %zu seeds\n", runs, seeds.size());
}
