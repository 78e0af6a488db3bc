#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/json.h"
#include "pentatron/data/indexed/indexed_dataset.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "tests/data/data_files.h"
#include "tests/data/megatron_files.h"
#include "tests/support/few_descriptors.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> tokens_of(const IndexedDataset& data, int64_t sequence) {
  const IndexedDataset::Sequence s = data.sequence(sequence);
  std::vector<int64_t> tokens(static_cast<size_t>(s.length));
  data.read_tokens(s.first_token, s.length, tokens.data());
  return tokens;
}

template <class T> std::vector<T> items_of(const IndexedDataset& data) {
  std::vector<T> items(static_cast<size_t>(data.num_tokens()));
  data.read_items(0, std::as_writable_bytes(std::span(items)));
  return items;
}

class MegatronCorpus : public testing::TestWithParam<const char*> {
 protected:
  const std::string prefix = megatron_file(GetParam());
  const Json expected = read_json(megatron_file("expected.json"))["indexed"][GetParam()];
};

TEST_P(MegatronCorpus, IsReadAsMegatronReadsIt) {
  const IndexedDataset data(prefix);
  EXPECT_EQ(data.lengths(0, data.num_sequences()),
            expected["sequence_lengths"].get<std::vector<int32_t>>());
  std::vector<int64_t> documents(static_cast<size_t>(data.num_documents() + 1));
  data.read_document_indices(0, documents);
  EXPECT_EQ(documents, expected["document_indices"].get<std::vector<int64_t>>());
  EXPECT_EQ(tokens_of(data, 0), expected["first"].get<std::vector<int64_t>>());
  EXPECT_EQ(tokens_of(data, data.num_sequences() - 1),
            expected["last"].get<std::vector<int64_t>>());
  EXPECT_FALSE(data.has_modes());
}

