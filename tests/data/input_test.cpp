#include <filesystem>
#include <random>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pentatron/base/descriptors.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/document_reader.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/line_reader.h"
#include "pentatron/data/parquet_source.h"
#include "pentatron/data/record_reader.h"
#include "pentatron/data/utf8.h"
#include "tests/data/data_files.h"
#include "tests/support/few_descriptors.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string random_text(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>("etaoin shrdlu\n"[random() % 14]);
  return text;
}

/// Reads with an odd buffer, so that pieces end anywhere.
std::string read_all(const std::filesystem::path& path, size_t capacity = 1013) {
  const auto source = open_source(path);
  std::string all;
  std::string buffer(capacity, '\0');
  while (const size_t n = source->read(buffer.data(), buffer.size())) all.append(buffer, 0, n);
  return all;
}

struct Documents final : DocumentSink {
  void text(std::string_view piece) override { open += piece; }
  void end_document() override {
    list.push_back(open);
    open.clear();
  }
  void drop_document() override { open.clear(); }
  std::vector<std::string> list;
  std::string open;
};

class Reading : public ::testing::Test {
 protected:
  std::vector<std::string> read(const std::string& path, OnBadInput policy = OnBadInput::kError,
                                int64_t max_line_bytes = 1 << 20) {
    report = InputReport(policy);
    Documents documents;
    for (const InputFile& file : find_input_files({path}).files) {
      read_documents(file, {.text_key = "text", .max_line_bytes = max_line_bytes}, documents,
                     report);
    }
    return documents.list;
  }
  TemporaryFolder folder;
  InputReport report;
};

TEST_F(Reading, PlainGzipAndZstdGiveTheSameBytes) {
  const std::string text = random_text(3'000'017, 1);
  EXPECT_EQ(read_all(folder.write("a.txt", text)), text);
  EXPECT_EQ(read_all(folder.write("a.txt.gz", gzip(text))), text);
  EXPECT_EQ(read_all(folder.write("a.txt.zst", zstd(text))), text);
  EXPECT_EQ(read_all(folder.write("a.txt.zstd", zstd(text)), 5'000'000), text);
}

TEST_F(Reading, SeveralGzipMembersAndZstdFramesFollowEachOther) {
  const std::string a = random_text(300'000, 1), b = random_text(200'000, 2);
  EXPECT_EQ(read_all(folder.write("a.gz", gzip(a) + gzip("") + gzip(b))), a + b);
  EXPECT_EQ(read_all(folder.write("a.zst", zstd(a) + zstd(b))), a + b);
  EXPECT_EQ(read_all(folder.write("padded.gz", gzip(a) + std::string(512, '\0'))), a);
}

TEST_F(Reading, CompressedContentIsRecognisedWithoutTheEnding) {
  EXPECT_EQ(read_all(folder.write("a.txt", gzip("hello"))), "hello");
  EXPECT_EQ(read_all(folder.write("b.txt", zstd("hello"))), "hello");
}

