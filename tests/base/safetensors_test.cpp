#include "pentatron/base/safetensors.h"

#include <cstring>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Shape = std::vector<int64_t>;

template <class T> std::vector<T> values(const SafeTensor& tensor) {
  std::vector<T> out(tensor.data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(T));
  return out;
}

template <class T> std::span<const std::byte> as_bytes(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

const std::string kGolden = std::string(PENTATRON_TEST_DATA) + "/safetensors/numpy.safetensors";

TEST(Safetensors, ReadsWhatThePythonPackageWrote) {
  const SafetensorsFile file(kGolden);
  EXPECT_EQ(file.tensors().size(), 15u);
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "np"), Pair("note", "a \"b\"")));
  EXPECT_EQ(file.at("scalar").shape, Shape{});
  EXPECT_THAT(values<double>(file.at("scalar")), ElementsAre(2.5));
  EXPECT_EQ(file.at("empty").shape, (Shape{0, 3}));
  EXPECT_EQ(file.at("empty").data.size(), 0u);
  EXPECT_EQ(file.at("f64").shape, (Shape{2, 2}));
  EXPECT_THAT(values<double>(file.at("f64")), ElementsAre(1.0, -2.5, 3.25, 1e300));
  EXPECT_EQ(file.at("f32").shape, (Shape{2, 3}));
  EXPECT_THAT(values<float>(file.at("f32")), ElementsAre(0, 0.25F, 0.5F, 0.75F, 1, 1.25F));
  EXPECT_EQ(file.at("f16").dtype, SafeDtype::kF16);
  EXPECT_THAT(values<uint16_t>(file.at("f16")), ElementsAre(0x3800, 0xBE00, 0x7BFF));
  EXPECT_THAT(values<int64_t>(file.at("i64")), ElementsAre(INT64_MIN, INT64_MAX));
  EXPECT_THAT(values<int32_t>(file.at("i32")), ElementsAre(-1, INT32_MAX));
  EXPECT_THAT(values<int16_t>(file.at("i16")), ElementsAre(-32768, 5));
  EXPECT_THAT(values<int8_t>(file.at("i8")), ElementsAre(-128, 127, 0));
  EXPECT_THAT(values<uint8_t>(file.at("u8")), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(values<uint16_t>(file.at("u16")), ElementsAre(65535));
  EXPECT_THAT(values<uint32_t>(file.at("u32")), ElementsAre(UINT32_MAX));
  EXPECT_THAT(values<uint64_t>(file.at("u64")), ElementsAre(UINT64_MAX));
  EXPECT_THAT(values<uint8_t>(file.at("bool")), ElementsAre(1, 0, 1));
  EXPECT_THAT(values<int32_t>(file.at("a.b/c \u00e9")), ElementsAre(7));
}

TEST(Safetensors, NamesTheNearestTensor) {
  const SafetensorsFile file(kGolden);
  EXPECT_EQ(file.find("f23"), nullptr);
  EXPECT_THAT(message_of([&] { file.at("scalr"); }), HasSubstr("try: scalar"));
}

TEST(Safetensors, WriterGivesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<double> wide = {1, 2, 3};
  const std::vector<uint8_t> narrow = {9, 8, 7, 6, 5};
  const std::vector<float> middle = {0.5F};
  const SafeTensors tensors = {{"wide", {SafeDtype::kF64, {3, 1}, as_bytes(wide)}},
                               {"a", {SafeDtype::kF8E4M3, {5}, as_bytes(narrow)}},
                               {"\"q\"\n", {SafeDtype::kF32, {}, as_bytes(middle)}},
                               {"none", {SafeDtype::kBF16, {0}, {}}}};
  write_safetensors(path, tensors, {{"k", "v"}});
  const SafetensorsFile file(path);
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("k", "v")));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(file.at(name).dtype, tensor.dtype);
    EXPECT_EQ(file.at(name).shape, tensor.shape);
    EXPECT_EQ(values<uint8_t>(file.at(name)), values<uint8_t>(tensor));
    const auto address = reinterpret_cast<uintptr_t>(file.at(name).data.data());
    EXPECT_EQ(address % size_of(tensor.dtype), 0u) << name;
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.at("wide").data.data()) % 64, 0u) << "the first";
}

TEST(Safetensors, WriterTakesPartsInAnyOrderAndWantsAllOfThem) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<int32_t> v = {1, 2, 3, 4};
  {
    SafetensorsWriter writer(path, {{"a", SafeDtype::kI32, {4}}, {"b", SafeDtype::kI32, {2}}});
    writer.write("b", as_bytes(v).first(8));
    writer.write("a", as_bytes(v).last(8), 8);
    EXPECT_THAT(message_of([&] { writer.finish(); }),
                HasSubstr("only 8 of the 16 bytes of tensor 'a'"));
    EXPECT_THROW(writer.write("a", as_bytes(v), 4), Error);
    EXPECT_THROW(writer.write("c", as_bytes(v)), Error);
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.write("a", as_bytes(v).first(8));
    writer.finish();
  }
  const SafetensorsFile file(path);
  EXPECT_EQ(values<int32_t>(file.at("a")), v);
  EXPECT_THAT(values<int32_t>(file.at("b")), ElementsAre(1, 2));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x.safetensors"));
}