TEST_P(MegatronCorpus, IsWrittenByteForByteFromTheSameIds) {
  const IndexedDataset data(prefix);
  const TemporaryFolder folder;
  const std::string copy = folder.string() + "/copy";
  IndexedWriter writer(copy, {.dtype = data.dtype()});
  std::vector<int64_t> documents(static_cast<size_t>(data.num_documents() + 1));
  data.read_document_indices(0, documents);
  for (size_t d = 0; d + 1 < documents.size(); ++d) {
    for (int64_t s = documents[d]; s < documents[d + 1]; ++s) {
      const std::vector<int64_t> tokens = tokens_of(data, s);
      writer.add_sequence(std::vector<int32_t>(tokens.begin(), tokens.end()));
    }
    writer.end_document();
  }
  EXPECT_FALSE(std::filesystem::exists(copy + ".bin"));
  writer.commit();
  EXPECT_EQ(content_of(copy + ".bin"), content_of(prefix + ".bin"));
  EXPECT_EQ(content_of(copy + ".idx"), content_of(prefix + ".idx"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

INSTANTIATE_TEST_SUITE_P(Both, MegatronCorpus, testing::Values("corpus_a", "corpus_b"));

TEST(IndexedDtype, HasSixteenBitsBelow65500Tokens) {
  EXPECT_EQ(dtype_for_vocabulary(65499), IndexedDtype::kU16);
  EXPECT_EQ(dtype_for_vocabulary(65500), IndexedDtype::kI32);
}

class Indexed : public testing::Test {
 protected:
  /// Documents of one sequence each; a length of -1 is a document without one.
  std::string make(const std::string& name, const std::vector<int>& lengths,
                   IndexedDtype dtype = IndexedDtype::kU16, bool modes = false) {
    const std::string prefix = folder.string() + "/" + name;
    IndexedWriter writer(prefix, {.dtype = dtype, .modes = modes});
    int32_t token = 0;
    for (const int length : lengths) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < length; ++i) tokens.push_back(token++ % 100);
      if (length >= 0) writer.add_sequence(tokens, static_cast<int8_t>(length % 3));
      writer.end_document();
    }
    writer.commit();
    return prefix;
  }
  /// The error after `change` to the index.
  std::string damaged(const std::string& prefix, const std::function<void(std::string&)>& change) {
    std::string bytes = content_of(prefix + ".idx");
    change(bytes);
    folder.write("damaged.idx", bytes);
    folder.write("damaged.bin", content_of(prefix + ".bin"));
    return error_of<DataError>([&] { IndexedDataset(folder.string() + "/damaged"); });
  }
  template <class T> static auto set(size_t at, T value) {
    return [=](std::string& bytes) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  }
  TemporaryFolder folder;
};

TEST_F(Indexed, EveryDtypeHoldsItsTokens) {
  for (uint8_t code = 1; code <= 8; ++code) {
    const IndexedDtype dtype = *dtype_of_code(code);
    const IndexedDataset data(make(std::string(name_of(dtype)), {3, 0, 5}, dtype));
    EXPECT_EQ(data.dtype(), dtype);
    if (is_integer(dtype)) {
      EXPECT_THAT(tokens_of(data, 0), ElementsAre(0, 1, 2));
      EXPECT_THAT(tokens_of(data, 2), ElementsAre(3, 4, 5, 6, 7));
      continue;
    }
    EXPECT_THAT(error_of<DataError>([&] { tokens_of(data, 0); }),
                HasSubstr("cannot hold token ids"));
    if (dtype == IndexedDtype::kF64)
      EXPECT_THAT(items_of<double>(data), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    else
      EXPECT_THAT(items_of<float>(data), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  }
  EXPECT_EQ(dtype_of_code(0), std::nullopt);
  EXPECT_EQ(dtype_of_code(9), std::nullopt);
}

TEST_F(Indexed, TokensThatDoNotFitAreRefused) {
  IndexedWriter writer(folder.string() + "/a", {.dtype = IndexedDtype::kU16});
  const std::vector<int32_t> good{65535}, high{65536}, low{-1};
  writer.add_sequence(good);
  EXPECT_THAT(error_of<DataError>([&] { writer.add_sequence(high); }), HasSubstr("token 65536"));
  EXPECT_THAT(error_of<DataError>([&] { writer.add_sequence(low); }), HasSubstr("token -1"));
}

TEST_F(Indexed, EmptyDocumentsHaveNoSequence) {
  const IndexedDataset data(make("a", {-1, 2, -1, -1, 3, -1}));
  EXPECT_EQ(data.num_documents(), 6);
  EXPECT_EQ(data.num_sequences(), 2);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= 6; ++i) begins.push_back(data.document_begin(i));
  EXPECT_THAT(begins, ElementsAre(0, 0, 2, 2, 2, 5, 5));
}

TEST_F(Indexed, ACorpusMayBeEmpty) {
  const IndexedDataset data(make("a", {}));
  EXPECT_EQ(data.num_documents(), 0);
  EXPECT_EQ(data.num_tokens(), 0);
  EXPECT_EQ(std::filesystem::file_size(folder.path() / "a.idx"), 42u);
}

TEST_F(Indexed, ModesOfMultimodalCorporaAreRecognisedByTheSize) {
  const IndexedDataset data(make("a", {4, 2, 6}, IndexedDtype::kI32, /*modes=*/true));
  ASSERT_TRUE(data.has_modes());
  EXPECT_EQ(data.mode(0), 1);
  EXPECT_EQ(data.mode(1), 2);
  EXPECT_EQ(data.mode(2), 0);
  const IndexedDataset plain(make("b", {4, 2, 6}));
  EXPECT_THAT(error_of<DataError>([&] { plain.mode(0); }), HasSubstr("b.idx: sequence_modes"));
}

TEST_F(Indexed, LyingNumbersAreNamedWithFileAndField) {
  const std::string prefix = make("a", {3, 4, 5}); // 34 bytes, 3 lengths, 3 pointers, 4 documents
  const auto says = [&](const std::function<void(std::string&)>& change, const char* what) {
    EXPECT_THAT(damaged(prefix, change), AllOf(HasSubstr("damaged.idx"), HasSubstr(what)));
  };
  says(set<char>(0, 'X'), "magic");
  says(set<uint64_t>(9, 2), "version is 2");
  says(set<uint8_t>(17, 0), "dtype is 0");
  says(set<uint8_t>(17, 9), "dtype is 9");
  says(set<uint64_t>(18, uint64_t{1} << 63), "sequence_count is 9223372036854775808");
  says(set<uint64_t>(18, 9), "sequence_count is 9");
  says(set<uint64_t>(26, 0), "document_count is 0");
  says(set<uint64_t>(26, ~uint64_t{0}), "document_count is 18446744073709551615");
  says(set<uint64_t>(26, 2), "sequence_modes has 16 bytes");
  says(set<int32_t>(34 + 4, -1), "sequence_lengths[1] is -1");
  says(set<int32_t>(34 + 8, 6), "sequence_lengths[2] is 6");
  says(set<int32_t>(34 + 8, 2'000'000'000), "sequence_lengths[2] is 2000000000");
  says(set<int32_t>(34 + 8, 4), "damaged.bin has 24 bytes");
  says(set<int64_t>(46 + 8, 8), "sequence_pointers[1] is 8");
  says(set<int64_t>(46, -6), "sequence_pointers[0] is -6");
  says(set<int64_t>(70, 1), "document_indices[0] is 1");
  says(set<int64_t>(70 + 16, 0), "document_indices[2] is 0");
  says(set<int64_t>(70 + 16, 4), "document_indices[2] is 4");
  says(set<int64_t>(70 + 24, 2), "document_indices[3] is 2");
}

TEST_F(Indexed, TruncatedFilesAreRefusedAtEveryLength) {
  const std::string prefix = make("a", {3, 4, 5});
  const size_t size = content_of(prefix + ".idx").size();
  for (size_t n = 0; n < size; ++n) {
    EXPECT_THAT(damaged(prefix, [&](std::string& bytes) { bytes.resize(n); }),
                HasSubstr("damaged.idx"))
        << n;
  }
  const std::string tokens = content_of(prefix + ".bin");
  folder.write("short.idx", content_of(prefix + ".idx"));
  for (size_t n = 0; n < tokens.size(); ++n) {
    folder.write("short.bin", tokens.substr(0, n));
    EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/short"); }),
                AllOf(HasSubstr("short.bin"), HasSubstr("sequence_lengths")))
        << n;
  }
}

TEST_F(Indexed, FilesThatALackOfDescriptorsKeepsFromBeingReadAreIntact) {
  const std::string prefix = make("a", {3});
  for (const char* ending : {".idx", ".bin"}) {
    std::string said;
    {
      const pentatron::test::FewDescriptors few(ending == std::string(".idx") ? 0 : 1);
      said = error_of<OutOfDescriptors>([&] { IndexedDataset dataset(prefix); });
    }
    EXPECT_THAT(said,
                ::testing::AllOf(::testing::HasSubstr("cannot open " + prefix + ending),
                                 ::testing::ContainsRegex("open files\n  try: ulimit -n [0-9]+$")));
  }
}

TEST_F(Indexed, FilesOfTwoCorporaDoNotGoTogether) {
  const std::string a = make("a", {3, 4, 5}), b = make("b", {3, 4, 6});
  folder.write("c.idx", content_of(a + ".idx"));
  folder.write("c.bin", content_of(b + ".bin"));
  EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/c"); }),
              AllOf(HasSubstr("c.bin has 26 bytes"), HasSubstr("do not belong together"),
                    HasSubstr("\n  try: an intact copy of " + folder.string() + "/c.bin")));
  // .bin and .idx swapped
  folder.write("d.idx", content_of(a + ".bin"));
  folder.write("d.bin", content_of(a + ".idx"));
  EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/d"); }),
              HasSubstr("d.idx"));
  EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/e"); }),
              AllOf(HasSubstr("e.idx does not exist"), HasSubstr("try: the prefix")));
  folder.write("g_text_document.idx", content_of(a + ".idx"));
  EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/g"); }),
              HasSubstr("try: the prefix " + folder.string() + "/g_text_document"));
  folder.write("h.idx", content_of(a + ".idx"));
  EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/h"); }),
              AllOf(HasSubstr("h.bin cannot be opened"), HasSubstr("pentatron preprocess")));
  std::filesystem::create_directory(folder.path() / "f.idx");
  EXPECT_THAT(error_of<DataError>([&] { IndexedDataset(folder.string() + "/f"); }),
              HasSubstr("f.idx is not a regular file"));
}