TEST_F(Reading, DamagedArchivesAreErrorsWhereverTheyAreCut) {
  const std::string text = random_text(2000, 3);
  for (const auto& [ending, whole] :
       {std::pair{".gz", gzip(text)}, std::pair{".zst", zstd(text)}}) {
    for (size_t cut = 1; cut < whole.size(); cut += 7) {
      const std::string path =
          folder.write(std::string("cut") + ending, std::string_view(whole).substr(0, cut));
      EXPECT_THAT(error_of<DataError>([&] { read_all(path); }), HasSubstr(path)) << cut;
    }
  }
  EXPECT_THAT(error_of<DataError>([&] { read_all(folder.write("text.gz", "this is plain text")); }),
              HasSubstr("gzip"));
  EXPECT_THAT(
      error_of<DataError>([&] { read_all(folder.write("text.zst", "this is plain text")); }),
      HasSubstr("zstd"));
  std::string flipped = gzip(text);
  flipped[flipped.size() - 6] = static_cast<char>(~flipped[flipped.size() - 6]); // in the CRC
  EXPECT_THAT(error_of<DataError>([&] { read_all(folder.write("flipped.gz", flipped)); }),
              HasSubstr("gzip"));
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("naïve 日本語 🙂 \x7F"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("abc\xFF"), 3u);
  EXPECT_EQ(find_invalid_utf8(std::string(100, 'x') + "\x80"), 100u);
  for (const char* bad :
       {"\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xF0\x9F\x99", "\xC3(", "\xBF"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("é") + bad + "tail"), 2u) << bad;
  }
  // Every code point in its only legal form.
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string s;
    if (c < 0x80) {
      s = {static_cast<char>(c)};
    } else if (c < 0x800) {
      s = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      s = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
           static_cast<char>(0x80 | (c & 63))};
    } else {
      s = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(find_invalid_utf8(s), surrogate ? 0 : std::string_view::npos) << c;
    for (size_t cut = 1; cut < s.size(); ++cut)
      ASSERT_EQ(incomplete_utf8_tail(s.substr(0, cut)), cut) << c;
    ASSERT_EQ(incomplete_utf8_tail(s), 0u) << c;
  }
}

TEST_F(Reading, CharactersAcrossPiecesSurvive) {
  std::string text;
  while (text.size() < 1'200'000) text += "a日é🙂";
  for (const char* prefix : {"", "b", "bb", "bbb"}) {
    EXPECT_THAT(read(folder.write("a.txt", prefix + text)), ElementsAre(prefix + text));
  }
}

