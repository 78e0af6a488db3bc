// Files, JSON, checksums: what enters from outside and what leaves.
#include <fstream>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/crc32c.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/philox.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string content_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// RFC 3720, appendix B.4.
TEST(Crc32c, GivesTheKnownAnswers) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62A8AB43u);
  EXPECT_EQ(crc32c(bytes_of("")), 0u);
}

TEST(Crc32c, HardwareTablesAndBitsAgreeForEveryLengthAndOffset) {
  std::string text(700, '\0');
  const Stream random(1, "crc");
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(random.below(256, i));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size + begin <= text.size(); size += 1 + size / 16) {
      const auto bytes = bytes_of(std::string_view(text).substr(begin, size));
      uint32_t expected = ~0u; // the definition, bit by bit
      for (const std::byte b : bytes) {
        expected ^= static_cast<uint32_t>(b);
        for (int k = 0; k < 8; ++k) expected = (expected >> 1) ^ (expected & 1 ? 0x82F63B78u : 0);
      }
      expected = ~expected;
      ASSERT_EQ(crc32c(bytes), expected);
      ASSERT_EQ(crc32c_streams(bytes), expected);
      ASSERT_EQ(crc32c_portable(bytes), expected);
      ASSERT_EQ(crc32c(bytes.subspan(size / 3), crc32c(bytes.first(size / 3))), expected);
    }
  }
}

TEST(Crc32c, FoldingStreamsAndTablesAgreeForLongInputs) {
  std::string text(40000, '\0');
  const Stream random(2, "crc");
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(random.below(256, i));
  const auto bytes = bytes_of(text);
  for (size_t i = 0; i < 200; ++i) {
    const size_t begin = random.below(9, 2 * i);
    const auto part = bytes.subspan(begin, random.below(text.size() - 9, 2 * i + 1));
    ASSERT_EQ(crc32c(part, 7), crc32c_portable(part, 7)) << part.size();
    ASSERT_EQ(crc32c_streams(part, 7), crc32c_portable(part, 7)) << part.size();
  }
}

TEST(Crc32c, CombinesPartsInAnyOrder) {
  std::string text(30000, '\0');
  const Stream random(3, "crc");
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(random.below(256, i));
  const auto bytes = bytes_of(text);
  uint32_t sum = 0;
  for (size_t begin = 0, i = 0; begin < bytes.size(); ++i) {
    const size_t size = std::min<size_t>(bytes.size() - begin, random.below(5000, i));
    const auto rest = bytes.size() - begin - size;
    EXPECT_EQ(crc32c_combine(crc32c(bytes.first(begin)), crc32c(bytes.subspan(begin, size)), size),
              crc32c(bytes.first(begin + size)));
    sum ^= crc32c_combine(crc32c(bytes.subspan(begin, size)), 0, rest);
    begin += size;
  }
  EXPECT_EQ(sum, crc32c(bytes));
}

