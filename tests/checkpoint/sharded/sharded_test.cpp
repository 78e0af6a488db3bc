// What was written by any number of ranks is read by any other, and looks like Safetensors to
// others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/sharded/compare.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "tests/checkpoint/sharded/copy_box.h"
#include "tests/checkpoint/sharded/example.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::copy_box;
using test::write_example;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AnyRanks : public testing::TestWithParam<int64_t> {};

TEST_P(AnyRanks, EveryBoxOfEveryTensorIsReadBack) {
  const TemporaryFolder dir;
  const fs::path folder = write_example(dir.path(), 7, GetParam());
  CheckpointReader reader(folder);
  EXPECT_EQ(reader.manifest().tensors, test::example_tensors());
  std::mt19937_64 random(1);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (const auto& [name, info] : test::example_tensors()) {
    const std::vector<std::byte> bytes = test::example_bytes(name, info, 7);
    EXPECT_EQ(reader.read(name), bytes) << name;
    for (int i = 0; i < 40 && numel(info.shape) > 0; ++i) {
      Box box;
      for (const int64_t extent : info.shape) {
        box.offset.push_back(below(extent));
        box.size.push_back(1 + below(extent - box.offset.back()));
      }
      const size_t element = size_of(info.dtype);
      std::vector<std::byte> expected(static_cast<size_t>(numel(box)) * element);
      copy_box(box, whole_box(info.shape), bytes, box, expected, element);
      std::vector<std::byte> got(expected.size());
      reader.read(name, box, got);
      ASSERT_EQ(got, expected) << name << to_text(box);
    }
  }
}

TEST_P(AnyRanks, VerifiesAndEqualsThatOfOneRank) {
  const TemporaryFolder one, many;
  CheckpointReader first(write_example(one.path(), 7, 1));
  CheckpointReader second(write_example(many.path(), 7, GetParam()));
  EXPECT_THAT(verify(second.folder()).faults, IsEmpty());
  EXPECT_TRUE(diff(first, second).same()) << to_text(diff(first, second));
}

INSTANTIATE_TEST_SUITE_P(Ranks, AnyRanks, testing::Values(1, 2, 3, 8, 29));

TEST(Container, OneRankWritesOrdinarySafetensors) {
  const TemporaryFolder dir;
  const fs::path folder = write_example(dir.path(), 3, 1);
  EXPECT_THAT(names_in(folder), ElementsAre("manifest.json", "model_00000_of_00001.safetensors",
                                            "notes.txt", "optimizer_00000_of_00001.safetensors",
                                            "parity_00000_000.parity", "spare_00", "tokenizer"));
  for (const char* kind : {"model", "optimizer"}) {
    const SafetensorsFile file(folder / shard_name(kind, 0, 1));
    for (const auto& [name, tensor] : file.tensors()) {
      const TensorInfo info = test::example_tensors().find(name)->second;
      EXPECT_EQ(tensor.shape, info.shape) << name;
      EXPECT_EQ(tensor.dtype, info.dtype) << name;
      EXPECT_EQ(std::vector(tensor.data.begin(), tensor.data.end()),
                test::example_bytes(name, info, 3));
    }
  }
}

TEST(Container, KeepsWhatTheCallerGave) {
  const TemporaryFolder dir;
  const Json state{{"loss", 0.1 + 0.2}, {"nested", {{"list", {1, 2}}}}, {"text", "ä\n\""}};
  write_example(dir.path(), 12, 2, test::example_tensors(), state);
  const Manifest manifest = read_manifest(dir.path() / "step_00000012");
  Json expected = state;
  expected["consumed_samples"] = 96;
  EXPECT_EQ(manifest.state, expected);
  EXPECT_EQ(manifest.iteration, 12);
  EXPECT_EQ(manifest.config_yaml, "seed: 1\n");
  EXPECT_EQ(manifest.tokenizer, "abc");
  EXPECT_EQ(inspect(manifest)["by_dtype"]["F64"]["elements"], 1);
  EXPECT_EQ(inspect(manifest)["tensors"]["nothing"]["pieces"], 1);
  EXPECT_EQ(inspect(manifest)["attachments"]["notes.txt"], 10);
}

