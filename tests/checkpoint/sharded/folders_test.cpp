// Which checkpoint is the newest good one, and which ones may go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/checkpoint/sharded/example.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::write_example;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

const TensorInfos kTiny = {{"w", {SafeDtype::kF32, {4}}}};

void damage(const fs::path& folder) {
  std::fstream file(folder / shard_name("model", 0, 1),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  const int last = file.peek();
  file.put(static_cast<char>(last ^ 4));
}

class Folders : public testing::Test {
 protected:
  void save(int64_t iteration, Json state = Json::object()) {
    write_example(dir.path(), iteration, 1, kTiny, std::move(state));
  }
  std::string newest() { return newest_checkpoint(dir.path())->folder.filename().string(); }
  std::vector<std::string> steps() {
    std::vector<std::string> names;
    for (const CheckpointFolder& f : checkpoints_in(dir.path()))
      names.push_back(std::to_string(f.iteration));
    return names;
  }
  void point_latest_at(const std::string& text) {
    std::ofstream(dir.path() / "latest", std::ios::trunc) << text;
  }
  TemporaryFolder dir;
};

TEST_F(Folders, NamesAreExact) {
  EXPECT_EQ(step_name(100), "step_00000100");
  EXPECT_EQ(iteration_of("step_00000100"), 100);
  EXPECT_EQ(iteration_of("step_1234567890"), 1234567890);
  EXPECT_EQ(iteration_of("iter_0000100"), std::nullopt);
  for (const char* name : {"step_100", "step_00000100x", "step_-0000001", "step_000000100",
                           "step_00000100.tmp-1-1", "steps", "", "step_99999999999999999999"})
    EXPECT_FALSE(iteration_of(name)) << name;
}

TEST_F(Folders, NothingWasSaved) {
  EXPECT_FALSE(newest_checkpoint(dir.path()));
  EXPECT_FALSE(newest_checkpoint(dir.path() / "missing"));
}

TEST_F(Folders, TheNewestGoodOneIsFoundAndWhatWasPassedOverIsTold) {
  for (const int64_t i : {10, 20, 30}) save(i);
  EXPECT_EQ(newest(), "step_00000030");
  EXPECT_EQ(newest_checkpoint(dir.path() / "step_00000010")->folder, dir.path() / "step_00000010");
  damage(dir.path() / "step_00000030");
  const auto found = newest_checkpoint(dir.path());
  EXPECT_EQ(found->folder, dir.path() / "step_00000020");
  EXPECT_THAT(
      found->passed_over,
      HasSubstr(
          "step_00000030: model_00000_of_00001.safetensors is corrupted: the checksum of chunk 0"));
  EXPECT_THAT(message_of([&] { newest_checkpoint(dir.path() / "step_00000030"); }),
              HasSubstr("is corrupted"));
  fs::remove_all(dir.path() / "step_00000030");
  EXPECT_EQ(newest(), "step_00000020") << "latest names a missing folder";
  damage(dir.path() / "step_00000020");
  damage(dir.path() / "step_00000010");
  EXPECT_THAT(message_of([&] { newest_checkpoint(dir.path()); }),
              HasSubstr("no intact checkpoint"));
}

TEST_F(Folders, ByTheirStructureShardsAreNotReadAndKnownDamageIsPassedOver) {
  for (const int64_t i : {10, 20, 30}) save(i);
  const auto find = [&](KnownDamage damaged) {
    return newest_checkpoint(dir.path(),
                             {.scope = VerifyScope::kStructure, .damaged = std::move(damaged)});
  };
  const fs::path newest = dir.path() / "step_00000030", before = dir.path() / "step_00000020";
  damage(newest);
  EXPECT_EQ(find({})->folder, newest) << "who reads it will find that";
  const auto found = find({{newest, "rank 3: reading a: chunk 0"}});
  EXPECT_EQ(found->folder, before);
  EXPECT_THAT(found->passed_over, AllOf(HasSubstr("step_00000030: rank 3: reading a: chunk 0"),
                                        HasSubstr("try: pentatron checkpoint repair")));
  const std::string told = passed_over_text(*found);
  EXPECT_THAT(told, AllOf(HasSubstr("chunk 0; using " + before.string() + " instead\n  try: "),
                          EndsWith(newest.string())));
  const auto third = find({{newest, "x"}, {before, "y"}});
  EXPECT_THAT(passed_over_text(*third),
              AllOf(HasSubstr("step_00000030: x; step_00000020: y; using "),
                    EndsWith("try: pentatron checkpoint repair " + newest.string())))
      << "one sentence and one remedy";
  fs::resize_file(before / shard_name("model", 0, 1), 5);
  EXPECT_EQ(find({{newest, "x"}})->folder.filename(), "step_00000010");
  fs::remove(dir.path() / "step_00000010" / shard_name("model", 0, 1));
  EXPECT_THAT(message_of([&] {
                find({{newest, "x"}});
              }),
              AllOf(HasSubstr("no intact checkpoint: step_00000030: x"),
                    HasSubstr("step_00000020: "), HasSubstr("step_00000010: ")));
  EXPECT_THAT(
      message_of([&] {
        newest_checkpoint(newest, {.scope = VerifyScope::kStructure, .damaged = {{newest, "x"}}});
      }),
      HasSubstr("step_00000030 is corrupted: x"));
}

TEST_F(Folders, ANamedFolderOfKnownDamageIsToBeRepaired) {
  save(10);
  const fs::path only = dir.path() / "step_00000010";
  damage(only);
  for (const VerifyScope scope : {VerifyScope::kStructure, VerifyScope::kWeightsStructure})
    EXPECT_THAT(message_of([&] {
                  newest_checkpoint(only, {.scope = scope, .damaged = {{only, "x"}}});
                }),
                HasSubstr("is corrupted: x\n  try: pentatron checkpoint repair"));
}

TEST_F(Folders, ForWeightsAloneTheOptimizersFilesDoNotMatter) {
  for (const int64_t i : {10, 20}) write_example(dir.path(), i, 1); // with optimizer state
  const fs::path newest = dir.path() / "step_00000020";
  fs::remove(newest / shard_name("optimizer", 0, 1));
  fs::remove_all(newest / "spare_00");
  fs::create_directories(newest / "spare_00");
  EXPECT_EQ(newest_checkpoint(dir.path())->folder.filename(), "step_00000010");
  EXPECT_EQ(newest_checkpoint(dir.path(), VerifyScope::kWeights)->folder, newest);
  damage(newest);
  EXPECT_EQ(newest_checkpoint(dir.path(), VerifyScope::kWeights)->folder.filename(),
            "step_00000010");
  // The content is left to who reads it; sizes are not.
  EXPECT_EQ(newest_checkpoint(dir.path(), VerifyScope::kWeightsStructure)->folder, newest);
  fs::resize_file(newest / shard_name("model", 0, 1), 5);
  EXPECT_EQ(newest_checkpoint(dir.path(), VerifyScope::kWeightsStructure)->folder.filename(),
            "step_00000010");
}

TEST_F(Folders, OfWhatIsKnownToBeDamagedInItsWeightsNothingIsReadAgain) {
  for (const int64_t i : {10, 20}) write_example(dir.path(), i, 1);
  const fs::path newest = dir.path() / "step_00000020", before = dir.path() / "step_00000010";
  damage(newest);
  const auto look = [&](KnownDamage damaged, VerifyScope scope) {
    std::atomic<int> calls = 0; // by any thread
    const auto found = newest_checkpoint(
        dir.path(),
        {.scope = scope, .damaged = std::move(damaged), .progress = [&calls] { ++calls; }});
    EXPECT_EQ(found->folder, before);
    EXPECT_THAT(found->passed_over, StartsWith("step_00000020: x"));
    return calls.load();
  };
  const int structure = look({{newest, "x"}}, VerifyScope::kWeightsStructure);
  EXPECT_LT(structure, look({{newest, "x"}}, VerifyScope::kStructure)) << "which tells a remedy";
  damage(before);
  EXPECT_THAT(message_of([&] {
                newest_checkpoint(dir.path(), {.scope = VerifyScope::kWeightsStructure,
                                               .damaged = {{newest, "x"}, {before, "y"}}});
              }),
              AllOf(HasSubstr("no intact checkpoint: step_00000020: x; step_00000010: y"),
                    EndsWith("try: pentatron checkpoint repair " + newest.string())));
}

TEST_F(Folders, LaterOnesThanLatestBelongToAnotherRun) {
  for (const int64_t i : {10, 20, 15}) save(i);
  EXPECT_EQ(newest(), "step_00000015");
  damage(dir.path() / "step_00000015");
  EXPECT_EQ(newest(), "step_00000010");
  for (const char* text : {"", "step_20", "../step_00000020", "\xff"}) {
    point_latest_at(text);
    EXPECT_EQ(newest(), "step_00000020") << text;
  }
  fs::remove(dir.path() / "latest");
  EXPECT_EQ(newest(), "step_00000020");
}

TEST_F(Folders, WhatKilledProcessesLeftIsRemovedAndNothingElse) {
  for (const char* name :
       {"step_00000005.tmp-12-0", "step_00000006.tmp-1-old", "step_00000006.tmp-9-1",
        "notes.tmp-1-1", "step_x.tmp-1", "step_00000007.bak", "mine"})
    fs::create_directories(dir.path() / name / "inner");
  std::ofstream(dir.path() / "latest.tmp-12-3") << "step";
  save(10);
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre("latest", "lock", "mine", "notes.tmp-1-1", "step_00000007.bak",
                                   "step_00000010", "step_x.tmp-1"));
}