TEST_F(Indexed, FilesThatShrinkUnderTheReaderAreErrors) {
  const std::string prefix = make("a", std::vector<int>(5000, 7));
  const IndexedDataset data(prefix);
  EXPECT_EQ(tokens_of(data, 4999).size(), 7u);
  std::filesystem::resize_file(prefix + ".bin", 100);
  EXPECT_EQ(tokens_of(data, 0).size(), 7u);
  EXPECT_THAT(error_of<DataError>([&] { tokens_of(data, 4999); }),
              AllOf(HasSubstr("a.bin was truncated"), HasSubstr("tokens")));
  std::filesystem::resize_file(prefix + ".idx", 50);
  EXPECT_THAT(error_of<DataError>([&] { data.sequence(4999); }),
              AllOf(HasSubstr("a.idx was truncated"), HasSubstr("sequence_lengths")));
  EXPECT_THAT(error_of<DataError>([&] { data.document_begin(4999); }),
              HasSubstr("document_indices"));
}

TEST_F(Indexed, RangesOutsideTheStreamAreErrors) {
  const IndexedDataset data(make("a", {3, 4}));
  std::vector<int64_t> out(10);
  for (const auto& [begin, count] : {std::pair{5, 3}, {-1, 2}, {8, 0}})
    EXPECT_THAT(error_of<DataError>([&] { data.read_tokens(begin, count, out.data()); }),
                HasSubstr("has 7 tokens"));
  EXPECT_THAT(error_of<DataError>([&] { data.sequence(2); }), HasSubstr("has 2 sequences"));
  EXPECT_THAT(error_of<DataError>([&] { data.sequence(-1); }), HasSubstr("has 2 sequences"));
}