TEST(Crc32c, MaskedAsTfRecord) {
  // The length bytes of a TFRecord of 24 bytes and the checksum that TensorFlow writes after them.
  const std::string length("\x18\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(mask_crc32c(crc32c(bytes_of(length))), 0x224B7FA3u);
}

TEST(Json, ReadsAndConverts) {
  const Json json = parse_json(R"({"a":1,"b":"x","c":[1,2],"d":true,"e":1.5,"n":null})", "text");
  EXPECT_EQ(json_get<int64_t>(json, "a", "text"), 1);
  EXPECT_EQ(json_get<double>(json, "a", "text"), 1.0);
  EXPECT_EQ(json_get<std::string>(json, "b", "text"), "x");
  EXPECT_THAT(json_get<std::vector<int64_t>>(json, "c", "text"), ElementsAre(1, 2));
  EXPECT_TRUE(json_get<bool>(json, "d", "text"));
  EXPECT_EQ(json_get_or<int64_t>(json, "n", 7, "text"), 7);
  EXPECT_EQ(json_get_or<int64_t>(json, "z", 7, "text"), 7);
  EXPECT_EQ(message_of([&] { json_get<int64_t>(json, "z", "text"); }), "text has no \"z\"");
  EXPECT_EQ(message_of([&] { json_get<int64_t>(json, "b", "text"); }),
            "\"b\" in text is \"x\", but must be a 64-bit integer");
  EXPECT_THROW(json_get<int64_t>(json, "e", "text"), DataError);
  EXPECT_THROW(json_get<int64_t>(json, "d", "text"), DataError);
  EXPECT_THROW(json_get<std::vector<std::string>>(json, "c", "text"), DataError);
  EXPECT_THROW(json_get<int64_t>(parse_json("[1]", "x"), "a", "x"), DataError);
  EXPECT_THROW(json_get<int64_t>(parse_json("{\"a\":9223372036854775808}", "x"), "a", "x"),
               DataError);
}

TEST(Json, RefusesWhatIsNotOneValueWithinLimits) {
  for (const std::string text :
       {"", "{", "[1,]", "{\"a\":1,}", "{a:1}", "nul", "1 2", "\"\xff\"", "[1e999]", "\x01", "'a'",
        "{\"a\":{\"b\":1,\"b\":2}}", "[NaN]", "// c\n1"}) {
    EXPECT_THROW(parse_json(text, "text"), DataError) << text;
  }
  EXPECT_THAT(message_of([] { parse_json("{\"a\":1,\"a\":1}", "f"); }), HasSubstr("appears twice"));
  EXPECT_THAT(message_of([] { parse_json(std::string("{}\0x", 4), "f"); }),
              HasSubstr("byte 2 is zero"));
  EXPECT_THAT(message_of([] { parse_json(std::string(1 << 20, '['), "f"); }),
              HasSubstr("nested more than 64"));
  EXPECT_THAT(message_of([] { parse_json("[[1]]", "f", {.max_depth = 1}); }),
              HasSubstr("nested more"));
  EXPECT_THAT(message_of([] { parse_json("[1]", "f", {.max_bytes = 2}); }), HasSubstr("limit"));
  EXPECT_EQ(parse_json("[[1],[2,[]],{}]", "f"), Json({{1}, {2, Json::array()}, Json::object()}));
}

/// With the same limits.
TEST(Json, OrderedMembersKeepTheOrderOfTheText) {
  EXPECT_EQ(parse_ordered_json(R"({"b": 1, "a": [{"d": 2, "c": null}]})", "t").dump(),
            R"({"b":1,"a":[{"d":2,"c":null}]})");
  EXPECT_THROW(parse_ordered_json(R"({"a": 1, "a": 2})", "t"), DataError);
  EXPECT_THROW(parse_ordered_json(R"({"a": )", "t"), DataError);
  const std::string deep(65, '[');
  EXPECT_THROW(parse_ordered_json(deep + std::string(65, ']'), "t"), DataError);
  EXPECT_NO_THROW(parse_ordered_json(deep.substr(1) + std::string(64, ']'), "t"));
}

TEST(Json, DumpNeverThrows) {
  EXPECT_EQ(dump_json("\xff"), "\"\uFFFD\"");
  EXPECT_EQ(dump_json(std::numeric_limits<double>::infinity()), "null");
}

TEST(Json, ReadsFiles) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "a.json", "[1]");
  EXPECT_EQ(read_json(folder.path() / "a.json"), Json::array({1}));
  EXPECT_THROW(read_json(folder.path() / "b.json"), DataError);
  EXPECT_THROW(read_json(folder.path()), DataError);
}

TEST(MappedFile, ShowsTheBytesAndNoticesAChangedSize) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "f";
  write_file_atomically(path, "hello");
  MappedFile file(path);
  EXPECT_EQ(file.text(), "hello");
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.text(), "hello");
  moved.check_size();
  std::filesystem::resize_file(path, 2);
  EXPECT_THAT(message_of([&] { moved.check_size(); }), HasSubstr("5 bytes when opened, 2 now"));
}

TEST(MappedFile, TakesAnEmptyFileAndRefusesTheRest) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "empty", "");
  EXPECT_EQ(MappedFile(folder.path() / "empty").size(), 0u);
  EXPECT_THROW(MappedFile(folder.path() / "none"), DataError);
  EXPECT_THROW(MappedFile(folder.path()), DataError);
  EXPECT_THROW(MappedFile("/dev/zero"), DataError);
}

TEST(AtomicFile, ReplacesOnlyAtCommit) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "f";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new!");
    EXPECT_EQ(content_of(path), "old");
  }
  EXPECT_EQ(content_of(path), "old");
  {
    AtomicFile file(path);
    file.write("new!");
    file.write_at(0, bytes_of("N"));
    file.write("?");
    file.commit();
  }
  EXPECT_EQ(content_of(path), "New!?");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
  EXPECT_THAT(message_of([&] { AtomicFile x(folder.path() / "no" / "f"); }),
              HasSubstr("cannot be created"));
}

TEST(AtomicFile, AnErrorOfTheSystemNamesTheFile) {
  const TemporaryFolder folder;
  AtomicFile file(folder.path() / "big");
  const std::string byte = "x";
  EXPECT_THAT(message_of([&] { file.write_at((uint64_t{1} << 63) - 1, bytes_of(byte)); }),
              HasSubstr("big cannot be written"));
}