TEST(Container, SmallFilesLieBesideTheTensors) {
  const TemporaryFolder a, b;
  CheckpointReader first(write_example(a.path(), 1, 1));
  const CheckpointReader reader(first.folder());
  EXPECT_EQ(reader.read_attachment("tokenizer/tokenizer.json"), "{\"model\": {}}\n");
  EXPECT_THAT(message_of([&] { reader.read_attachment("tokenizer/tokenizer.jsn"); }),
              HasSubstr("try: tokenizer/tokenizer.json"));
  const auto write = [&](const std::map<std::string, std::string>& files) {
    CheckpointWriter writer(b.path(), 1);
    const std::vector<std::string> shards = {
        test::write_shard(writer.path(), "model", test::example_tensors(), 1, 0, 1),
        test::write_shard(writer.path(), "optimizer", test::example_tensors(), 1, 0, 1)};
    return writer.commit(shards, {.state = {{"consumed_samples", 8}},
                                  .config_yaml = "seed: 1\n",
                                  .tokenizer = "abc",
                                  .attachments = files});
  };
  CheckpointReader second(write({{"notes.txt", "other"}, {"hf/config.json", ""}}));
  EXPECT_THAT(diff(first, second).attachments,
              ElementsAre("hf/config.json", "notes.txt", "tokenizer/tokenizer.json"));
  EXPECT_THAT(to_text(diff(first, second)), HasSubstr("hf/config.json differs\nnotes.txt differs"));
  EXPECT_THAT(message_of([&] {
                write({{"../notes.txt", "x"}});
              }),
              HasSubstr("is not a valid name"));
  EXPECT_THAT(message_of([&] {
                write({{"x", std::string((64 << 20) + 1, 'x')}});
              }),
              HasSubstr("does not fit into the checkpoint"));
  EXPECT_EQ(newest_checkpoint(b.path())->folder, second.folder()) << "as it was";
}

TEST(Container, ReadsOnlyTheChunksThatItNeeds) {
  const TemporaryFolder dir;
  const TensorInfos tensors = {{"w", {SafeDtype::kF32, {1024, 256}}}}; // 1 MiB
  CheckpointReader reader(write_example(dir.path(), 1, 1, tensors));
  std::vector<std::byte> row(1024);
  reader.read("w", {.offset = {500, 0}, .size = {1, 256}}, row);
  EXPECT_LE(reader.bytes_read(), 2 * kMinChunk);
  const uint64_t before = reader.bytes_read();
  reader.read("w", {.offset = {500, 0}, .size = {1, 256}}, row);
  EXPECT_LE(reader.bytes_read() - before, 1024u) << "a chunk is checked once";
}