TEST(Safetensors, WriterRefusesWhatCannotBeRead) {
  const TemporaryFolder folder;
  const auto write = [&](std::vector<SafeTensorSpec> specs) {
    SafetensorsWriter(folder.path() / "x", std::move(specs));
  };
  EXPECT_THROW(write({{"a", SafeDtype::kF32, {1}}, {"a", SafeDtype::kF32, {1}}}), Error);
  EXPECT_THROW(write({{"a", SafeDtype::kF32, {-1}}}), Error);
  EXPECT_THROW(write({{"a", SafeDtype::kF32, {INT64_MAX, 2}}}), Error);
  EXPECT_THROW(write({{"__metadata__", SafeDtype::kF32, {1}}}), Error);
  EXPECT_THROW(write({{"\xff", SafeDtype::kF32, {1}}}), Error);
  EXPECT_THAT(names_in(folder.path()), ElementsAre());
}

/// A file with this header, spaces behind it as asked, and `data` zero bytes.
std::string file_of(std::string header, size_t data) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + std::string(data, '\0');
}

std::string problem(const std::string& content) {
  return message_of([&] { parse_safetensors(std::as_bytes(std::span(content)), "x"); });
}

struct BadHeader {
  const char* header;
  size_t data;
  const char* cause;
};
class Malformed : public ::testing::TestWithParam<BadHeader> {};
TEST_P(Malformed, IsRefused) {
  EXPECT_THAT(problem(file_of(GetParam().header, GetParam().data)), HasSubstr(GetParam().cause));
}
#define F32(offsets) R"("dtype":"F32","shape":[2],"data_offsets":)" offsets
INSTANTIATE_TEST_SUITE_P(
    Headers, Malformed,
    ::testing::Values(
        BadHeader{"{\"a\":{" F32("[0,8]") "}}", 9, "1 bytes after its last tensor"},
        BadHeader{"{\"a\":{" F32("[0,8]") "}}", 7, "ends 1 bytes after the end of the file"},
        BadHeader{"{\"a\":{" F32("[4,12]") "}}", 12, "has a gap before it"},
        BadHeader{"{\"a\":{" F32("[0,8]") "},\"b\":{" F32("[4,12]") "}}", 12, "overlaps another"},
        BadHeader{"{\"a\":{" F32("[0,8]") "},\"b\":{" F32("[0,8]") "}}", 8, "overlaps another"},
        BadHeader{"{\"a\":{" F32("[0,8]") "},\"b\":{" F32("[12,20]") "}}", 20, "has a gap"},
        BadHeader{"{\"a\":{" F32("[0,4]") "}}", 4, "has 4 bytes of data, but its shape"},
        BadHeader{"{\"a\":{" F32("[8,0]") "}}", 8, "invalid data_offsets"},
        BadHeader{"{\"a\":{" F32("[-8,0]") "}}", 8, "invalid data_offsets"},
        BadHeader{"{\"a\":{" F32("[0,8,16]") "}}", 8, "invalid data_offsets"},
        BadHeader{"{\"a\":{" F32("[0,18446744073709551615]") "}}", 8, "64-bit integer"},
        BadHeader{"{\"a\":{" F32("[0.0,8.0]") "}}", 8, "64-bit integer"},
        BadHeader{"{\"a\":{" F32("[0,8]") "},\"a\":{" F32("[8,16]") "}}", 16, "appears twice"},
        BadHeader{"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "appears twice"},
        BadHeader{"{\"a\":{\"dtype\":\"F31\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
                  "dtype 'F31'"},
        BadHeader{"{\"a\":{\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "a string"},
        BadHeader{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0,
                  "invalid shape"},
        BadHeader{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],"
                  "\"data_offsets\":[0,0]}}",
                  0, "invalid shape"},
        BadHeader{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,0],"
                  "\"data_offsets\":[0,0]}}",
                  0, "invalid shape"},
        BadHeader{"{\"a\":{\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0, "has no \"dtype\""},
        BadHeader{"{\"a\":{" F32("[0,8]") ",\"x\":1}}", 8, "members other than"},
        BadHeader{"{\"a\":[]}", 0, "not described by a JSON object"},
        BadHeader{"{\"__metadata__\":{\"a\":1}}", 0, "is not a string"},
        BadHeader{"{\"__metadata__\":[]}", 0, "is not an object"},
        BadHeader{" {}", 0, "does not begin with {"}, BadHeader{"[]", 0, "does not begin with {"},
        BadHeader{"", 0, "does not begin with {"}, BadHeader{"{", 0, "not valid JSON"},
        BadHeader{"{} x", 0, "not valid JSON"}, BadHeader{"{\"a\":\"\xff\"}", 0, "not valid JSON"},
        BadHeader{"{\"a\":[[[[[[]]]]]]}", 0, "nested more than"}));

