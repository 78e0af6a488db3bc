// What parity files bring back, and what they cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "tests/checkpoint/sharded/example.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

class Parity : public testing::Test {
 protected:
  /// Of `ranks` ranks with files of different sizes, some of more than one chunk.
  fs::path save(int64_t ranks, int64_t parity, int64_t scale = 1) {
    const TensorInfos tensors = test::example_tensors(scale);
    CheckpointWriter writer(dir.path(), 4);
    std::vector<std::string> descriptions;
    for (const char* kind : {"model", "optimizer"}) {
      for (int64_t rank = 0; rank < ranks; ++rank)
        descriptions.push_back(
            test::write_shard(writer.path(), kind, tensors, 4, rank, ranks, kDefaultChunk));
    }
    return writer.commit(descriptions, {.state = {{"consumed_samples", 32}},
                                        .attachments = test::example_attachments(),
                                        .parity = parity});
  }
  static void flip(const fs::path& file, size_t at) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(static_cast<std::streamoff>(at));
    const int byte = out.get();
    out.seekp(static_cast<std::streamoff>(at));
    out.put(static_cast<char>(byte ^ 16));
  }
  TemporaryFolder dir;
};

TEST_F(Parity, ManyWritersMakeTheFilesOfOne) {
  const fs::path folder = save(3, 2, /*scale=*/1000);
  const Manifest whole = read_manifest(folder);
  std::map<std::string, std::string> bytes;
  for (const auto& [name, parity] : whole.parity) bytes[name] = content_of(folder / name);
  ASSERT_EQ(bytes.size(), 2u);
  EXPECT_GT(bytes.begin()->second.size(), 2 * kDefaultChunk) << "of several blocks";
  for (const int64_t writers : {1, 2, 3, 64}) { // also more than blocks
    for (const auto& [name, content] : bytes) fs::remove(folder / name);
    Manifest manifest = whole;
    manifest.parity.clear();
    std::vector<std::string> parts(static_cast<size_t>(writers));
    int told = 0;
    for (int64_t part = writers - 1; part >= 0; --part) // in any order
      parts[static_cast<size_t>(part)] =
          write_parity_part(folder, manifest, 2, part, writers, [&] { ++told; });
    EXPECT_GT(told, 0);
    add_parity(folder, manifest, 2, parts);
    EXPECT_EQ(to_text(manifest), to_text(whole)) << writers;
    for (const auto& [name, content] : bytes) EXPECT_EQ(content_of(folder / name), content) << name;
    parts.pop_back();
    Manifest lacking = whole;
    lacking.parity.clear();
    EXPECT_THROW(add_parity(folder, lacking, 2, parts), CheckpointError);
  }
}

TEST_F(Parity, OneFileIsTheExclusiveOrOfTheShards) {
  const fs::path folder = save(3, 1);
  std::string sum;
  for (const auto& [name, info] : read_manifest(folder).files) {
    const std::string bytes = content_of(folder / name);
    sum.resize(std::max(sum.size(), bytes.size()), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) sum[i] = static_cast<char>(sum[i] ^ bytes[i]);
  }
  EXPECT_EQ(content_of(folder / "parity_00000_000.parity"), sum);
  EXPECT_THAT(verify(folder).faults, IsEmpty());
}

