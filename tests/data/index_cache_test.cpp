// One sample order for all ranks of a machine: made once, mapped, shared, and made again when
// damaged; in a folder, or without one in a file that has no name.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/log.h"
#include "pentatron/data/gpt/index_cache.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

/// `lengths` must outlive the result.
SequenceLengths lengths_in(std::span<const int32_t> lengths, int64_t first_sequence) {
  return {.first_sequence = first_sequence,
          .count = static_cast<int64_t>(lengths.size()),
          .read = [lengths](int64_t begin, std::span<int32_t> out) {
            std::copy_n(lengths.begin() + begin, out.size(), out.begin());
          }};
}

GptIndex cached_gpt_index(const std::filesystem::path& folder, std::span<const int32_t> lengths,
                          int64_t first_sequence, const GptIndexOptions& options) {
  return data::cached_gpt_index(folder, lengths_in(lengths, first_sequence), options);
}

bool same(const GptIndex& a, const GptIndex& b) {
  return a.documents == b.documents && a.sample_begin == b.sample_begin && a.shuffle == b.shuffle &&
         a.num_samples == b.num_samples && a.num_epochs == b.num_epochs &&
         a.samples_per_epoch == b.samples_per_epoch && a.sequence_length == b.sequence_length;
}

TEST(IndexCache, GivesBackWhatWasBuiltAndKnowsWhatItWasBuiltFrom) {
  const TemporaryFolder folder;
  const std::filesystem::path cache = folder.path() / "made/here";
  std::vector<int32_t> lengths(100, 17);
  GptIndexOptions options{.sequence_length = 8, .num_samples = 500, .seed = 3};
  const GptIndex built = build_gpt_index(lengths, 5, options);
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(cache), {}); };
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(same(cached_gpt_index(cache, lengths, 5, options), built));
  EXPECT_EQ(files(), 1);
  lengths[50] = 16; // same number, other content
  EXPECT_TRUE(
      same(cached_gpt_index(cache, lengths, 5, options), build_gpt_index(lengths, 5, options)));
  options.seed = 4;
  EXPECT_TRUE(
      same(cached_gpt_index(cache, lengths, 5, options), build_gpt_index(lengths, 5, options)));
  options.num_samples = std::nullopt;
  EXPECT_TRUE(
      same(cached_gpt_index(cache, lengths, 5, options), build_gpt_index(lengths, 5, options)));
  EXPECT_EQ(files(), 4);
}

TEST(IndexCache, DamagedFilesAreMadeAgain) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(40, 9);
  const GptIndexOptions options{.sequence_length = 8, .seed = 3};
  const GptIndex built = cached_gpt_index(folder.path(), lengths, 0, options);
  const std::filesystem::path file = std::filesystem::directory_iterator(folder.path())->path();
  const std::string good = content_of(file);
  for (size_t at = 0; at < good.size(); at += 1 + good.size() / 23) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x41);
    folder.write(file.filename().string(), bad);
    EXPECT_TRUE(same(cached_gpt_index(folder.path(), lengths, 0, options), built)) << at;
    EXPECT_EQ(content_of(file), good) << at;
    folder.write(file.filename().string(), good.substr(0, at));
    EXPECT_TRUE(same(cached_gpt_index(folder.path(), lengths, 0, options), built)) << at;
  }
}