TEST(Container, LongReadsAreSharedByTwoThreads) {
  const TemporaryFolder dir;
  const TensorInfos tensors = {{"v", {SafeDtype::kU8, {1234567}}}, // w begins inside a chunk
                               {"w", {SafeDtype::kU8, {3000, 8192}}}};
  const fs::path folder = write_example(dir.path(), 1, 1, tensors, {}, kDefaultChunk);
  EXPECT_THAT(test::wrong_tensors(folder), IsEmpty());
  CheckpointReader reader(folder);
  const Box rows{.offset = {7, 0}, .size = {2100, 8192}};
  const TensorInfo& w = tensors.find("w")->second;
  const std::vector<std::byte> bytes = test::example_bytes("w", w, 1);
  std::vector<std::byte> got(static_cast<size_t>(numel(rows))), expected(got.size());
  copy_box(rows, whole_box(w.shape), bytes, rows, expected, 1);
  reader.read("w", rows, got);
  EXPECT_TRUE(got == expected);
  EXPECT_LE(reader.bytes_read(), got.size() + 2 * kDefaultChunk);
  for (const std::streamoff at : {3'000'000, 9'000'000, 20'000'000}) {
    std::fstream file(folder / shard_name("model", 0, 1),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int old = file.get();
    file.seekp(at);
    file.put(static_cast<char>(old ^ 1));
    file.flush();
    CheckpointReader damaged(folder);
    EXPECT_THAT(message_of([&] { damaged.read("w"); }),
                HasSubstr(fmt::format("the checksum of chunk {} ", at / kDefaultChunk)));
    file.seekp(at);
    file.put(static_cast<char>(old));
  }
}

TEST_P(AnyRanks, MapsWhatLiesInARow) {
  const TemporaryFolder dir;
  const TensorInfos tensors = test::example_tensors(20);
  const fs::path folder = write_example(dir.path(), 3, GetParam(), tensors);
  CheckpointReader reader(folder);
  std::vector<CheckpointReader::Wanted> wanted;
  for (const auto& [name, info] : tensors) {
    const Box whole = whole_box(info.shape);
    wanted.push_back({name, whole});
    if (info.shape.empty() || info.shape[0] < 2) continue;
    for (const size_t d : {size_t{0}, info.shape.size() - 1}) { // rows, columns
      Box part = whole;
      part.offset[d] = info.shape[d] / 3;
      part.size[d] = info.shape[d] / 3;
      wanted.push_back({name, part});
    }
  }
  const auto mapped = reader.map(wanted);
  size_t there = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& [name, box] = wanted[i];
    std::vector<std::byte> expected(static_cast<size_t>(numel(box)) *
                                    size_of(reader.info(name).dtype));
    CheckpointReader(folder).read(name, box, expected);
    if (GetParam() == 1 && !expected.empty()) {
      const bool in_a_row =
          box.size.size() < 2 || box.size.back() == reader.info(name).shape.back();
      EXPECT_EQ(mapped[i].has_value(), in_a_row) << name << to_text(box);
    }
    if (!mapped[i]) continue;
    ++there;
    EXPECT_TRUE(std::ranges::equal(mapped[i]->bytes, expected)) << name << to_text(box);
    // Writing changes this memory alone.
    auto* const bytes = const_cast<std::byte*>(mapped[i]->bytes.data());
    bytes[0] = ~bytes[0];
    bytes[0] = ~bytes[0];
  }
  EXPECT_GT(there, 0u);
  const uint64_t before = reader.bytes_read();
  const auto again = reader.map(wanted);
  EXPECT_EQ(reader.bytes_read(), before) << "a chunk is checked once";
  for (const auto& one : again)
    if (one) std::memset(const_cast<std::byte*>(one->bytes.data()), 7, one->bytes.size());
  EXPECT_THAT(test::wrong_tensors(folder), IsEmpty());
}

TEST(Container, ReadsIntoStrides) {
  const TemporaryFolder dir;
  const TensorInfos tensors = {{"w", {SafeDtype::kF32, {6, 5}}}};
  CheckpointReader reader(write_example(dir.path(), 1, 2, tensors));
  std::vector<float> plain(30), transposed(30);
  reader.read("w", whole_box(std::vector<int64_t>{6, 5}), std::as_writable_bytes(std::span(plain)));
  reader.read("w", whole_box(std::vector<int64_t>{6, 5}),
              std::as_writable_bytes(std::span(transposed)), std::vector<int64_t>{1, 6});
  for (size_t r = 0; r < 6; ++r) {
    for (size_t c = 0; c < 5; ++c)
      EXPECT_EQ(std::memcmp(&transposed[c * 6 + r], &plain[r * 5 + c], sizeof(float)), 0);
  }
}

TEST(Container, ListsMissingAndUnexpectedTensors) {
  const TemporaryFolder dir;
  const TensorInfos tensors = {{"a", {SafeDtype::kF32, {2}}}, {"b.weight", {SafeDtype::kF32, {2}}}};
  CheckpointReader reader(write_example(dir.path(), 1, 1, tensors));
  const std::vector<std::string> wanted = {"a", "c"};
  EXPECT_THAT(reader.missing(wanted), ElementsAre("c"));
  EXPECT_THAT(reader.unexpected(wanted), ElementsAre("b.weight"));
  EXPECT_THAT(message_of([&] { reader.read("b.wieght"); }), HasSubstr("try: b.weight"));
}