TEST_F(Folders, KeepsTheLastAndEveryNthAndTheBest) {
  const double losses[] = {9, 3, 8, 1, 7, 2, 6, 5, 4};
  for (int64_t i = 0; i < 9; ++i) save(10 * i + 10, {{"valid_loss", losses[i]}});
  const Retention rule{.keep_last = 2, .keep_every = 50, .keep_best = 2, .metric = "valid_loss"};
  EXPECT_THAT(prune_checkpoints(dir.path(), rule, /*only_report=*/true).removed,
              ElementsAre("step_00000070", "step_00000030", "step_00000020", "step_00000010"));
  EXPECT_EQ(steps().size(), 9u);
  prune_checkpoints(dir.path(), rule);
  EXPECT_THAT(steps(), ElementsAre("90", "80", "60", "50", "40"));
  prune_checkpoints(
      dir.path(),
      {.keep_last = 1, .keep_best = 1, .metric = "valid_loss", .lower_is_better = false});
  EXPECT_THAT(steps(), ElementsAre("90", "50"));
  prune_checkpoints(dir.path(), {});
  EXPECT_THAT(steps(), ElementsAre("90", "50"));
}

TEST_F(Folders, TheOneThatLatestNamesStaysAndLaterAndForeignFoldersToo) {
  for (const int64_t i : {10, 20, 30, 40}) save(i);
  fs::create_directory(dir.path() / "mine");
  point_latest_at("step_00000020\n");
  const PruneReport report = prune_checkpoints(dir.path(), {.keep_last = 1});
  EXPECT_THAT(report.removed, ElementsAre("step_00000010"));
  EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("latest", "lock", "mine", "step_00000020",
                                                         "step_00000030", "step_00000040"));
}

