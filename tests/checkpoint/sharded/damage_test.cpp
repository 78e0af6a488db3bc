// Whatever happens to the bytes of a checkpoint is found, and told by file and tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/descriptors.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "tests/checkpoint/sharded/example.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::write_example;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void write_all(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

/// All in 10,000 places with PENTATRON_FAULTS=full, else a sample.
int flips() {
  const char* const full = std::getenv("PENTATRON_FAULTS");
  return full != nullptr && std::string(full) == "full" ? 10'000 : 600;
}

class Damage : public testing::Test {
 protected:
  void SetUp() override { folder = write_example(dir.path(), 4, 3); }
  std::string shard(int64_t rank, const std::string& kind = "model") const {
    return shard_name(kind, rank, 3);
  }
  std::string first_fault() const {
    const VerifyReport report = verify(folder);
    return report.ok() ? "" : report.faults[0];
  }
  std::vector<std::string> all_files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), folder).string());
    std::ranges::sort(names);
    return names;
  }
  /// The tensors whose bytes of the file include `at`.
  static std::vector<std::string> tensors_at(const Manifest& manifest, const std::string& file,
                                             uint64_t at) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : manifest.files.find(file)->second.entries) {
      const uint64_t bytes =
          static_cast<uint64_t>(entry.numel()) * size_of(manifest.tensors.find(name)->second.dtype);
      if (at >= entry.begin && at < entry.begin + bytes) names.push_back(name);
    }
    return names;
  }
  TemporaryFolder dir;
  fs::path folder;
};

TEST_F(Damage, IsNotReportedWhereFilesCannotBeOpenedForLackOfDescriptors) {
  for (const bool first : {true, false}) { // the manifest, or a shard
    std::string said;
    std::optional<pentatron::test::FewDescriptors> none;
    const auto allow_none = [&] {
      if (!none) none.emplace(0);
    };
    if (first) allow_none();
    try {
      verify(folder, VerifyScope::kStructure, allow_none);
    } catch (const OutOfDescriptors& error) {
      said = error.what();
    }
    none.reset();
    EXPECT_THAT(said, HasSubstr("cannot open " + folder.string()));
    EXPECT_EQ(said.find("manifest.json") != std::string::npos, first) << said;
    EXPECT_THAT(said, HasSubstr("try: ulimit -n"));
  }
}

TEST_F(Damage, IsNotCalledBeyondRepairForLackOfDescriptors) {
  const std::map<std::string, std::string> faults = {{shard(0), "is corrupted"}};
  std::string said;
  {
    const pentatron::test::FewDescriptors none(0);
    try {
      repair_suffices(folder, faults);
    } catch (const OutOfDescriptors& error) {
      said = error.what();
    }
  }
  EXPECT_THAT(said, HasSubstr("manifest.json: this process has reached its limit of"));
}

TEST_F(Damage, EveryFlippedBitIsFoundByFileAndTensor) {
  const Manifest manifest = read_manifest(folder);
  const std::vector<std::string> files = all_files();
  std::mt19937_64 random(1);
  for (int i = 0; i < flips(); ++i) {
    const std::string& name = files[random() % files.size()];
    const std::string whole = content_of(folder / name);
    std::string flipped = whole;
    const size_t at = random() % whole.size();
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
    write_all(folder / name, flipped);
    const std::string fault = first_fault();
    ASSERT_THAT(fault, HasSubstr(name)) << "byte " << at;
    if (manifest.attachments.contains(name)) {
      const CheckpointReader reader(folder);
      ASSERT_THAT(message_of([&] { reader.read_attachment(name); }), HasSubstr("is corrupted"));
    } else if (manifest.files.contains(name)) {
      for (const std::string& tensor : tensors_at(manifest, name, at)) {
        ASSERT_THAT(fault, HasSubstr(tensor)) << name << " byte " << at;
        CheckpointReader reader(folder);
        ASSERT_THAT(message_of([&] { reader.read(tensor); }), HasSubstr("is corrupted"));
      }
    }
    write_all(folder / name, whole);
  }
  EXPECT_EQ(first_fault(), "");
}

TEST_F(Damage, ReadingUndamagedTensorsStillWorks) {
  const std::string name = shard(0, "optimizer");
  std::string bytes = content_of(folder / name);
  bytes.back() = static_cast<char>(bytes.back() ^ 1); // in the last tensor of the file
  write_all(folder / name, bytes);
  const std::vector<std::string> wrong = [&] {
    CheckpointReader reader(folder);
    std::vector<std::string> names;
    for (const auto& [tensor, info] : reader.manifest().tensors) {
      if (!message_of([&] { reader.read(tensor); }).empty()) names.push_back(tensor);
    }
    return names;
  }();
  EXPECT_THAT(wrong, Not(IsEmpty()));
  for (const std::string& tensor : wrong) EXPECT_THAT(tensor, HasSubstr("/"));
}