TEST(Container, DiffTellsTensorsApartByValue) {
  const TemporaryFolder a, b;
  TensorInfos tensors = {{"same", {SafeDtype::kF32, {4}}}, {"x", {SafeDtype::kI32, {3, 2}}}};
  const auto write = [&](const fs::path& dir, std::vector<int32_t> x, const TensorInfos& extra) {
    CheckpointWriter writer(dir, 1);
    std::vector<EntrySpec> specs;
    TensorInfos all = tensors;
    all.insert(extra.begin(), extra.end());
    for (const auto& [name, info] : all)
      specs.push_back({.name = name,
                       .dtype = info.dtype,
                       .shape = info.shape,
                       .boxes = {whole_box(info.shape)}});
    ShardFileWriter file(writer.path(), "model.safetensors", specs);
    for (const auto& [name, info] : all)
      file.write(name, name == "x"
                           ? std::as_bytes(std::span(x))
                           : std::span<const std::byte>(test::example_bytes(name, info, 1)));
    const std::vector<std::string> descriptions = {file.finish()};
    return writer.commit(descriptions, {.state = {{"loss", x[0]}}});
  };
  CheckpointReader first(write(a.path(), {1, 2, 3, 4, 5, 6}, {{"old", {SafeDtype::kF32, {1}}}}));
  CheckpointReader second(write(b.path(), {1, 2, 3, -4, 5, 7}, {{"new", {SafeDtype::kF32, {1}}}}));
  const CheckpointDifference d = diff(first, second);
  ASSERT_EQ(d.different.size(), 3u);
  EXPECT_EQ(d.different[0].kind, TensorDifference::Kind::kOnlyInSecond);
  EXPECT_EQ(d.different[1].kind, TensorDifference::Kind::kOnlyInFirst);
  EXPECT_EQ(d.different[2].elements, 2);
  EXPECT_EQ(d.different[2].max_difference, 8);
  EXPECT_THAT(d.different[2].where, ElementsAre(1, 1));
  EXPECT_EQ(d.equal, 1);
  EXPECT_THAT(to_text(d), HasSubstr("x: 2 elements differ, at most by 8 at [1, 1]"));
}

TEST(ShardWriter, RefusesWhatIsNotAsAnnounced) {
  const TemporaryFolder dir;
  const auto spec = [](std::vector<Box> boxes) {
    return std::vector<EntrySpec>{
        {.name = "w", .dtype = SafeDtype::kF32, .shape = {4}, .boxes = std::move(boxes)}};
  };
  const Box half{.offset = {0}, .size = {2}};
  ShardFileWriter writer(dir.path(), "a.safetensors", spec({half}));
  const std::vector<std::byte> bytes(8);
  writer.write("w", std::span(bytes).first(5));
  EXPECT_THAT(message_of([&] { writer.write("w", bytes); }), HasSubstr("was given 8 bytes, but 3"));
  EXPECT_THAT(message_of([&] { writer.write("v", bytes); }), HasSubstr("was not declared"));
  EXPECT_THAT(message_of([&] { writer.finish(); }), HasSubstr("the last 3 bytes of"));
  EXPECT_THAT(message_of([&] {
                ShardFileWriter w(dir.path(), "b.safetensors",
                                  spec({{.offset = {3}, .size = {2}}}));
              }),
              HasSubstr("box [3:5] of w is outside its shape [4]"));
  for (const char* name : {"../x.safetensors", "x", ".safetensors", "a/b.safetensors"})
    EXPECT_THAT(message_of([&] { ShardFileWriter w(dir.path(), name, spec({half})); }),
                HasSubstr("not a valid shard name"));
  EXPECT_THAT(
      message_of([&] { ShardFileWriter w(dir.path() / "no", "a.safetensors", spec({half})); }),
      HasSubstr("No such file"));
}

class Commit : public testing::Test {
 protected:
  std::string shard(const CheckpointWriter& writer, const std::string& name, Box box,
                    SafeDtype dtype = SafeDtype::kF32) {
    const std::vector<std::byte> bytes(static_cast<size_t>(numel(box)) * size_of(dtype));
    ShardFileWriter file(writer.path(), name,
                         {{.name = "w", .dtype = dtype, .shape = {4, 4}, .boxes = {box}}});
    file.write("w", bytes);
    return file.finish();
  }
  std::string failure(std::vector<std::string> descriptions, CheckpointWriter& writer) {
    return message_of([&] { writer.commit(descriptions, {}); });
  }
  TemporaryFolder dir;
};