TEST_F(Reading, BadUtf8NamesFileAndByteOrIsSkipped) {
  const std::string path = folder.write("bad.txt", std::string(700'000, 'x') + "\xFF" + "more");
  EXPECT_THAT(error_of<DataError>([&] { read(path); }),
              HasSubstr(path + " is not UTF-8 at byte 700000"));
  EXPECT_THAT(error_of<DataError>([&] { read(path); }), Not(HasSubstr("try:")))
      << "leaving out the only document helps nobody";
  EXPECT_THAT(read(path, OnBadInput::kSkip), ElementsAre());
  EXPECT_EQ(report.skipped(BadInput::kUtf8), 1);
  EXPECT_THAT(error_of<DataError>([&] { read(folder.write("cut.txt", "ab\xE2\x82")); }),
              HasSubstr("at byte 2"));
}

TEST_F(Reading, ByteOrderMarksAreNotText) {
  EXPECT_THAT(read(folder.write("a.txt", "\xEF\xBB\xBFhello")), ElementsAre("hello"));
  EXPECT_THAT(read(folder.write("a.jsonl", "\xEF\xBB\xBF{\"text\":\"hello\"}")),
              ElementsAre("hello"));
}

TEST_F(Reading, EmptyFilesAreErrorsOrCounted) {
  for (const auto& [name, content] : {std::pair<std::string, std::string>{"a.txt", ""},
                                      {"b.jsonl", ""},
                                      {"c.txt.gz", gzip("")},
                                      {"d.jsonl.zst", zstd("")}}) {
    const std::string path = folder.write(name, content);
    EXPECT_THAT(error_of<DataError>([&] { read(path); }), HasSubstr(path + " is empty"));
    read(path, OnBadInput::kSkip);
    EXPECT_EQ(report.skipped(BadInput::kEmptyFile), 1) << name;
  }
}

TEST_F(Reading, JsonLinesAreDocumentsAndBadOnesAreCountedByKind) {
  const std::string path = folder.write("a.jsonl", "{\"text\": \"one\"}\r\n"
                                                   "\n"
                                                   "{\"id\": 3, \"body\": \"x\"}\n"
                                                   "{\"text\": 5}\n"
                                                   "{\"text\": \"two\\n\\u00e9\"}\n"
                                                   "{\"text\": \"cut\n"
                                                   "{\"text\": \"\"}\n"
                                                   "{\"text\": \"\xFF\"}\n"
                                                   "{\"text\": \"three\"}");
  EXPECT_THAT(read(path, OnBadInput::kSkip), ElementsAre("one", "two\né", "three"));
  EXPECT_EQ(report.skipped(BadInput::kMissingKey), 2);
  EXPECT_EQ(report.skipped(BadInput::kBadJson), 1);
  EXPECT_EQ(report.skipped(BadInput::kUtf8), 1);
  EXPECT_EQ(report.empty_documents, 1);
  EXPECT_EQ(report.documents, 3);
  EXPECT_THAT(
      report.to_string(),
      HasSubstr("skipped 4: 1 with invalid UTF-8, 2 without the key, 1 that is not a JSON object"));
  EXPECT_THAT(error_of<DataError>([&] { read(path); }),
              AllOf(HasSubstr(path + ": line 3 has no key \"text\"; its keys are \"body\", \"id\""),
                    HasSubstr("try: dataset.on_bad_input=skip")));
  EXPECT_EQ(report.skips().size(), 0u);
  read(path, OnBadInput::kSkip);
  ASSERT_EQ(report.skips().size(), 4u);
  EXPECT_EQ(nlohmann::json::parse(report.skips()[1].to_json()),
            (nlohmann::json{
                {"file", path}, {"line", 4}, {"reason", "has no string under the key \"text\""}}));
  const std::string first = folder.write("b.jsonl", "{\"id\": 3, \"body\": \"x\"}\n");
  EXPECT_THAT(error_of<DataError>([&] { read(first); }), HasSubstr("try: dataset.text_key=body"));
  const std::string number = folder.write("c.jsonl", "{\"text\": 3, \"body\": \"x\"}\n");
  EXPECT_THAT(
      error_of<DataError>([&] { read(number); }),
      AllOf(HasSubstr("has no string under the key \"text\"; its keys are \"body\", \"text\""),
            HasSubstr("try: dataset.text_key=body")));
}

TEST_F(Reading, ALineOverTheLimitIsReadPastInBoundedMemory) {
  // 24 MB in one line stand for a gigabyte: far above both the limit and the reader's buffer.
  const std::string path = folder.write(
      "a.jsonl.gz", gzip("{\"text\":\"one\"}\n{\"text\":\"" +
                         random_text(24'000'000, 5).append("\"}\n{\"text\":\"two\"}\n")));
  const std::string one_line =
      folder.write("b.jsonl", "{\"text\":\"one\"}\n{\"text\":\"" + std::string(24'000'000, 'x') +
                                  "\"}\n{\"text\":\"two\"}\n");
  EXPECT_THAT(read(one_line, OnBadInput::kSkip, 100'000), ElementsAre("one", "two"));
  EXPECT_EQ(report.skipped(BadInput::kLongLine), 1);
  EXPECT_THAT(error_of<DataError>([&] { read(one_line, OnBadInput::kError, 100'000); }),
              HasSubstr("line 2 has 24000011 bytes, more than dataset.max_line_bytes=100000"));
  EXPECT_EQ(read(one_line, OnBadInput::kError, 24'000'011).size(), 3u);

  const auto source = open_source(one_line);
  LineReader lines(*source, 100'000);
  std::string_view line;
  while (lines.next(line) != LineReader::Status::kEnd)
    EXPECT_LE(lines.memory_bytes(), size_t{1} << 20);
  EXPECT_EQ(lines.line_number(), 3);
}

TEST_F(Reading, LineLengthsAroundTheLimitAndTheBuffer) {
  for (const int64_t limit : {0, 5, 1 << 20}) {
    for (const int64_t length : {limit - 1, limit, limit + 1, limit + 2}) {
      if (length < 0) continue;
      for (const char* ending : {"\n", "\r\n", ""}) {
        const auto source = open_source(
            folder.write("a", std::string(static_cast<size_t>(length), 'x') + ending + "y\n"));
        if (*ending == '\0') continue;
        LineReader lines(*source, limit);
        std::string_view line;
        EXPECT_EQ(lines.next(line),
                  length <= limit ? LineReader::Status::kLine : LineReader::Status::kTooLong)
            << limit << " " << length;
        EXPECT_EQ(lines.line_bytes(), length);
        EXPECT_EQ(lines.next(line),
                  limit >= 1 ? LineReader::Status::kLine : LineReader::Status::kTooLong);
        EXPECT_EQ(line, limit >= 1 ? "y" : "");
        EXPECT_EQ(lines.next(line), LineReader::Status::kEnd);
      }
    }
  }
}

TEST_F(Reading, ElementsOfAnArrayAreDocuments) {
  const std::string array =
      "\xEF\xBB\xBF \n[ {\"text\": \"o[n,e]\"},\n{\"a\": [{}, \"]\"], \"text\": "
      "\"t\\\"w}\\\\\"}\n,3,{\"text\":\"\\u00e9\"} ]\n ";
  for (const std::string& path :
       {folder.write("a.json", array), folder.write("a.json.gz", gzip(array)),
        folder.write("a.jsonl.zst", zstd(array))}) {
    EXPECT_THAT(read(path, OnBadInput::kSkip), ElementsAre("o[n,e]", "t\"w}\\", "é")) << path;
    EXPECT_EQ(report.skipped(BadInput::kBadJson), 1);
    EXPECT_THAT(report.messages(), ElementsAre(path + ": element 3 is not a JSON object"));
  }
  EXPECT_THAT(read(folder.write("e.json", "[{\"text\":\"x\"}]")), ElementsAre("x"));
  EXPECT_THAT(error_of<DataError>([&] { read(folder.write("none.json", " [ ] ")); }),
              HasSubstr("none.json is an empty array"));
}

TEST_F(Reading, AnArrayIsReadWithinBoundedMemory) {
  // Elements on both sides of the buffer's size, and one that is far beyond the limit.
  std::string array = "[";
  std::vector<std::string> texts;
  for (int i = 0; i < 400; ++i) {
    texts.push_back(random_text(static_cast<size_t>(i) * 37, static_cast<uint32_t>(i)));
    array += nlohmann::json{{"text", texts.back()}}.dump() + (i % 2 ? ",\n" : " , ");
  }
  array += "{\"text\": \"" + std::string(24'000'000, '\\') + "\"}, {\"text\": \"last\"}]";
  const std::string path = folder.write("a.json", array);
  texts.erase(texts.begin()); // empty
  texts.push_back("last");
  EXPECT_EQ(read(path, OnBadInput::kSkip, 100'000), texts);
  EXPECT_EQ(report.skipped(BadInput::kLongLine), 1);
  EXPECT_THAT(report.messages(), ElementsAre(path + ": element 401 has 24000012 bytes, more than "
                                                    "dataset.max_line_bytes=100000"));
  const auto source = open_source(path);
  RecordReader records(*source, 100'000, path);
  std::string_view record;
  while (records.next(record) != RecordReader::Status::kEnd)
    EXPECT_LE(records.memory_bytes(), size_t{2} << 20);
}

TEST_F(Reading, EscapesAcrossTheBuffersEndKeepTheLimit) {
  for (const char* lead : {"", " ", "  ", "   "}) { // the buffer ends within a pair, or behind one
    const auto source = open_source(folder.write(
        "a.json", std::string("[") + lead + "\"" + std::string(1000, '\\') + "x\", \"last\"]"));
    RecordReader records(*source, 16, "a.json", RecordReader::Form::kDetect, 32);
    std::string_view record;
    EXPECT_EQ(records.next(record), RecordReader::Status::kTooLong);
    EXPECT_EQ(records.record_bytes(), 1003);
    EXPECT_EQ(records.next(record), RecordReader::Status::kRecord);
    EXPECT_EQ(record, "\"last\"");
    EXPECT_EQ(records.next(record), RecordReader::Status::kEnd);
    EXPECT_LE(records.memory_bytes(), size_t{34});
  }
}

TEST_F(Reading, AParquetReaderThatFailsIsNotABadFile) {
  const std::string file = folder.write("a.parquet", "PAR1");
  const auto reader = [&](const std::string& script) {
    const std::filesystem::path program = folder.write("reader", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return open_parquet(file, {"text"}, {}, program);
  };
  std::string buffer(100, '\0');
  const auto whole = reader("echo '{}'");
  EXPECT_EQ(whole->consumed_bytes(), 0);
  EXPECT_EQ(whole->read(buffer.data(), buffer.size()), 3u);
  EXPECT_EQ(whole->consumed_bytes(), 4);
  const auto failure = [&](const std::string& script) -> std::pair<bool, std::string> {
    const auto source = reader("echo '{}'; " + script);
    EXPECT_EQ(source->read(buffer.data(), buffer.size()), 3u) << "what came before is handed out";
    try {
      source->read(buffer.data(), buffer.size());
    } catch (const DataError& error) {
      return {true, error.what()};
    } catch (const Error& error) {
      return {false, error.what()};
    }
    return {false, "no error"};
  };
  EXPECT_EQ(failure("echo cut >&2; exit 1"),
            std::pair(true, file + " is not a valid Parquet file: cut"));
  EXPECT_EQ(
      failure("echo no memory >&2; exit 3"),
      std::pair(false, file + " cannot be read: pentatron-parquet ended with code 3: no memory"));
  EXPECT_THAT(failure("echo no library >&2; exit 127"),
              ::testing::Pair(false, AllOf(HasSubstr("code 127: no library"),
                                           HasSubstr("try: scripts/parquet.sh"))));
  EXPECT_EQ(failure("kill -9 $$"),
            std::pair(false, file + " cannot be read: pentatron-parquet was ended by signal 9"));
}

TEST_F(Reading, AMalformedArrayKeepsWhatCameBefore) {
  const std::string one = "{\"text\": \"one\"}";
  for (const auto& [rest, reason] : std::vector<std::pair<std::string, std::string>>{
           {",", "the file ends before element 2"},
           {",]", "a comma stands before its end"},
           {",,{}]", "element 2 is empty"},
           {",{\"text\": \"t", "the file ends in element 2"},
           {",{\"text\": \"t\\", "the file ends in element 2"},
           {"] x", "something follows its end"}}) {
    const std::string path = folder.write("a.json", "[" + one + rest);
    EXPECT_THAT(read(path, OnBadInput::kSkip), ElementsAre("one")) << rest;
    EXPECT_EQ(report.skipped(BadInput::kBrokenFile), 1) << rest;
    EXPECT_THAT(error_of<DataError>([&] { read(path); }),
                AllOf(HasSubstr("a.json is not a valid JSON array"), HasSubstr(reason)));
  }
}

TEST_F(Reading, DamagedArchivesKeepTheirWholeJsonLinesOnly) {
  std::string lines;
  for (int i = 0; i < 20'000; ++i)
    lines += nlohmann::json{{"text", random_text(50, static_cast<uint32_t>(i))}}.dump() + "\n";
  const std::string packed = gzip(lines);
  const std::string path = folder.write("a.jsonl.gz", packed.substr(0, packed.size() / 2));
  const std::vector<std::string> kept = read(path, OnBadInput::kSkip);
  EXPECT_GT(kept.size(), 5'000u);
  EXPECT_LT(kept.size(), 15'000u);
  for (size_t i = 0; i < kept.size(); ++i)
    ASSERT_EQ(kept[i], random_text(50, static_cast<uint32_t>(i)));
  EXPECT_EQ(report.skipped(BadInput::kBrokenFile), 1);
  EXPECT_THAT(error_of<DataError>([&] { read(path); }),
              HasSubstr("ends in the middle of its gzip stream"));
  read(folder.write("b.txt.gz", packed.substr(0, packed.size() / 2)), OnBadInput::kSkip);
  EXPECT_EQ(report.documents, 0);
}

TEST_F(Reading, WhatALackOfDescriptorsKeepsFromBeingReadIsNoBadInput) {
  const std::string path = folder.write("a.jsonl", "{\"text\": \"one\"}\n");
  for (const std::string& given : {path, folder.string()}) {
    std::string said;
    {
      const pentatron::test::FewDescriptors none(0);
      said = error_of<OutOfDescriptors>([&] { read(given, OnBadInput::kSkip); });
    }
    EXPECT_THAT(said, AllOf(HasSubstr("cannot open " + given + ":"), HasSubstr("try: ulimit -n")));
    EXPECT_EQ(report.skipped(BadInput::kBrokenFile), 0);
  }
}

TEST_F(Reading, FoldersAreReadInTheOrderOfTheirPaths) {
  folder.write("d/b.txt", "2");
  folder.write("d/a/z.jsonl", "{\"text\":\"1\"}");
  folder.write("d/c.md.zst", zstd("3"));
  folder.write("d/e.json.gz", gzip("{\"text\":\"4\"}"));
  folder.write("d/picture.png", "no");
  folder.write("d/.hidden.txt", "no");
  folder.write("d/.git/a.txt", "no");
  EXPECT_THAT(read(folder.string() + "/d"), ElementsAre("1", "2", "3", "4"));
  EXPECT_EQ(find_input_files({folder.string() + "/d"}).ignored, 1);
  EXPECT_THAT(error_of<DataError>([&] { find_input_files({folder.string() + "/none"}); }),
              HasSubstr("does not exist"));
  folder.write("p/picture.png", "no");
  EXPECT_THAT(error_of<DataError>([&] { find_input_files({folder.string() + "/p"}); }),
              HasSubstr("contains no text files (1 file of other"));
}

TEST_F(Reading, LinesOfTabSeparatedValuesAreObjects) {
  const auto read = [&](const std::string& text, const std::vector<std::string>& keys) {
    const InputFile file{.path = folder.write("a.tsv", text), .format = FileFormat::kTsv};
    const auto source = open_input(file, keys);
    std::string all, buffer(7, ' '); // pieces end anywhere
    while (const size_t n = source->read(buffer.data(), buffer.size())) all.append(buffer, 0, n);
    return all;
  };
  EXPECT_EQ(
      read("\xEF\xBB\xBFid\t#1 String\r\n7\tsaid \"no\" \\ \x01\r\n\n8\n9\ta\tmore", {"id"}),
      "\n{\"id\": \"7\", \"#1 String\": \"said \\\"no\\\" \\\\ \\u0001\"}\n\n{\"id\": \"8\"}\n"
      "{\"id\": \"9\", \"#1 String\": \"a\"}\n");
  EXPECT_EQ(read("gj04\t1\n*\t0\tx\n", {"2"}),
            "{\"1\": \"gj04\", \"2\": \"1\"}\n{\"1\": \"*\", \"2\": \"0\", \"3\": \"x\"}\n");
  EXPECT_EQ(read("", {"id"}), "");
  EXPECT_EQ(read("id\ttext\n", {"id"}), "\n");
  EXPECT_THAT(this->read(folder.write("b.tsv.gz", gzip("text\tn\none\t1\ntwo\t2\n"))),
              ElementsAre("one", "two"));
}

TEST(JsonLine, GivesTextsOrTokenIds) {
  TextOrIds document;
  const auto read = [&](const std::string& record) {
    return read_text_or_ids(record, "a", 100, document);
  };
  EXPECT_FALSE(read(R"({"a": [1, 99, 0], "b": "c"})"));
  EXPECT_TRUE(document.is_ids);
  EXPECT_THAT(document.ids, ElementsAre(1, 99, 0));
  EXPECT_FALSE(read(R"({"a": "text"})"));
  EXPECT_FALSE(document.is_ids);
  EXPECT_TRUE(document.ids.empty());
  EXPECT_EQ(document.text, "text");
  EXPECT_FALSE(read(R"({"a": []})"));
  EXPECT_TRUE(document.is_ids && document.ids.empty());
  for (const auto& [record, said] : std::map<std::string, std::string>{
           {R"({"a": [1, 100]})", "the token id 100, outside the vocabulary of 100, under the key"},
           {R"({"a": [-1]})", "the token id -1, outside"},
           {R"({"a": [1.5]})", "neither a string nor a list of token ids under the key \"a\""},
           {R"({"a": ["x"]})", "neither a string nor a list"},
           {R"({"a": 7})", "has no string under the key"},
           {R"({"b": 7})", "has no key \"a\""}})
    EXPECT_THAT(read(record).value().reason, HasSubstr(said)) << record;
}

TEST(JsonLine, TakesTheLastOfAKeyWhateverSurroundsIt) {
  std::string text;
  EXPECT_EQ(
      extract_string(
          R"({"a":[1,{"text":"no"},"}"],"text":"x\"\\\/\b\f\n\r\t\u0041\ud83d\ude42","z":null})",
          "text", text),
      JsonField::kFound);
  EXPECT_EQ(text, "x\"\\/\b\f\n\r\tA🙂");
  EXPECT_EQ(extract_string(R"({"text":"a","t\u0065xt":"b"})", "text", text), JsonField::kFound);
  EXPECT_EQ(text, "b");
  EXPECT_EQ(extract_string(R"({"a":"text"})", "text", text), JsonField::kMissing);
  EXPECT_EQ(extract_string(R"({"text":["a"]})", "text", text), JsonField::kNotString);
  EXPECT_EQ(extract_string("{\"text\":\"a\"} x", "text", text), JsonField::kMalformed);
  EXPECT_EQ(extract_string(R"({"text":"\ud83d"})", "text", text), JsonField::kMalformed);
  EXPECT_EQ(extract_string("[" + std::string(100'000, '['), "text", text), JsonField::kMalformed);
  EXPECT_EQ(extract_string("{\"a\":" + std::string(100'000, '['), "text", text),
            JsonField::kMalformed);
}

TEST(JsonLine, AgreesWithAGeneralParserOnDamagedLines) {
  const std::string seed_line =
      R"({"id": -12.5e+3, "text": "a\u00e9\n\\ \"quoted\" 日本", "meta": {"k": [true, false, null, 0.5, {}], "text": "in"}, "z": []})";
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 40'000; ++i) {
    std::string line = seed_line;
    for (uint32_t edits = random() % 3; edits > 0; --edits) {
      const size_t at = random() % line.size();
      switch (random() % 3) {
      case 0:
        line[at] = "{}[]\",:\\u0e-+.tfn 19a"[random() % 21];
        break;
      case 1:
        line.erase(at, 1 + random() % 3);
        break;
      default:
        line.insert(at, 1, "{}[]\",:\\u0e-+.tfn 19a"[random() % 21]);
      }
      if (line.empty()) line = " ";
    }
    if (find_invalid_utf8(line) != std::string_view::npos) continue;
    std::string text;
    const JsonField got = extract_string(line, "text", text);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    // The general parser refuses numbers outside double's range as well; no edit here makes one but
    // through 1e999.
    if (!json.is_object()) {
      EXPECT_EQ(got, JsonField::kMalformed) << line;
    } else if (!json.contains("text")) {
      EXPECT_EQ(got, JsonField::kMissing) << line;
    } else if (!json["text"].is_string()) {
      EXPECT_EQ(got, JsonField::kNotString) << line;
    } else {
      ++accepted;
      EXPECT_EQ(got, JsonField::kFound) << line;
      EXPECT_EQ(text, json["text"].get<std::string>()) << line;
    }
  }
  EXPECT_GT(accepted, 5'000);
}

} // namespace
} // namespace pentatron::data