TEST_F(Damage, EveryTruncationIsFound) {
  for (const std::string& name : all_files()) {
    const std::string whole = content_of(folder / name);
    for (size_t size = 0; size < whole.size(); size += 512) {
      fs::resize_file(folder / name, size);
      ASSERT_THAT(first_fault(), HasSubstr(name)) << size;
      write_all(folder / name, whole);
    }
    write_all(folder / name, whole + std::string(7, '\0'));
    ASSERT_THAT(first_fault(), HasSubstr(name)) << "appended";
    write_all(folder / name, whole);
  }
  EXPECT_EQ(first_fault(), "");
}

TEST_F(Damage, SwappedShardsAreFound) {
  const TensorInfos even = {{"w", {SafeDtype::kF32, {12, 64}}}}; // files of one size
  folder = write_example(dir.path(), 9, 3, even);
  fs::rename(folder / shard(0), folder / "x");
  fs::rename(folder / shard(1), folder / shard(0));
  fs::rename(folder / "x", folder / shard(1));
  EXPECT_THAT(verify(folder).faults[0], HasSubstr(shard(0)));
  EXPECT_THAT(verify(folder).faults[0], HasSubstr("w"));
  CheckpointReader reader(folder);
  EXPECT_THAT(message_of([&] { reader.read("w"); }), HasSubstr(shard(0)));
}

TEST_F(Damage, OneOfSeveralReadersFindsIt) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    const fs::path file = folder / shard(rank);
    const std::string content = content_of(file);
    std::string damaged = content;
    damaged.back() ^= 1;
    for (const int64_t readers : {1, 2, 3, 5}) {
      write_all(file, damaged);
      std::vector<std::string> faults;
      for (int64_t part = 0; part < readers; ++part)
        for (std::string& fault :
             verify(folder, VerifyScope::kWeights, {}, {}, {.part = part, .of = readers}).faults)
          faults.push_back(std::move(fault));
      EXPECT_THAT(faults, testing::ElementsAre(HasSubstr(shard(rank)))) << readers;
      write_all(file, content);
      for (int64_t part = 0; part < readers; ++part)
        EXPECT_TRUE(
            verify(folder, VerifyScope::kWeights, {}, {}, {.part = part, .of = readers}).ok());
    }
  }
}

TEST_F(Damage, MissingShardsAreFound) {
  fs::remove(folder / shard(1));
  EXPECT_THAT(first_fault(), HasSubstr(shard(1)));
  EXPECT_THAT(first_fault(), HasSubstr("layers.0.qkv.weight"));
  CheckpointReader reader(folder);
  EXPECT_THAT(message_of([&] { reader.read("layers.0.qkv.weight"); }),
              HasSubstr("reading layers.0.qkv.weight"));
  const Box first_rows{.offset = {0, 0, 0}, .size = {1, 11, 1}}; // held by rank 0 alone
  std::vector<std::byte> bytes(22);
  EXPECT_EQ(message_of([&] { reader.read("layers.0.qkv.weight", first_rows, bytes); }), "");
}

TEST_F(Damage, ShardsOfAnotherStepAndForeignOnesAreFound) {
  const TemporaryFolder other;
  const fs::path later = write_example(other.path(), 5, 3);
  fs::copy_file(later / shard(2), folder / shard(2), fs::copy_options::overwrite_existing);
  EXPECT_THAT(first_fault(), HasSubstr(shard(2)));
  folder = write_example(dir.path(), 6, 3);
  fs::copy_file(later / shard(2), folder / "extra.safetensors");
  EXPECT_THAT(first_fault(), HasSubstr("extra.safetensors is not listed in the manifest"));
  fs::remove(folder / "extra.safetensors");
  EXPECT_EQ(first_fault(), "");
  write_all(folder / "README", "one may add notes");
  EXPECT_EQ(first_fault(), "");
  write_all(folder / "tokenizer/added_tokens.json", "{}"); // others would read it
  EXPECT_THAT(first_fault(),
              HasSubstr("tokenizer/added_tokens.json is not listed in the manifest"));
}