TEST(Safetensors, RefusesImpossibleLengths) {
  EXPECT_THAT(problem(""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(problem("1234567"), HasSubstr("has 7 bytes"));
  EXPECT_THAT(problem(std::string(8, '\xff')), HasSubstr("the limit of 100 MB"));
  EXPECT_THAT(problem(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("more than the file has"));
  EXPECT_EQ(problem(file_of("{}      ", 0)), "");
}

// Thousands of damaged copies of a good file: each is read or refused with DataError, and what is
// read lies inside.
TEST(Safetensors, NoMutationDoesAnyHarm) {
  std::ifstream stream(kGolden, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(stream), {}};
  ASSERT_GT(good.size(), 100u);
  uint64_t header_size = 0;
  std::memcpy(&header_size, good.data(), 8);
  const std::vector<std::string> pieces = {
      "{",   "}", "[", "]",       ",",    ":",     "-", "\"",          "4294967296",
      "F64", "0", "9", "\\u0000", "null", "1e999", " ", "__metadata__"};
  const Stream random(7, "safetensors mutations");
  int refused = 0;
  int accepted = 0;
  for (uint64_t trial = 0; trial < 20000; ++trial) {
    std::string bad = good;
    const uint64_t edits = 1 + random.below(4, trial, 0);
    for (uint64_t e = 0; e < edits; ++e) {
      const uint64_t base = 10 * (e + 1);
      const uint64_t at = random.below(
          random.below(4, trial, base) != 0 ? header_size + 8 : bad.size(), trial, base + 1);
      if (at >= bad.size()) continue;
      const std::string& piece = pieces[random.below(pieces.size(), trial, base + 2)];
      switch (random.below(6, trial, base + 3)) {
      case 0:
        bad[at] = static_cast<char>(random.below(256, trial, base + 4));
        break;
      case 1:
        bad.insert(at, piece);
        break;
      case 2:
        bad.erase(at, 1 + random.below(16, trial, base + 4));
        break;
      case 3:
        bad.replace(at, std::min(piece.size(), bad.size() - at), piece);
        break;
      case 4:
        bad[at] = static_cast<char>('0' + random.below(10, trial, base + 4));
        break;
      default:
        bad.resize(at + random.below(64, trial, base + 4));
      }
    }
    // Half of the time the length is made to fit again, so that damage reaches the parts behind it.
    if (random.below(2, trial, 1) == 0 && bad.size() >= 8) {
      const uint64_t length = header_size + bad.size() - good.size();
      std::memcpy(bad.data(), &length, 8);
    }
    const auto bytes = std::as_bytes(std::span(bad));
    try {
      const ParsedSafetensors parsed = parse_safetensors(bytes, "mutation");
      size_t total = 0;
      for (const auto& [name, tensor] : parsed.tensors) {
        ASSERT_GE(tensor.data.data(), bytes.data());
        ASSERT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
        total += tensor.data.size();
      }
      ASSERT_LE(total, bytes.size());
      ++accepted;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_GT(accepted, 100); // changed data, names or metadata are still good files
}

TEST(SafetensorsFolder, ReadsOneFileOrAnIndex) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { SafetensorsFolder x(folder.path()); }),
              HasSubstr("contains neither"));
  const std::vector<int32_t> one = {1};
  const std::vector<int32_t> two = {2};
  write_safetensors(folder.path() / "m-1.safetensors",
                    {{"a", {SafeDtype::kI32, {1}, as_bytes(one)}}});
  write_safetensors(folder.path() / "m-2.safetensors",
                    {{"b", {SafeDtype::kI32, {1}, as_bytes(two)}}});
  const auto index = folder.path() / "model.safetensors.index.json";
  const auto with_map = [&](const std::string& map) {
    write_file_atomically(index, "{\"metadata\":{\"total_size\":8},\"weight_map\":" + map + "}");
    return message_of([&] {
      const SafetensorsFolder read(folder.path());
      EXPECT_EQ(read.tensors().size(), 2u);
      EXPECT_EQ(values<int32_t>(read.at("a")), one);
      EXPECT_EQ(values<int32_t>(read.at("b")), two);
      read.check_sizes();
    });
  };
  EXPECT_EQ(with_map(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})"), "");
  EXPECT_THAT(with_map(R"({"a":"../m-1.safetensors"})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with_map(R"({"a":"/etc/passwd"})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with_map(R"({"a":"sub/x"})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with_map(R"({"a":".."})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with_map(R"({"a":"m-1.safetensors\u0000"})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with_map(R"({"a":3})"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with_map(R"({"a":"none.safetensors"})"), HasSubstr("cannot open"));
  EXPECT_THAT(with_map(R"({"a":"m-2.safetensors"})"), HasSubstr("has no tensor 'a'"));
  EXPECT_THAT(with_map("[]"), HasSubstr("has no \"weight_map\""));
  write_safetensors(folder.path() / "model.safetensors",
                    {{"c", {SafeDtype::kI32, {1}, as_bytes(two)}}});
  EXPECT_NE(SafetensorsFolder(folder.path()).find("c"), nullptr);
}

} // namespace
} // namespace pentatron