TEST_F(Parity, AnySoManyFilesAreRebuilt) {
  std::mt19937_64 random(1);
  for (const int64_t parity : {1, 2, 3, 5}) {
    const fs::path folder = save(4, parity);
    std::vector<std::string> names;
    const Manifest manifest = read_manifest(folder);
    for (const auto& [name, info] : manifest.files) names.push_back(name);
    for (const auto& [name, info] : manifest.parity) names.push_back(name);
    ASSERT_EQ(names.size(), static_cast<size_t>(8 + parity));
    std::map<std::string, std::string> before;
    for (const std::string& name : names) before[name] = content_of(folder / name);
    for (int trial = 0; trial < 20; ++trial) {
      std::shuffle(names.begin(), names.end(), random);
      const std::vector<std::string> hit(names.begin(), names.begin() + parity);
      for (const std::string& name : hit) {
        switch (random() % 3) {
        case 0:
          fs::remove(folder / name);
          break;
        case 1:
          fs::resize_file(folder / name, before[name].size() / 2);
          break;
        default:
          flip(folder / name, random() % before[name].size());
        }
      }
      EXPECT_FALSE(verify(folder).ok());
      EXPECT_TRUE(verify(folder).repairable);
      const RepairReport report = repair_checkpoint(folder);
      EXPECT_THAT(report.lost, IsEmpty());
      EXPECT_THAT(report.repaired, UnorderedElementsAreArray(hit));
      for (const std::string& name : names) ASSERT_EQ(content_of(folder / name), before[name]);
    }
    EXPECT_THAT(repair_checkpoint(folder).repaired, IsEmpty());
    EXPECT_THAT(names_in(dir.path()), ElementsAre("latest", "lock", "step_00000004"));
  }
}

TEST_F(Parity, FilesOfManyChunksAreRebuilt) {
  const fs::path folder = save(2, 2, /*scale=*/2500); // up to 6 MB
  const std::string first = shard_name("model", 0, 2), second = shard_name("optimizer", 1, 2);
  ASSERT_GT(fs::file_size(folder / first), 2 * kDefaultChunk);
  const std::string a = content_of(folder / first), b = content_of(folder / second);
  fs::remove(folder / first);
  flip(folder / second, 1'500'000);
  EXPECT_THAT(repair_checkpoint(folder).repaired, ElementsAre(first, second));
  EXPECT_TRUE(content_of(folder / first) == a);
  EXPECT_TRUE(content_of(folder / second) == b);
}

TEST_F(Parity, GroupsOfManyShardsAreRebuiltEach) {
  const fs::path folder = save(140, 1); // 280 files: three groups
  EXPECT_EQ(read_manifest(folder).parity.size(), 3u);
  const std::vector<std::string> hit = {shard_name("model", 5, 140), shard_name("model", 139, 140),
                                        shard_name("optimizer", 139, 140)};
  for (const std::string& name : hit) fs::remove(folder / name);
  EXPECT_THAT(repair_checkpoint(folder).repaired, UnorderedElementsAreArray(hit));
  EXPECT_THAT(verify(folder).faults, IsEmpty());
}

TEST_F(Parity, WhatIsBeyondRepairIsToldAndLeftAlone) {
  const fs::path folder = save(3, 1);
  const std::string a = shard_name("model", 0, 3), b = shard_name("model", 2, 3);
  flip(folder / a, 900);
  flip(folder / b, 900);
  EXPECT_FALSE(verify(folder).repairable);
  const std::string damaged = content_of(folder / a);
  const RepairReport report = repair_checkpoint(folder);
  EXPECT_THAT(report.repaired, IsEmpty());
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_THAT(report.lost[0],
              HasSubstr(fmt::format("{}, {}: 2 files are corrupted, but only 1", a, b)));
  EXPECT_EQ(content_of(folder / a), damaged);
  for (const char* where : {".", "spare_00"}) fs::remove(folder / where / "notes.txt");
  EXPECT_THAT(repair_checkpoint(folder).lost.front(),
              AllOf(HasSubstr("notes.txt"), HasSubstr("no copy of it is intact")));
  for (const char* where : {".", "spare_00"}) fs::resize_file(folder / where / kManifestName, 100);
  EXPECT_FALSE(verify(folder).repairable);
  EXPECT_THAT(message_of([&] { repair_checkpoint(folder); }),
              HasSubstr("manifest.json is corrupted"));
}