TEST_F(Damage, AHeaderThatTellsAnotherStoryIsFound) {
  // The data's checksums are right, and so is the manifest's: only the two disagree.
  const fs::path file = folder / shard(0);
  std::string bytes = content_of(file);
  const size_t at = bytes.find("F32");
  ASSERT_NE(at, std::string::npos);
  for (const auto& [dtype, fault] : {std::pair{"I32", "and the manifest disagree about"},
                                     {"X32", "the dtype 'X32' is not supported"}}) {
    bytes.replace(at, 3, dtype);
    write_all(file, bytes);
    Manifest manifest = read_manifest(folder);
    FileInfo& info = manifest.files.find(shard(0))->second;
    for (size_t c = 0; c < info.crcs.size(); ++c) {
      const auto chunk = std::string_view(bytes).substr(c * info.chunk_bytes, info.chunk_bytes);
      info.crcs[c] = crc32c(std::as_bytes(std::span(chunk)));
    }
    for (const char* where : {".", "spare_00"})
      write_all(folder / where / kManifestName, to_text(manifest));
    EXPECT_THAT(first_fault(), HasSubstr(fault));
  }
}

TEST_F(Damage, OfWhatIsMappedIsFound) {
  const TensorInfos tensors = {{"v", {SafeDtype::kF32, {300, 64}}},
                               {"w", {SafeDtype::kF32, {800, 64}}}};
  folder = write_example(dir.path(), 8, 1, tensors);
  const fs::path file = folder / shard_name("model", 0, 1);
  const std::string good = content_of(file);
  const Manifest manifest = read_manifest(folder);
  const Entry& w = manifest.files.begin()->second.entries.find("w")->second;
  const Box rows{.offset = {100, 0}, .size = {300, 64}};
  const uint64_t begin = w.begin + 100 * 256, end = begin + 300 * 256;
  for (const uint64_t at : {begin - begin % kMinChunk, begin, (begin + end) / 2, end - 1,
                            (end + kMinChunk - 1) / kMinChunk * kMinChunk - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 16);
    write_all(file, bad);
    CheckpointReader reader(folder);
    const CheckpointReader::Wanted wanted{"w", rows};
    const std::string message = message_of([&] { reader.map({&wanted, 1}); });
    EXPECT_THAT(message, HasSubstr(fmt::format("the checksum of chunk {} ", at / kMinChunk)));
    EXPECT_THAT(message, HasSubstr("w"));
  }
  write_all(file, good.substr(0, good.size() - 1));
  CheckpointReader shorter(folder);
  const CheckpointReader::Wanted wanted{"w", rows};
  EXPECT_THAT(message_of([&] { shorter.map({&wanted, 1}); }), HasSubstr("is corrupted: it has"));
}

TEST_F(Damage, AFileThatShrinksWhileItIsReadIsAnError) {
  folder = write_example(dir.path(), 8, 1, {{"w", {SafeDtype::kF32, {1024, 8}}}});
  CheckpointReader reader(folder);
  std::vector<std::byte> row(32);
  reader.read("w", {.offset = {0, 0}, .size = {1, 8}}, row); // opens the file
  fs::resize_file(folder / shard_name("model", 0, 1), 3 * kMinChunk);
  EXPECT_THAT(message_of([&] { reader.read("w"); }),
              HasSubstr("was truncated while it was being read"));
}

/// A manifest with one thing changed and a good checksum.
class BadManifest : public Damage {
 protected:
  std::string error(const std::function<void(Manifest&)>& change) {
    Manifest manifest = read_manifest(folder);
    change(manifest);
    return message_of([&] { parse_manifest(to_text(manifest), "manifest"); });
  }
  FileInfo& file(Manifest& m) { return m.files.find(shard(0))->second; }
};

TEST_F(BadManifest, EveryLieIsRefused) {
  const auto is = [&](const char* text, const std::function<void(Manifest&)>& change) {
    EXPECT_THAT(error(change), HasSubstr(text));
  };
  EXPECT_EQ(error([](Manifest&) {}), "");
  is("has format 4", [](Manifest& m) { m.format = 4; });
  is("has iteration -1", [](Manifest& m) { m.iteration = -1; });
  is("is incomplete", [&](Manifest& m) { m.files.erase(shard(1)); });
  is("is incomplete", [&](Manifest& m) { file(m).entries.begin()->second.boxes.clear(); });
  is("checksums for", [&](Manifest& m) { file(m).crcs.pop_back(); });
  is("checksums for", [&](Manifest& m) { file(m).bytes += kMinChunk; });
  is("power of two", [&](Manifest& m) { file(m).chunk_bytes += 1; });
  is("power of two", [&](Manifest& m) { file(m).chunk_bytes = 0; });
  is("out of range", [&](Manifest& m) { file(m).bytes = uint64_t{1} << 62; });
  is("after the end of the file",
     [&](Manifest& m) { file(m).entries.begin()->second.begin = file(m).bytes; });
  is("overlap", [&](Manifest& m) {
    file(m).entries["layers.0.norm.weight"].begin = file(m).entries["scale"].begin;
  });
  is("not a plain name", [&](Manifest& m) {
    m.files["../" + shard(0)] = file(m);
    m.files.erase(shard(0));
  });
  is("is outside its shape",
     [&](Manifest& m) { file(m).entries["layers.0.norm.weight"].boxes[0].offset[0] = 20; });
  is("is outside its shape",
     [&](Manifest& m) { file(m).entries["layers.0.norm.weight"].boxes[0].size[0] = -1; });
  is("is outside its shape",
     [&](Manifest& m) { file(m).entries["layers.0.norm.weight"].boxes[0].offset[0] = INT64_MAX; });
  is("invalid shape", [](Manifest& m) { m.tensors["scale"].shape = {int64_t{1} << 59, 4}; });
  is("invalid shape", [](Manifest& m) {
    m.tensors["scale"].shape.assign(9, 1); // more dimensions than boxes may have
  });
  is("not in the list of tensors", [](Manifest& m) { m.tensors.erase("scale"); });
  for (const char* name : {"../x", "/x", "a/b/c", "a/../b", ".x", "a/.x", "", "a/", "manifest.json",
                           "x.safetensors", "x.parity", "x.tmp-1-2", "a b", "a\nb"})
    is("not a valid name for a file", [&](Manifest& m) { m.attachments[name] = {}; });
  is("too many files without tensors",
     [](Manifest& m) { m.attachments["x"].bytes = uint64_t{65} << 20; });
  is("out of range", [](Manifest& m) { m.attachments["x"].bytes = uint64_t{1} << 62; });
  is("stored 2 times", [&](Manifest& m) {
    auto& boxes = file(m).entries["layers.0.norm.weight"].boxes;
    boxes.assign(2, {.offset = {0}, .size = {4}});
  });
}