/// A checksum keeps nobody from writing a file that has the right one.
TEST(IndexCache, NumbersThatLeadNowhereAreMadeAgain) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(8, 9);
  const GptIndexOptions options{.sequence_length = 8, .seed = 3};
  const GptIndex built = build_gpt_index(lengths, 5, options);
  cached_gpt_index(folder.path(), lengths, 5, options);
  const std::filesystem::path file = std::filesystem::directory_iterator(folder.path())->path();
  const std::string good = content_of(file);
  const auto samples = static_cast<size_t>(built.num_samples);
  const size_t places = built.documents.size(), shuffle = places + 2 * (samples + 1);
  const size_t words = shuffle + samples;
  ASSERT_EQ(places % 2 + samples % 2, 0); // nothing fills the arrays up to eight bytes
  for (size_t word = 0; word < words; ++word)
    for (const int32_t number : {-1, 1 << 30}) {
      const bool offset = word >= places && word < shuffle && (word - places) % 2 == 1;
      if (offset && number > 0) continue; // GptDataset compares it with the corpus
      std::string bad = good.substr(0, good.size() - sizeof(uint32_t));
      bad.replace(bad.size() - (words - word) * sizeof number, sizeof number,
                  reinterpret_cast<const char*>(&number), sizeof number);
      const uint32_t crc = crc32c(std::as_bytes(std::span(bad)));
      folder.write(file.filename().string(),
                   bad.append(reinterpret_cast<const char*>(&crc), sizeof crc));
      EXPECT_TRUE(same(cached_gpt_index(folder.path(), lengths, 5, options), built)) << word;
      EXPECT_EQ(content_of(file), good) << word;
    }
}

TEST(IndexCache, RemovesWhatKilledProcessesWereWriting) {
  const TemporaryFolder folder;
  folder.write("0123.gptindex.tmp-1-0", "half");
  folder.write("notes.txt", "of somebody");
  cached_gpt_index(folder.path(), std::vector<int32_t>(40, 9), 0, {.sequence_length = 8});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "0123.gptindex.tmp-1-0"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "notes.txt"));
}

TEST(IndexCache, MayBeFilledByManyAtOnce) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(5000, 33);
  const GptIndexOptions options{.sequence_length = 16, .num_samples = 30'000, .seed = 3};
  const GptIndex built = build_gpt_index(lengths, 0, options);
  std::vector<std::thread> starters;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    starters.emplace_back([&] {
      for (int k = 0; k < 5; ++k)
        good += same(cached_gpt_index(folder.path(), lengths, 0, options), built);
    });
  }
  for (std::thread& starter : starters) starter.join();
  EXPECT_EQ(good, 40);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

/// The name of the mapped file that an address lies in, with its permissions in front.
std::string mapping_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char permissions[5] = "", name[512] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %*s %511s", &begin, &end, permissions,
                    name) >= 3 &&
        reinterpret_cast<unsigned long>(address) >= begin &&
        reinterpret_cast<unsigned long>(address) < end)
      return fmt::format("{} {}", permissions, name);
  }
  return "nowhere";
}

TEST(IndexCache, IsMappedReadOnlyAndNotCopied) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(300, 33);
  for (int i = 0; i < 2; ++i) { // made, and found
    const GptIndex index = cached_gpt_index(folder.path(), lengths, 0, {.sequence_length = 8});
    const auto is_mapped = testing::MatchesRegex("r--p .*gptindex");
    EXPECT_THAT(mapping_of(index.documents.begin()), is_mapped);
    std::visit([&](const auto& a) { EXPECT_THAT(mapping_of(a.begin()), is_mapped); },
               index.sample_begin);
    std::visit([&](const auto& a) { EXPECT_THAT(mapping_of(a.begin()), is_mapped); },
               index.shuffle);
  }
}

TEST(IndexCache, KeepsArraysWhoseBytesAreNoMultipleOfTheAlignment) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(301, 7);
  const GptIndexOptions options{.sequence_length = 8, .seed = 3};
  EXPECT_TRUE(same(cached_gpt_index(folder.path(), lengths, 2, options),
                   build_gpt_index(lengths, 2, options)));
}