TEST_F(Folders, FilesOfTheUserStayWhereTheyAre) {
  for (const int64_t i : {10, 20, 30}) save(i);
  const fs::path mine = dir.path() / "step_00000010/plots/mine.txt";
  fs::create_directory(mine.parent_path());
  std::ofstream(mine) << "mine";
  for (const bool only_report : {true, false}) {
    const PruneReport report = prune_checkpoints(dir.path(), {.keep_last = 1}, only_report);
    EXPECT_THAT(report.removed, ElementsAre("step_00000020", "step_00000010"));
    EXPECT_THAT(report.foreign, ElementsAre("step_00000010/plots/mine.txt"));
  }
  EXPECT_THAT(steps(), ElementsAre("30", "10"));
  EXPECT_THAT(names_in(dir.path() / "step_00000010"), ElementsAre("plots"));
  EXPECT_TRUE(fs::exists(mine));
  EXPECT_EQ(newest(), "step_00000030");
  const PruneReport again = prune_checkpoints(dir.path(), {.keep_last = 1});
  EXPECT_THAT(again.removed, IsEmpty());
  EXPECT_THAT(again.damaged, IsEmpty()) << "no checkpoint any more";
}

TEST_F(Folders, AKilledRemovalOfACheckpointBesideFilesOfTheUserIsFinished) {
  for (const int64_t i : {10, 20, 30}) save(i);
  const fs::path half = dir.path() / "step_00000010",
                 aside = dir.path() / "step_00000010.tmp-7-old";
  std::ofstream(half / "mine.txt") << "mine";
  fs::create_directory(aside);
  fs::rename(half / kManifestName, aside / kManifestName); // what goes first; killed here
  ASSERT_GT(names_in(half).size(), 1u);
  const PruneReport report = prune_checkpoints(dir.path(), {.keep_last = 2});
  EXPECT_THAT(report.damaged, IsEmpty());
  EXPECT_THAT(names_in(half), ElementsAre("mine.txt"));
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_EQ(newest(), "step_00000030");
}