TEST_F(BadManifest, CountsOfExpertsFitTheirLayers) {
  const auto said = [&](const Json& choices) {
    return error([&](Manifest& m) {
      m.tensors["layers.0.mlp.router.weight"] = {SafeDtype::kF32, {2, 0}}; // two experts
      m.state["expert_choices"] = choices;
    });
  };
  const auto of_layer = [&](const Json& counts) { return said({{"layers.0.mlp", counts}}); };
  EXPECT_EQ(of_layer({5, 0}), "");
  EXPECT_EQ(said(Json::object()), "");
  EXPECT_THAT(said({5, 0}), HasSubstr("state.expert_choices is not an object"));
  EXPECT_THAT(said({{"layers.1.mlp", {5, 0}}}),
              HasSubstr("state.expert_choices of layers.1.mlp is of a layer without a router"));
  EXPECT_THAT(of_layer("5, 0"), HasSubstr("is not a list"));
  EXPECT_THAT(of_layer({5, 0, 1}), HasSubstr("has 3 numbers, but the layer has 2 experts"));
  EXPECT_THAT(of_layer({5}), HasSubstr("has 1 numbers"));
  EXPECT_THAT(of_layer({5, -1}), HasSubstr("has -1, which is not in 0 to"));
  EXPECT_THAT(of_layer({5, UINT64_MAX}), HasSubstr("which is not in 0 to"));
  EXPECT_THAT(of_layer({5, 0.5}), HasSubstr("has 0.5, which is not an integer"));
  EXPECT_THAT(of_layer({5, "0"}), HasSubstr("which is not an integer"));
  EXPECT_THAT(of_layer({5, nullptr}), HasSubstr("has null, which is not an integer"));
}

TEST_F(BadManifest, UnknownMembersAndWrongTypesAreRefused) {
  const std::string text = content_of(folder / kManifestName);
  const size_t tail = text.rfind(",\n\"crc32c\"");
  const auto resealed = [&](const std::string& from, const std::string& to) {
    std::string body = text.substr(0, tail);
    body.replace(body.find(from), from.size(), to);
    body += fmt::format(",\n\"crc32c\":\"{:08x}\"}}\n", crc32c(std::as_bytes(std::span(body))));
    return message_of([&] { parse_manifest(body, "manifest"); });
  };
  EXPECT_EQ(resealed("\"abc\"", "\"abd\""), "");
  EXPECT_THAT(resealed("\"tokenizer\"", "\"extra\":1,\"tokenizer\""), HasSubstr("unknown field"));
  EXPECT_THAT(resealed("\"tokenizer\"", "\"tokeniser\""), HasSubstr("unknown field"));
  EXPECT_THAT(resealed("\"abc\"", "7"), HasSubstr("must be a string"));
  EXPECT_THAT(resealed("\"begin\":", "\"begin\":-"), HasSubstr("out of range"));
  EXPECT_THAT(resealed("\"begin\":", "\"begin\":0."), HasSubstr("integer"));
  EXPECT_THAT(resealed("\"F32\"", "\"F31\""), HasSubstr("not supported"));
  EXPECT_THAT(resealed("{", "["), HasSubstr("not valid JSON"));
}

} // namespace
} // namespace pentatron::checkpoint
