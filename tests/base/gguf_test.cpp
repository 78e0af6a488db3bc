#include "pentatron/base/gguf.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Shape = std::vector<int64_t>;

const std::string kGoldenGguf = std::string(PENTATRON_TEST_DATA) + "/gguf/python.gguf";

std::vector<float> floats(const GgufTensor& tensor) {
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(float));
  return out;
}

TEST(Gguf, ReadsTheMetadataThatThePythonPackageWrote) {
  const GgufFile file(kGoldenGguf);
  const GgufKeys& keys = file.metadata();
  EXPECT_EQ(keys.text("general.architecture"), "test");
  EXPECT_EQ(keys.integer("a.u8"), 255);
  EXPECT_EQ(keys.integer("a.i8"), -128);
  EXPECT_EQ(keys.integer("a.u16"), 65535);
  EXPECT_EQ(keys.integer("a.i16"), -32768);
  EXPECT_EQ(keys.integer("a.u32"), 4294967295);
  EXPECT_EQ(keys.integer("a.i32"), INT32_MIN);
  EXPECT_EQ(keys.integer("a.i64"), INT64_MIN);
  EXPECT_EQ(std::get<uint64_t>(*keys.find("a.u64")), UINT64_MAX);
  EXPECT_EQ(keys.find_number("a.f32"), 0.1F);
  EXPECT_EQ(keys.find_number("a.f64"), 0.1);
  EXPECT_EQ(keys.find_bool("a.bool"), true);
  EXPECT_EQ(keys.text("a.text"), "zw\u00f6lf\n");
  EXPECT_THAT(*keys.find_texts("a.texts"), ElementsAre("", "b", "\u00fc"));
  EXPECT_THAT(*keys.find_integers("a.integers"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*keys.find_numbers("a.numbers"), ElementsAre(0.5, -1.5));
  const auto& bools = std::get<GgufArray>(*keys.find("a.bools"));
  EXPECT_THAT(std::get<std::vector<bool>>(bools.items), ElementsAre(true, false));
  const auto& nested = std::get<GgufArray>(*keys.find("a.nested"));
  EXPECT_EQ(std::get<std::vector<GgufArray>>(nested.items).at(0).size(), 2u);
}

TEST(Gguf, ReadsTheTensorsThatThePythonPackageWrote) {
  const GgufFile file(kGoldenGguf);
  ASSERT_NE(file.find("cube"), nullptr);
  EXPECT_EQ(file.find("cube")->shape, (Shape{2, 3, 4}));
  EXPECT_THAT(floats(*file.find("vector")), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(name_of(file.find("integers")->type), "I32");
  const GgufTensor* q = file.find("Q4_K");
  EXPECT_EQ(q->type, GgmlType::kQ4_K);
  EXPECT_EQ(q->shape.back(), 512);
  EXPECT_EQ(q->data.size(), static_cast<size_t>(q->shape[0]) * 2 * 144);
  EXPECT_EQ(file.find("Q5"), nullptr);
}

TEST(Gguf, SaysWhichKeyIsMissingOrOfAnotherKind) {
  const GgufFile file(kGoldenGguf);
  const GgufKeys& keys = file.metadata();
  EXPECT_EQ(keys.find_integer("b"), std::nullopt);
  EXPECT_THAT(message_of([&] { keys.integer("b"); }), HasSubstr("has no 'b' in its metadata"));
  EXPECT_THAT(message_of([&] { keys.integer("a.text"); }), HasSubstr("is not an integer"));
  EXPECT_THAT(message_of([&] { keys.integer("a.bool"); }), HasSubstr("is not an integer"));
  EXPECT_THAT(message_of([&] { keys.integer("a.u64"); }), HasSubstr("is not an integer"));
  EXPECT_THAT(message_of([&] { keys.text("a.u8"); }), HasSubstr("is not a string"));
  EXPECT_THAT(message_of([&] { keys.find_texts("a.bools"); }), HasSubstr("list of strings"));
  EXPECT_THAT(message_of([&] { keys.find_integers("a.numbers"); }), HasSubstr("of integers"));
}

GgufMetadata every_type() {
  const GgufArray numbers{std::vector<int16_t>{-1, 2}};
  return {{"k.0", uint8_t{1}},
          {"k.1", int8_t{-1}},
          {"k.2", uint16_t{2}},
          {"k.3", int16_t{-2}},
          {"k.4", uint32_t{3}},
          {"k.5", int32_t{-3}},
          {"k.6", 0.5F},
          {"k.7", true},
          {"k.8", std::string("t\0u", 3)},
          {"k.9", GgufArray{std::vector<GgufArray>{numbers, {}}}},
          {"k.10", uint64_t{4}},
          {"k.11", int64_t{-4}},
          {"k.12", 0.25}};
}

TEST(Gguf, WriterGivesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.gguf";
  GgufWriter writer(path, every_type(),
                    {{"matrix", GgmlType::kF32, {2, 3}},
                     {"blocks", GgmlType::kQ8_0, {2, 64}},
                     {"empty", GgmlType::kF16, {0, 4}},
                     {"scalar", GgmlType::kF32, {}}});
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6}, scalar = {7};
  const std::vector<std::byte> blocks(136, std::byte{9});
  writer.write("scalar", std::as_bytes(std::span(scalar)));
  writer.write("blocks", std::span(blocks).subspan(100), 100);
  writer.write("blocks", std::span(blocks).first(100));
  writer.write("matrix", std::as_bytes(std::span(matrix)));
  writer.finish();
  const GgufFile file(path);
  const GgufMetadata written = every_type();
  ASSERT_EQ(file.metadata().all().size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    EXPECT_EQ(file.metadata().all()[i].first, written[i].first);
    EXPECT_EQ(file.metadata().all()[i].second.index(), i);
    EXPECT_TRUE(file.metadata().all()[i].second == written[i].second) << i;
  }
  EXPECT_EQ(file.find("matrix")->shape, (Shape{2, 3}));
  EXPECT_EQ(floats(*file.find("matrix")), matrix);
  EXPECT_EQ(file.find("scalar")->shape, Shape{});
  EXPECT_EQ(file.find("empty")->shape, (Shape{0, 4}));
  EXPECT_TRUE(std::ranges::equal(file.find("blocks")->data, blocks));
  EXPECT_EQ(file.file().size() % GgufWriter::kAlignment, 0u);
}

TEST(Gguf, WriterLeavesNothingBehindIfItDoesNotFinish) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.gguf";
  const auto unfinished = [&] {
    GgufWriter writer(path, {}, {{"a", GgmlType::kF32, {1}}});
    writer.finish();
  };
  EXPECT_THAT(message_of(unfinished), HasSubstr("only 0 of the 4 bytes of tensor 'a'"));
  const std::vector<std::byte> bytes(8);
  EXPECT_THAT(message_of([&] {
                GgufWriter writer(path, {}, {{"a", GgmlType::kF32, {1}}});
                writer.write("a", bytes);
              }),
              HasSubstr("has 4 bytes, but 8 were written"));
  const auto writes = [&](const GgufMetadata& metadata, const std::vector<GgufTensorSpec>& specs) {
    return message_of([&] { GgufWriter(path, metadata, specs); });
  };
  EXPECT_THAT(writes({{"k", true}, {"k", true}}, {}), HasSubstr("'k' twice"));
  EXPECT_THAT(writes({}, {{"a", GgmlType::kQ8_0, {33}}}), HasSubstr("'a' of Q8_0 and shape [33]"));
  EXPECT_THAT(writes({}, {{"a", GgmlType::kF32, {1}}, {"a", GgmlType::kF32, {1}}}),
              HasSubstr("beside another of that name"));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

/// A file as bytes, written by hand.
struct Bytes {
  std::string data = "GGUF";
  template <class T> Bytes& put(T value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& text(std::string_view t) {
    put<uint64_t>(t.size());
    data += t;
    return *this;
  }
  Bytes& tensor(std::string_view name, const std::vector<uint64_t>& extents, uint32_t type,
                uint64_t offset) {
    text(name).put<uint32_t>(static_cast<uint32_t>(extents.size()));
    for (const uint64_t e : extents) put(e);
    return put(type).put(offset);
  }
  Bytes& data_section(size_t bytes) {
    data.resize((data.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
  std::string error() const {
    return message_of([&] { parse_gguf(std::as_bytes(std::span(data)), "f"); });
  }
};
Bytes head(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
  Bytes bytes;
  bytes.put(version).put(tensors).put(entries);
  return bytes;
}

TEST(Gguf, RefusesHeadsThatAreNotItsOwn) {
  EXPECT_THAT(Bytes{"GGML"}.error(), HasSubstr("is not a GGUF file"));
  EXPECT_THAT(Bytes{"GG"}.error(), HasSubstr("is not a GGUF file"));
  EXPECT_THAT(head(0, 0, 1).error(), HasSubstr("is GGUF version 1"));
  EXPECT_THAT(head(0, 0, 0x03000000).error(), HasSubstr("big-endian"));
  EXPECT_EQ(head(0, 0, 2).error(), "");
  EXPECT_EQ(head(0, 0, 3).error(), "");
  EXPECT_THAT(head(UINT64_MAX, 0).error(), HasSubstr("more than fit in the file"));
  EXPECT_THAT(head(0, UINT64_MAX).error(), HasSubstr("more than fit in the file"));
}

TEST(Gguf, RefusesDamagedMetadata) {
  const auto entry = [](std::string_view key) {
    Bytes bytes = head(0, 1);
    bytes.text(key);
    return bytes;
  };
  EXPECT_THAT(entry("").put<uint32_t>(0).put<uint64_t>(0).error(), HasSubstr("has 0 bytes"));
  EXPECT_THAT(entry("\xff\xff").put<uint32_t>(0).put<uint64_t>(0).error(),
              HasSubstr("not valid UTF-8"));
  EXPECT_THAT(entry("k").put<uint32_t>(13).put<uint8_t>(0).error(), HasSubstr("value type 13"));
  EXPECT_THAT(entry("k").put<uint32_t>(7).put<uint8_t>(2).error(),
              HasSubstr("is 2, but must be true"));
  EXPECT_THAT(entry("k").put<uint32_t>(8).put<uint64_t>(9).error(), HasSubstr("is truncated in k"));
  EXPECT_THAT(entry("k").put<uint32_t>(9).put<uint32_t>(4).put<uint64_t>(UINT64_MAX / 2).error(),
              HasSubstr("more than fit in the file"));
  Bytes deep = entry("k");
  deep.put<uint32_t>(9);
  for (int i = 0; i < 6; ++i) deep.put<uint32_t>(9).put<uint64_t>(1);
  EXPECT_THAT(deep.put<uint64_t>(0).put<uint64_t>(0).error(), HasSubstr("lists nested more than"));
  Bytes twice = head(0, 2);
  for (int i = 0; i < 2; ++i) twice.text("key").put<uint32_t>(4).put<uint32_t>(1);
  EXPECT_THAT(twice.error(), HasSubstr("the metadata key 'key' twice"));
  EXPECT_THAT(entry("general.alignment").put<uint32_t>(4).put<uint32_t>(24).error(),
              HasSubstr("not a power of two"));
}

TEST(Gguf, RefusesTensorsThatAreNotInTheFile) {
  const auto one = [](const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
    Bytes bytes = head(1, 0);
    return bytes.tensor("t", extents, type, offset).data_section(64).error();
  };
  EXPECT_EQ(one({16}, 0, 0), "");
  EXPECT_EQ(one({8}, 0, 32), "");
  EXPECT_THAT(one({17}, 0, 0), HasSubstr("ends after the end of the file"));
  EXPECT_THAT(one({1}, 0, 64), HasSubstr("ends after the end of the file"));
  EXPECT_THAT(one({1}, 0, uint64_t{1} << 63), HasSubstr("ends after the end of the file"));
  EXPECT_THAT(one({1}, 0, 16), HasSubstr("not a multiple of the alignment"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, 0, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(one({33}, 8, 0), HasSubstr("invalid shape"));
  EXPECT_THAT(one({UINT64_MAX}, 0, 0), HasSubstr("invalid shape"));
  EXPECT_THAT(one({uint64_t{1} << 32, uint64_t{1} << 31}, 0, 0), HasSubstr("invalid shape"));
  EXPECT_EQ(one({5}, 77, 0), ""); // known by name only
}

TEST(Gguf, RefusesTensorsThatShareBytesOrNames) {
  const auto two = [](std::string_view name, uint64_t offset) {
    Bytes bytes = head(2, 0);
    bytes.tensor("a", {16}, 0, 0).tensor(name, {8}, 0, offset);
    return bytes.data_section(128).error();
  };
  EXPECT_EQ(two("b", 64), "");
  EXPECT_THAT(two("b", 32), HasSubstr("'a' and 'b' of f overlap"));
  EXPECT_THAT(two("a", 64), HasSubstr("the tensor 'a' twice"));
}

TEST(Gguf, EveryShorterFileIsRefused) {
  std::ifstream stream(std::string(PENTATRON_TEST_DATA) + "/fuzz/gguf_fuzz/tiny", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  ASSERT_EQ(Bytes{whole}.error(), "");
  const size_t padding = 32 - 34 % 32; // behind the last tensor, of 34 bytes
  for (size_t n = 0; n < whole.size() - padding; ++n)
    ASSERT_NE(Bytes{whole.substr(0, n)}.error(), "") << n;
}

TEST(Gguf, IsRecognisedByItsFirstBytes) {
  EXPECT_TRUE(is_gguf(kGoldenGguf));
  EXPECT_FALSE(is_gguf(std::string(PENTATRON_TEST_DATA) + "/gguf/make.py"));
  EXPECT_FALSE(is_gguf(std::string(PENTATRON_TEST_DATA) + "/gguf"));
}

} // namespace
} // namespace pentatron