TEST_F(Parity, SmallFilesArePutBackFromCopies) {
  const fs::path folder = save(2, 2);
  const std::vector<std::string> names = {"manifest.json", "notes.txt", "tokenizer/tokenizer.json"},
                                 places = {"", "spare_00/", "spare_01/"};
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::string> hit;
    for (const std::string& name : names) {
      const size_t good = random() % places.size(); // one stays
      for (size_t place = 0; place < places.size(); ++place)
        if (place != good && random() % 2 == 0) hit.push_back(places[place] + name);
    }
    if (hit.empty()) continue;
    for (const std::string& name : hit) {
      const size_t size = fs::file_size(folder / name);
      switch (random() % 3) {
      case 0:
        fs::remove(folder / name);
        break;
      case 1:
        fs::resize_file(folder / name, size / 2);
        break;
      default:
        flip(folder / name, random() % size);
      }
    }
    EXPECT_FALSE(verify(folder).ok());
    EXPECT_TRUE(verify(folder).repairable);
    const RepairReport report = repair_checkpoint(folder);
    EXPECT_THAT(report.lost, IsEmpty());
    EXPECT_THAT(report.repaired, UnorderedElementsAreArray(hit));
    EXPECT_THAT(verify(folder).faults, IsEmpty());
    EXPECT_THAT(test::wrong_tensors(folder), IsEmpty());
    for (const std::string& name : names)
      for (const std::string& place : places)
        ASSERT_EQ(content_of(folder / (place + name)), content_of(folder / name));
  }
  // A lost folder comes back as long as another is there; without any it is one from before them.
  fs::remove_all(folder / "spare_01");
  EXPECT_EQ(repair_checkpoint(folder).repaired.size(), names.size());
  for (const char* spare : {"spare_00", "spare_01"}) fs::remove_all(folder / spare);
  EXPECT_THAT(verify(folder).faults, IsEmpty());
  EXPECT_THAT(repair_checkpoint(folder).repaired, IsEmpty());
}

TEST_F(Parity, LoadingAdvisesToRepair) {
  const fs::path folder = save(2, 1);
  fs::remove(folder / shard_name("model", 1, 2));
  for (const fs::path& where : {folder, dir.path()})
    EXPECT_THAT(message_of([&] { newest_checkpoint(where); }),
                HasSubstr("try: pentatron checkpoint repair " + folder.string()));
  repair_checkpoint(folder);
  EXPECT_EQ(newest_checkpoint(dir.path())->folder, folder);
}

TEST_F(Parity, WhatCannotBeRepairedLeadsToAnIntactCheckpoint) {
  const fs::path folder = save(2, 1), earlier = dir.path() / "step_00000003",
                 later = dir.path() / "step_00000005";
  for (const fs::path& other : {earlier, later, dir.path() / "step_00000002"})
    fs::copy(folder, other, fs::copy_options::recursive);
  for (const int rank : {0, 1}) fs::remove(folder / shard_name("model", rank, 2));
  const auto advice = [&] { return message_of([&] { newest_checkpoint(folder); }); };
  EXPECT_THAT(advice(), HasSubstr("\n  try: " + earlier.string() + ", which is intact"));
  fs::remove(earlier / kManifestName);
  fs::remove_all(earlier / "spare_00");
  fs::remove_all(dir.path() / "step_00000002");
  EXPECT_THAT(advice(), HasSubstr("\n  try: " + later.string() + ", which is intact"));
  flip(later / shard_name("model", 0, 2), 900);
  EXPECT_THAT(advice(), Not(HasSubstr("try:")));
  // A file of others is none that a repair removes.
  std::ofstream(later / "other.safetensors") << "x";
  EXPECT_FALSE(verify(later).repairable);
}

TEST_F(Parity, WhatIsCalledIntactWasRead) {
  const fs::path folder = save(2, 1), earlier = dir.path() / "step_00000003",
                 first = dir.path() / "step_00000002";
  for (const fs::path& other : {earlier, first})
    fs::copy(folder, other, fs::copy_options::recursive);
  for (const int rank : {0, 1}) fs::remove(folder / shard_name("model", rank, 2));
  flip(earlier / shard_name("model", 0, 2), 900);
  for (const VerifyScope scope : {VerifyScope::kStructure, VerifyScope::kWeightsStructure})
    EXPECT_THAT(
        message_of([&] { newest_checkpoint(folder, {.scope = scope, .key = "checkpoint.load="}); }),
        HasSubstr("\n  try: checkpoint.load=" + first.string() + ", which is intact"));
}