TEST_F(Indexed, AWriterGoesOnWhereAnotherWasKilled) {
  const auto document = [](IndexedWriter& writer, int i) {
    std::vector<int32_t> tokens(static_cast<size_t>(i % 7), i);
    if (!tokens.empty()) writer.add_sequence(tokens, static_cast<int8_t>(i % 2));
    writer.end_document();
  };
  const auto options = [&](std::optional<IndexedWriter::Position> resume) {
    return IndexedWriter::Options{.dtype = IndexedDtype::kI32,
                                  .modes = true,
                                  .folder = folder.path() / "aside",
                                  .resume = resume};
  };
  {
    IndexedWriter whole(folder.string() + "/whole", {.dtype = IndexedDtype::kI32, .modes = true});
    for (int i = 0; i < 100; ++i) document(whole, i);
    whole.commit();
  }
  IndexedWriter::Position position;
  int next = 0;
  for (const int until : {13, 14, 60, 99}) {
    IndexedWriter writer(folder.string() + "/parts", options(position));
    for (; next < until; ++next) document(writer, next);
    writer.sync();
    position = writer.position();
    for (int lost = next; lost < next + 5; ++lost) document(writer, 1000 + lost);
  }
  {
    IndexedWriter writer(folder.string() + "/parts", options(position));
    for (; next < 100; ++next) document(writer, next);
    writer.commit();
  }
  EXPECT_EQ(content_of(folder.path() / "whole.bin"), content_of(folder.path() / "parts.bin"));
  EXPECT_EQ(content_of(folder.path() / "whole.idx"), content_of(folder.path() / "parts.idx"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "aside"));
}

TEST_F(Indexed, AnUncommittedWriterLeavesNothing) {
  EXPECT_THAT(error_of<Error>([&] { IndexedWriter("/proc/none", {}); }), HasSubstr("/proc/none"));
  {
    IndexedWriter writer(folder.string() + "/a", {});
    const std::vector<int32_t> tokens(1'000'000, 7);
    writer.add_sequence(tokens);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(Indexed, AWriterRemovesWhatAKilledOneLeft) {
  std::filesystem::create_directory(folder.path() / "a.tmp-1-0");
  std::filesystem::create_directory(folder.path() / "b.tmp-1-0");
  {
    const IndexedWriter writer(folder.string() + "/a", {});
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "a.tmp-1-0"));
    const IndexedWriter other(folder.string() + "/a", {}); // leaves the folder of the first
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3);
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "b.tmp-1-0"));
}

TEST_F(Indexed, ACorpusThatAppearedMeanwhileIsLeftAsItIs) {
  const auto add = [](IndexedWriter& writer, int64_t tokens) {
    writer.add_sequence(std::vector<int32_t>(static_cast<size_t>(tokens), 3));
    writer.end_document();
  };
  const std::string prefix = folder.string() + "/a";
  IndexedWriter late(prefix, {.replace = false});
  add(late, 5);
  {
    IndexedWriter other(prefix, {.replace = false});
    add(other, 2);
    other.commit();
  }
  EXPECT_THAT(error_of<DataError>([&] { late.commit(); }),
              HasSubstr("was created by another program"));
  EXPECT_EQ(IndexedDataset(prefix).num_tokens(), 2);
  IndexedWriter replacing(prefix, {});
  add(replacing, 7);
  replacing.commit();
  EXPECT_EQ(IndexedDataset(prefix).num_tokens(), 7);
}

TEST_F(Indexed, AFolderInPlaceOfAFileIsLeftAsItIs) {
  for (const std::string ending : {".bin", ".idx"}) {
    const std::filesystem::path there = folder.string() + "/a" + ending;
    std::filesystem::create_directory(there);
    {
      IndexedWriter writer(folder.string() + "/a", {});
      writer.add_sequence(std::vector<int32_t>{1, 2});
      writer.end_document();
      EXPECT_THAT(error_of<DataError>([&] { writer.commit(); }),
                  HasSubstr("a" + ending + " is a folder"));
    }
    EXPECT_TRUE(std::filesystem::is_directory(there));
    std::filesystem::remove(there);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << ending;
  }
}

} // namespace
} // namespace pentatron::data