TEST_F(Commit, RefusesHolesOverlapsAndDisagreement) {
  CheckpointWriter writer(dir.path(), 1);
  const std::string upper = shard(writer, "a.safetensors", {.offset = {0, 0}, .size = {2, 4}});
  const std::string left = shard(writer, "b.safetensors", {.offset = {0, 0}, .size = {4, 2}});
  const std::string lower =
      shard(writer, "c.safetensors", {.offset = {2, 0}, .size = {2, 4}}, SafeDtype::kF64);
  EXPECT_THAT(failure({upper}, writer),
              HasSubstr("w [4, 4] is incomplete, element [2, 0] is in no"));
  EXPECT_THAT(failure({upper, left}, writer),
              HasSubstr("element [0, 0] of w [4, 4] is stored 2 times: [0:2, 0:4] of a.safetensors "
                        "and [0:4, 0:2] of b.safetensors"));
  EXPECT_THAT(failure({upper, lower}, writer),
              HasSubstr("w is F64 [4, 4] in c.safetensors, but F32 [4, 4] in another file"));
  EXPECT_THAT(failure({upper, upper}, writer), HasSubstr("two ranks wrote a.safetensors"));
  EXPECT_THAT(failure({"{}"}, writer), HasSubstr("has no \"name\""));
  fs::resize_file(writer.path() / "a.safetensors", 100);
  const std::string rest = shard(writer, "d.safetensors", {.offset = {2, 0}, .size = {2, 4}});
  EXPECT_THAT(failure({upper, rest}, writer), HasSubstr("has 100 bytes, but its rank wrote"));
  EXPECT_FALSE(latest_name(dir.path()));
  EXPECT_THAT(checkpoints_in(dir.path()), IsEmpty());
}

TEST_F(Commit, ReplacesACheckpointOfTheSameIteration) {
  write_example(dir.path(), 5, 1);
  write_example(dir.path(), 5, 3);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("latest", "lock", "step_00000005"));
  EXPECT_EQ(read_manifest(dir.path() / "step_00000005").files.size(), 6u);
  EXPECT_THAT(verify(dir.path() / "step_00000005").faults, IsEmpty());
}

TEST_F(Commit, LeavesNothingWithoutACommit) {
  {
    const CheckpointWriter writer(dir.path(), 5);
    EXPECT_TRUE(fs::is_directory(writer.path()));
  }
  EXPECT_THAT(names_in(dir.path()), ElementsAre("lock"));
}

TEST_F(Commit, WhatTakesLongShowsProgress) {
  write_example(dir.path(), 5, 3);
  write_example(dir.path(), 6, 3);
  const auto files = static_cast<int>(read_manifest(dir.path() / "step_00000005").files.size());
  fs::rename(dir.path() / "step_00000005", dir.path() / "step_00000005.tmp-1");
  int steps = 0;
  const auto count = [&] { ++steps; };
  const auto steps_of = [&](const auto& work) {
    steps = 0;
    work();
    return steps;
  };
  EXPECT_GE(steps_of([&] { CheckpointWriter(dir.path(), 7, count); }), files) << "left by a kill";
  EXPECT_GE(steps_of([&] { verify(dir.path() / "step_00000006", VerifyScope::kWhole, count); }),
            files);
  EXPECT_GE(steps_of([&] { verify(dir.path() / "step_00000006", VerifyScope::kStructure, count); }),
            files);
  write_example(dir.path(), 8, 1);
  EXPECT_GE(steps_of([&] {
              prune_checkpoints(dir.path(), {.keep_last = 1}, /*only_report=*/false, count);
            }),
            files);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("latest", "lock", "step_00000008"));
}

TEST_F(Commit, OneAtATimeInAFolder) {
  const CheckpointWriter writer(dir.path(), 5);
  EXPECT_THAT(message_of([&] { CheckpointWriter other(dir.path(), 6); }),
              HasSubstr(fmt::format("is in use by process {} on ", ::getpid())));
}

} // namespace
} // namespace pentatron::checkpoint