TEST_F(Parity, ARepairIsOnlySuggestedIfItCanSucceed) {
  const fs::path folder = save(2, 1), earlier = dir.path() / "step_00000003";
  fs::copy(folder, earlier, fs::copy_options::recursive);
  flip(folder / shard_name("model", 0, 2), 900);
  const auto told = [&] {
    return newest_checkpoint(dir.path(), {.scope = VerifyScope::kStructure,
                                          .damaged = {{folder, "a rank found it"}}})
        ->passed_over;
  };
  EXPECT_THAT(told(), HasSubstr("a rank found it\n  try: pentatron checkpoint repair"));
  flip(folder / shard_name("model", 1, 2), 900);
  EXPECT_THAT(told(), Not(HasSubstr("try:")));
  // What a scope leaves out may be lost, too.
  for (const VerifyScope scope : {VerifyScope::kWeights, VerifyScope::kWeightsStructure}) {
    fs::resize_file(earlier / shard_name("model", 0, 2), 900);
    EXPECT_TRUE(verify(earlier, scope).repairable);
    const std::string optimizer = shard_name("optimizer", 0, 2);
    fs::rename(earlier / optimizer, dir.path() / "away");
    EXPECT_FALSE(verify(earlier, scope).repairable);
    fs::rename(dir.path() / "away", earlier / optimizer);
    fs::rename(earlier / "parity_00000_000.parity", dir.path() / "away");
    EXPECT_FALSE(verify(earlier, scope).repairable);
    fs::rename(dir.path() / "away", earlier / "parity_00000_000.parity");
  }
}

TEST_F(Parity, ManyFaultsOfOneFileDoNotHideThoseOfOthers) {
  const fs::path folder =
      test::write_example(dir.path(), 4, 1, test::example_tensors(/*scale=*/2500));
  const std::string a = shard_name("model", 0, 1), b = shard_name("optimizer", 0, 1);
  const size_t header = 4096, size = fs::file_size(folder / a);
  {
    std::fstream out(folder / a, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(header));
    out << std::string(size - header, 'x');
  }
  flip(folder / b, fs::file_size(folder / b) - 1);
  const VerifyReport report = verify(folder);
  EXPECT_EQ(report.faults.size(), 1000u);
  EXPECT_TRUE(report.first_faults.contains(a));
  EXPECT_TRUE(report.first_faults.contains(b));
  EXPECT_FALSE(report.repairable) << "two shards, one parity file";
}

TEST_F(Parity, EveryLieOfTheManifestIsRefused) {
  const fs::path folder = save(2, 2);
  const auto error = [&](const std::function<void(ParityFile&)>& change) {
    Manifest manifest = read_manifest(folder);
    change(manifest.parity.begin()->second);
    return message_of([&] { parse_manifest(to_text(manifest), "manifest"); });
  };
  EXPECT_EQ(error([](ParityFile&) {}), "");
  EXPECT_THAT(error([](ParityFile& p) { p.row = 16; }), HasSubstr("is row 16 of"));
  EXPECT_THAT(error([](ParityFile& p) { p.row = 1; }), HasSubstr("repeats a row"));
  EXPECT_THAT(error([](ParityFile& p) { p.row = 5; }), HasSubstr("a row of the parity"));
  EXPECT_THAT(error([](ParityFile& p) { p.shards.clear(); }), HasSubstr("of 0 shards"));
  EXPECT_THAT(error([](ParityFile& p) { p.shards[0] = "x.safetensors"; }),
              HasSubstr("which is not a shard"));
  EXPECT_THAT(error([](ParityFile& p) { p.shards.pop_back(); }), HasSubstr("in another group"));
  EXPECT_THAT(error([](ParityFile& p) { p.file.bytes -= 1; }), HasSubstr("its size differs"));
  EXPECT_THAT(error([](ParityFile& p) { p.file.crcs.clear(); }), HasSubstr("checksums for"));
  EXPECT_THAT(message_of([&] { save(1, 17); }),
              HasSubstr("17 parity files are out of range: 0 to 16"));
}

} // namespace
} // namespace pentatron::checkpoint