TEST(AtomicFile, DoesNotReplaceWhatAppearedWhenItMustNot) {
  const TemporaryFolder folder;
  const std::filesystem::path target = folder.path() / "out";
  AtomicFile file(target);
  file.write("ours");
  write_file_atomically(target, "theirs");
  EXPECT_THAT(message_of([&] { file.commit(Existing::kRefuse); }),
              HasSubstr("was created by another program"));
  EXPECT_EQ(content_of(target), "theirs");
  AtomicFile fresh(folder.path() / "new");
  fresh.write("ours");
  fresh.commit(Existing::kRefuse);
  EXPECT_EQ(content_of(folder.path() / "new"), "ours");
}

TEST(RequireOutput, LooksAtTheNearestFolderThatExists) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "file";
  write_file_atomically(file, "");
  require_output(folder.path() / "a/b/c.json", "--out");
  require_output(file, "--out");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_THAT(message_of([&] { require_output(file / "a", "--out"); }),
              HasSubstr("file is not a folder"));
  EXPECT_THAT(message_of([&] { require_output("/proc/a", "--out"); }),
              AllOf(HasSubstr("--out /proc/a cannot be created"), HasSubstr("is not writable")));
}

TEST(AtomicFile, NeedsAFolderThatExistsAndANameOfAFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "sub");
  const auto error = [&](const char* name) {
    return message_of([&] { require_folder_of(folder.path() / name, "--out", ".json"); });
  };
  EXPECT_EQ(error("scores"), "");
  EXPECT_EQ(error("sub/scores.txt"), "");
  require_folder_of("scores", "--out", ".json");
  EXPECT_THAT(error("none/scores.txt"),
              AllOf(HasSubstr("none/scores.txt is not a file in an existing folder"),
                    HasSubstr("try: --out scores.json")));
  for (const char* name : {"sub", "sub/"}) EXPECT_THAT(error(name), HasSubstr("--out sub.json"));
}

TEST(AtomicDirectory, AppearsWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const auto target = folder.path() / "deep" / "checkpoint";
  {
    AtomicDirectory directory(target);
    write_file_atomically(directory.path() / "a", "1");
    EXPECT_THAT(directory.path().filename().string(), HasSubstr("checkpoint.tmp-"));
  }
  EXPECT_THAT(names_in(folder.path() / "deep"), ElementsAre());
  {
    AtomicDirectory directory(target);
    std::filesystem::create_directory(directory.path() / "sub");
    write_file_atomically(directory.path() / "sub" / "a", "1");
    EXPECT_FALSE(std::filesystem::exists(target));
    directory.commit();
  }
  EXPECT_EQ(content_of(target / "sub" / "a"), "1");
  AtomicDirectory again(target);
  EXPECT_THAT(message_of([&] { again.commit(); }), HasSubstr("exists already"));
  EXPECT_EQ(content_of(target / "sub" / "a"), "1");
}

TEST(AtomicDirectory, RemovesWhatKilledProcessesLeft) {
  const TemporaryFolder folder;
  const auto target = folder.path() / "model";
  for (const char* name : {"model.tmp-1-0", "model.tmp-12-3", "model.tmp-1-0-old", "model.tmp-1",
                           "model.tmp-x-0", "model2.tmp-1-0"})
    std::filesystem::create_directories(folder.path() / name / "sub");
  std::ofstream(folder.path() / "model.tmp-5-0") << "a file";
  const std::vector<std::string> others = {"model.tmp-1", "model.tmp-1-0-old", "model.tmp-5-0",
                                           "model.tmp-x-0", "model2.tmp-1-0"};
  {
    const AtomicDirectory directory(target.string() + "/");
    EXPECT_EQ(names_in(folder.path()).size(), others.size() + 1);
    const AtomicDirectory second(target); // the first still writes
    EXPECT_TRUE(std::filesystem::exists(directory.path()));
    EXPECT_EQ(names_in(folder.path()).size(), others.size() + 2);
  }
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAreArray(others));
}

TEST(AtomicDirectory, TellsOfEveryFileThatIsSyncedOrRemoved) {
  const TemporaryFolder folder;
  const auto target = folder.path() / "checkpoint";
  const auto fill = [](const AtomicDirectory& directory) {
    std::filesystem::create_directory(directory.path() / "sub");
    for (const char* name : {"a", "b", "sub/c"})
      write_file_atomically(directory.path() / name, "1");
  };
  int told = 0;
  const auto tell = [&] { ++told; };
  {
    AtomicDirectory directory(target, tell);
    fill(directory);
    directory.commit();
  }
  EXPECT_GE(std::exchange(told, 0), 3) << "synced";
  {
    AtomicDirectory directory(target, tell);
    fill(directory);
    directory.commit(Existing::kReplace);
  }
  EXPECT_GE(std::exchange(told, 0), 6) << "synced, and the old ones removed";
  {
    AtomicDirectory directory(target, tell);
    fill(directory);
  }
  EXPECT_GE(told, 3) << "removed without a commit";
}

} // namespace
} // namespace pentatron