TEST(IndexCache, IsBuiltOnceByTheProcessesOfAMachine) {
  const TemporaryFolder folder;
  const std::filesystem::path cache = folder.path() / "cache";
  const std::vector<int32_t> lengths(20'000, 33);
  const GptIndexOptions options{.sequence_length = 16, .num_samples = 200'000, .seed = 3};
  const GptIndex built = build_gpt_index(lengths, 0, options);
  const std::string said = (folder.path() / "log").string();
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::FILE* const out = std::fopen(said.c_str(), "a");
      log::set_output(out, false);
      const GptIndex index = cached_gpt_index(cache, lengths, 0, options);
      const bool good = same(index, built) &&
                        mapping_of(index.documents.begin()).find("gptindex") != std::string::npos;
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const std::string text = content_of(said);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text; // "... and saved it in"
}

TEST(IndexCache, WaitsForTheOneThatBuildsAndTakesOverWhenThatIsKilled) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(40, 9);
  const GptIndexOptions options{.sequence_length = 8};
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t builder = ::fork();
  if (builder == 0) {
    const int lock = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
    if (::flock(lock, LOCK_EX) == 0 && ::write(ready[1], "x", 1) == 1)
      for (;;) ::pause();
    ::_exit(1);
  }
  char sign = 0;
  ASSERT_EQ(::read(ready[0], &sign, 1), 1);
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    EXPECT_TRUE(same(cached_gpt_index(folder.path(), lengths, 0, options),
                     build_gpt_index(lengths, 0, options)));
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(ended) << "it did not wait";
  ::kill(builder, SIGKILL);
  ::waitpid(builder, nullptr, 0);
  waiting.join();
  for (const int end : ready) ::close(end);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(IndexCache, ThreadsShareOneObjectWithAndWithoutAFolder) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(5000, 33);
  for (const std::string& cache : {std::string(), folder.path().string()}) {
    const auto get = [&](uint64_t seed) {
      return shared_gpt_index(cache, lengths_in(lengths, 0), {.sequence_length = 16, .seed = seed});
    };
    std::vector<std::shared_ptr<const GptIndex>> held(6);
    std::vector<std::thread> ranks;
    for (auto& one : held) ranks.emplace_back([&] { one = get(3); });
    for (std::thread& rank : ranks) rank.join();
    for (const auto& one : held) EXPECT_EQ(one, held[0]);
    EXPECT_NE(get(4), held[0]);
    EXPECT_TRUE(same(*held[0], build_gpt_index(lengths, 0, {.sequence_length = 16, .seed = 3})));
    const std::weak_ptr<const GptIndex> past = held[0];
    held.clear();
    EXPECT_TRUE(past.expired()) << "nobody needs it any more";
  }
}

/// A store in a folder of its own, and what `count` processes that have opened it do; `body` says
/// whether it went well.
class MachineProcesses {
 public:
  void run(int count, const std::function<bool(MachineStore&)>& body) const {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
      children.push_back(::fork());
      if (children.back() == 0) ::_exit(body(*MachineStore::open(store->address())) ? 0 : 1);
    }
    for (const pid_t child : children) {
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
  }
  bool left_nothing() const { return std::filesystem::is_empty(folder.path()); }

  const TemporaryFolder folder;
  const std::shared_ptr<MachineStore> store = MachineStore::make({folder.path()});
};

/// As lengths_in(), and writes a line to `file` each time that they are read: once to identify the
/// index, and once more to build it.
SequenceLengths counted_lengths(std::span<const int32_t> lengths, const std::string& file) {
  SequenceLengths all = lengths_in(lengths, 0);
  return {.count = all.count, .read = [all, file](int64_t begin, std::span<int32_t> out) {
            std::ofstream(file, std::ios::app) << "read\n" << std::flush;
            all.read(begin, out);
          }};
}

int64_t lines_in(const std::string& file) {
  const std::string text = content_of(file);
  return std::count(text.begin(), text.end(), '\n');
}

const GptIndexOptions kManySamples{.sequence_length = 16, .num_samples = 200'000, .seed = 3};

TEST(IndexCache, WithoutAFolderOneProcessBuildsWhatAllOfAMachineMap) {
  const MachineProcesses machine;
  const TemporaryFolder notes;
  const std::vector<int32_t> lengths(20'000, 33);
  const GptIndex built = build_gpt_index(lengths, 0, kManySamples);
  const std::string reads = (notes.path() / "reads").string(),
                    maps = (notes.path() / "maps").string();
  machine.run(6, [&](MachineStore& store) {
    const auto index =
        shared_gpt_index("", counted_lengths(lengths, reads), kManySamples, false, &store);
    std::ofstream(maps, std::ios::app) << mapping_of(index->documents.begin()) + "\n" << std::flush;
    const auto here = [&](const auto& a) { return mapping_of(a.begin()); };
    return same(*index, built) && machine.left_nothing() &&
           here(index->documents) == std::visit(here, index->sample_begin) &&
           here(index->documents) == std::visit(here, index->shuffle);
  });
  EXPECT_EQ(lines_in(reads), 6 + 1);
  // All arrays of all processes lie in one file, whose name has the number of its inode.
  std::istringstream lines(content_of(maps));
  std::string first, line;
  std::getline(lines, first);
  EXPECT_THAT(first, testing::StartsWith("r--s " + machine.folder.string()));
  while (std::getline(lines, line)) EXPECT_EQ(line, first);
  EXPECT_EQ(lines_in(maps), 6);
}

TEST(IndexCache, IndexesOfSeveralPartsLieInOneStore) {
  const MachineProcesses machine;
  const TemporaryFolder notes;
  const std::string reads = (notes.path() / "reads").string();
  const std::vector<int32_t> lengths(301, 7);
  machine.run(4, [&](MachineStore& store) {
    std::vector<std::shared_ptr<const GptIndex>> all;
    bool good = true;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const GptIndexOptions options{.sequence_length = 8, .seed = seed};
      all.push_back(shared_gpt_index("", counted_lengths(lengths, reads), options, false, &store));
      good = good && same(*all.back(), build_gpt_index(lengths, 0, options));
    }
    return good && same(*all[0], build_gpt_index(lengths, 0, {.sequence_length = 8, .seed = 0}));
  });
  EXPECT_EQ(lines_in(reads), 5 * (4 + 1));
}

TEST(IndexCache, AnotherProcessBuildsWhenTheBuilderIsKilled) {
  const MachineProcesses machine;
  const std::vector<int32_t> lengths(20'000, 33);
  const pid_t builder = ::fork();
  if (builder == 0) {
    SequenceLengths dying = lengths_in(lengths, 0);
    dying.read = [calls = 0, all = dying.read](int64_t begin, std::span<int32_t> out) mutable {
      if (++calls == 2) ::kill(::getpid(), SIGKILL); // it holds the lock and builds
      all(begin, out);
    };
    shared_gpt_index("", dying, kManySamples, false,
                     MachineStore::open(machine.store->address()).get());
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(builder, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(machine.left_nothing());
  const auto index =
      shared_gpt_index("", lengths_in(lengths, 0), kManySamples, false, machine.store.get());
  EXPECT_TRUE(same(*index, build_gpt_index(lengths, 0, kManySamples)));
  EXPECT_THAT(mapping_of(index->documents.begin()), testing::StartsWith("r--s "));
}

TEST(IndexCache, WithoutRoomEachProcessBuildsItAndOneSaysSo) {
  const MachineProcesses machine;
  const TemporaryFolder notes;
  const std::vector<int32_t> lengths(20'000, 33);
  const GptIndex built = build_gpt_index(lengths, 0, kManySamples);
  const std::string said = (notes.path() / "log").string(),
                    reads = (notes.path() / "reads").string();
  machine.run(4, [&](MachineStore& store) {
    const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    log::set_output(std::fopen(said.c_str(), "a"), false);
    GptIndexOptions other = kManySamples;
    other.seed = 4;
    const auto index =
        shared_gpt_index("", counted_lengths(lengths, reads), kManySamples, false, &store);
    const auto more = shared_gpt_index("", counted_lengths(lengths, reads), other, false, &store);
    return same(*index, built) && same(*more, build_gpt_index(lengths, 0, other)) &&
           mapping_of(index->documents.begin()).find(machine.folder.string()) == std::string::npos;
  });
  EXPECT_EQ(lines_in(reads), 4 * 2 * 2);
  const std::string text = content_of(said);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text; // a sentence and its remedy
  EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("warning: the sample order of the corpus "
                                                      "takes "),
                                   testing::HasSubstr(machine.folder.string() + ": File too large"),
                                   testing::HasSubstr("dataset.data_cache_path=FOLDER")));
}

TEST(IndexCache, WhatCannotBeBuiltIsAnErrorOfEveryProcess) {
  const MachineProcesses machine;
  const std::vector<int32_t> lengths(40, 0);
  machine.run(4, [&](MachineStore& store) {
    return error_of<ConfigError>([&] {
             shared_gpt_index("", lengths_in(lengths, 0), {.sequence_length = 8}, false, &store);
           }).find("the corpus has 0 tokens") != std::string::npos;
  });
  EXPECT_TRUE(machine.left_nothing());
  const std::vector<int32_t> good(40, 9); // nobody holds the lock
  EXPECT_NE(
      shared_gpt_index("", lengths_in(good, 0), {.sequence_length = 8}, false, machine.store.get()),
      nullptr);
}

TEST(IndexCache, ThreadsOfAProcessShareTheObjectOfAStore) {
  const MachineProcesses machine;
  const TemporaryFolder notes;
  const std::string reads = (notes.path() / "reads").string();
  const std::vector<int32_t> lengths(5000, 33);
  std::vector<std::shared_ptr<const GptIndex>> held(12);
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < held.size(); ++i)
    ranks.emplace_back([&, i] {
      held[i] =
          shared_gpt_index("", counted_lengths(lengths, reads),
                           {.sequence_length = 16, .seed = i % 2}, false, machine.store.get());
    });
  for (std::thread& rank : ranks) rank.join();
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(held[i], held[i % 2]);
    EXPECT_TRUE(
        same(*held[i], build_gpt_index(lengths, 0, {.sequence_length = 16, .seed = i % 2})));
  }
  EXPECT_EQ(lines_in(reads), 12 + 2);
}

TEST(IndexCache, AReaderUsesAFileAndWritesNone) {
  const TemporaryFolder folder;
  const std::filesystem::path cache = folder.path() / "cache";
  const std::vector<int32_t> lengths(5000, 33);
  const GptIndexOptions options{.sequence_length = 16};
  const auto get = [&](bool read_only) {
    return shared_gpt_index(cache, lengths_in(lengths, 0), options, read_only);
  };
  const GptIndex built = build_gpt_index(lengths, 0, options);
  EXPECT_TRUE(same(*get(/*read_only=*/true), built));
  EXPECT_FALSE(std::filesystem::exists(cache));
  get(/*read_only=*/false);
  EXPECT_FALSE(std::filesystem::is_empty(cache));
  EXPECT_TRUE(same(*get(/*read_only=*/true), built));
}

TEST(IndexCache, AFileOfTheFormatBeforeIsReplaced) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths(40, 9);
  const GptIndexOptions options{.sequence_length = 8};
  const GptIndex built = cached_gpt_index(folder.path(), lengths, 0, options);
  const std::filesystem::path file = std::filesystem::directory_iterator(folder.path())->path();
  const std::string good = content_of(file);
  std::string old = good;
  old[7] = '2';
  folder.write(file.filename().string(), old);
  EXPECT_TRUE(same(cached_gpt_index(folder.path(), lengths, 0, options), built));
  EXPECT_EQ(content_of(file), good);
}

TEST(IndexCache, AFolderThatCannotBeWrittenIsNoError) {
  const std::vector<int32_t> lengths(40, 9);
  const GptIndexOptions options{.sequence_length = 8};
  EXPECT_TRUE(same(cached_gpt_index("/proc/none", lengths, 0, options),
                   build_gpt_index(lengths, 0, options)));
}

} // namespace
} // namespace pentatron::data