TEST_F(Folders, AKilledRemovalOfAWholeFolderIsFinished) {
  for (const int64_t i : {10, 20}) save(i);
  const fs::path aside = dir.path() / "step_00000010.tmp-7-old";
  fs::rename(dir.path() / "step_00000010", aside); // killed behind it
  save(30);
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_THAT(steps(), ElementsAre("30", "20"));
}

TEST_F(Folders, ACheckpointSavedAgainIsNoRestOfAKilledRemoval) {
  for (const int64_t i : {10, 20}) save(i);
  const fs::path aside = dir.path() / "step_00000010.tmp-7-old";
  fs::copy(dir.path() / "step_00000010", aside);
  const auto before = names_in(dir.path() / "step_00000010");
  const PruneReport report = prune_checkpoints(dir.path(), {.keep_last = 2});
  EXPECT_THAT(report.kept, ElementsAre("step_00000020", "step_00000010"));
  EXPECT_THAT(names_in(dir.path() / "step_00000010"), testing::UnorderedElementsAreArray(before));
  EXPECT_FALSE(fs::exists(aside));
}

TEST_F(Folders, WhereOnlyFilesOfTheUserAreLeftIsNoCheckpoint) {
  for (const int64_t i : {10, 20}) save(i);
  const fs::path left = dir.path() / "step_00000030";
  fs::create_directory(left);
  std::ofstream(left / "mine.txt") << "mine";
  fs::remove(dir.path() / "latest");
  EXPECT_EQ(saved_in(dir.path()).front().path.filename(), "step_00000020");
  EXPECT_THAT(newest_checkpoint(dir.path())->passed_over, IsEmpty());
  for (const int64_t i : {10, 20}) fs::remove_all(dir.path() / step_name(i));
  EXPECT_FALSE(newest_checkpoint(dir.path()));
}

TEST_F(Folders, AnInterruptedRemovalIsFinishedByTheNext) {
  for (const int64_t i : {10, 20}) save(i);
  const fs::path folder = dir.path() / "step_00000010";
  std::ofstream(folder / "mine.txt") << "mine";
  const auto killed = [] { throw std::runtime_error("killed"); };
  EXPECT_THROW(prune_checkpoints(dir.path(), {.keep_last = 1}, /*only_report=*/false, killed),
               std::runtime_error);
  EXPECT_THAT(names_in(folder), ElementsAre("mine.txt"));
  prune_checkpoints(dir.path(), {.keep_last = 1});
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre("latest", "lock", "step_00000010", "step_00000020"));
  EXPECT_THAT(names_in(folder), ElementsAre("mine.txt"));
}

TEST_F(Folders, DamagedOnesAreNeitherCountedNorRemoved) {
  for (const int64_t i : {10, 20, 30}) save(i);
  fs::remove(dir.path() / "step_00000030" / kManifestName);
  fs::resize_file(dir.path() / "step_00000020" / shard_name("model", 0, 1), 5);
  fs::remove(dir.path() / "step_00000010/notes.txt");
  save(40);
  const PruneReport report = prune_checkpoints(dir.path(), {.keep_last = 2});
  EXPECT_THAT(report.removed, IsEmpty());
  ASSERT_EQ(report.damaged.size(), 3u);
  EXPECT_THAT(report.damaged[1],
              HasSubstr("step_00000020: model_00000_of_00001.safetensors has 5"));
  EXPECT_THAT(steps(), ElementsAre("40", "30", "20", "10"));
}

} // namespace
} // namespace pentatron::checkpoint
