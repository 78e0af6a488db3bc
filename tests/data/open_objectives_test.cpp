// dataset.type=bert and t5 as the trainer opens them.
#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/data/loader.h"
#include "pentatron/data/preprocess/preprocess.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class OpenObjectives : public ::testing::Test {
 protected:
  OpenObjectives() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "Sentence number " + std::to_string(i) + " has several words. ";
    for (const char* name : {"a.txt", "b.txt", "c.txt"}) folder.write(name, text);
  }
  DatasetConfig config(DatasetType type) const {
    return {.type = type, .path = folder.string(), .split = "80,20"};
  }
  /// The ids of the byte tokenizer, and those above it.
  DatasetContext context(int64_t vocab_size = 400) const {
    return {.sequence_length = 128,
            .vocab_size = vocab_size,
            .fields = {{.name = "input_ids", .stream = stream}},
            .tokenizer = make_tokenizer({})};
  }
  static Batch batch_of(const DatasetConfig& config, const DatasetContext& context) {
    std::vector<int64_t> ids(32);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    return make_batch(*open_datasets(config, context).train, ids);
  }
  static bool same(const Batch& a, const Batch& b) {
    return a.streams == b.streams && std::ranges::equal(a.fields, b.fields, [](auto& x, auto& y) {
             return x.first == y.first && x.second.ints == y.second.ints;
           });
  }
  std::string stream = "tokens";
  TemporaryFolder folder;
};

TEST_F(OpenObjectives, BertReadsTextWithTokensAboveTheBytes) {
  const Datasets sets = open_datasets(config(DatasetType::kBert), context(261));
  ASSERT_NE(sets.validation, nullptr);
  EXPECT_EQ(sets.test, nullptr);
  EXPECT_THAT(sets.summary, AllOf(HasSubstr("1200 sentences"),
                                  HasSubstr("[PAD]=257, [CLS]=258, [SEP]=259, [MASK]=260")));
  const Batch batch = batch_of(config(DatasetType::kBert), context(261));
  const std::vector<int64_t>& ids = batch.ints("input_ids");
  for (size_t r = 0; r < 32; ++r) EXPECT_EQ(ids[128 * r], 258);
  EXPECT_NE(std::ranges::find(ids, 260), ids.end());
  EXPECT_GT(batch.num_targets.at("labels"), 32 * 5);
  EXPECT_THAT(
      error_of<ConfigError>([&] { open_datasets(config(DatasetType::kBert), context(260)); }),
      AllOf(HasSubstr("model.vocab_size=260 is smaller than the 261 tokens"),
            HasSubstr("try: model.vocab_size=261")));
}

TEST_F(OpenObjectives, T5ReadsTextWithSentinelsAboveTheBytes) {
  stream = "encoder";
  const Datasets sets = open_datasets(config(DatasetType::kT5), context(358));
  EXPECT_THAT(sets.summary, HasSubstr("<extra_id_0> to <extra_id_99>=258 to 357"));
  const Batch batch = batch_of(config(DatasetType::kT5), context(358));
  EXPECT_EQ(batch.stream("encoder").sequence_length, 128);
  EXPECT_TRUE(batch.stream("encoder").real.empty()); // the raw text fills it
  EXPECT_EQ(batch.ints("labels")[0], 258);
  EXPECT_EQ(batch.ints("decoder_input_ids")[0], 257); // padding begins the target
  EXPECT_EQ(batch.ints("input_ids")[127], ByteTokenizer::kEod);
}

TEST_F(OpenObjectives, EveryKeyChangesTheSamples) {
  const Batch bert = batch_of(config(DatasetType::kBert), context());
  using Change = void (*)(DatasetConfig&);
  for (const Change change : std::initializer_list<Change>{
           [](DatasetConfig& c) { c.mask_prob = 0.3; },
           [](DatasetConfig& c) { c.short_seq_prob = 0.9; },
           [](DatasetConfig& c) { c.masking_max_ngram = 3; },
           [](DatasetConfig& c) { c.masking_do_full_word = false; },
           [](DatasetConfig& c) { c.bert_binary_head = BinaryHead::kSentenceOrder; },
           [](DatasetConfig& c) { c.bert_binary_head = BinaryHead::kNone; },
           [](DatasetConfig& c) { c.seed = 5; }}) {
    DatasetConfig changed = config(DatasetType::kBert);
    EXPECT_TRUE(same(batch_of(changed, context()), bert));
    change(changed);
    EXPECT_FALSE(same(batch_of(changed, context()), bert));
  }
  stream = "encoder";
  const Batch t5 = batch_of(config(DatasetType::kT5), context());
  for (const Change change :
       std::initializer_list<Change>{[](DatasetConfig& c) { c.mask_prob = 0.3; },
                                     [](DatasetConfig& c) { c.mean_noise_span_length = 5; },
                                     [](DatasetConfig& c) { c.decoder_seq_length = 60; },
                                     [](DatasetConfig& c) { c.seed = 5; }}) {
    DatasetConfig changed = config(DatasetType::kT5);
    EXPECT_TRUE(same(batch_of(changed, context()), t5));
    change(changed);
    EXPECT_FALSE(same(batch_of(changed, context()), t5));
  }
}

TEST_F(OpenObjectives, T5NeedsASpanMarkerForEverySpan) {
  stream = "encoder";
  DatasetConfig few = config(DatasetType::kT5);
  few.mask_prob = 0.19;
  few.mean_noise_span_length = 3.1;
  few.decoder_seq_length = 12;
  few.vocab_extra_ids = 2;
  DatasetContext with = context();
  with.sequence_length = 36;
  const auto error = [&] { return error_of<ConfigError>([&] { open_datasets(few, with); }); };
  EXPECT_THAT(error(), AllOf(HasSubstr("dataset.vocab_extra_ids=2 gives 2 span markers, but a text "
                                       "of 40 tokens has 3 masked spans"),
                             HasSubstr("try: dataset.vocab_extra_ids=3")));
  few.vocab_extra_ids = 3;
  EXPECT_NO_THROW(open_datasets(few, with));
  // The number of those that a tokenizer has is given.
  TemporaryFolder apart;
  const std::string tokenizer =
      apart.write("tokenizer.json", R"({"model": {"type": "WordLevel", "unk_token": "<unk>",
    "vocab": {"<unk>": 0, "</s>": 1, "<pad>": 2, "<extra_id_0>": 3, "<extra_id_1>": 4}},
    "pre_tokenizer": {"type": "Whitespace"}})");
  with.tokenizer = make_tokenizer({.path = tokenizer, .eod = "</s>"});
  EXPECT_THAT(
      error(),
      AllOf(HasSubstr("the tokenizer has 2 span markers, <extra_id_0> to <extra_id_1>, but"),
            HasSubstr("try: dataset.mean_noise_span_length=4")));
  few.mean_noise_span_length = 4;
  EXPECT_NO_THROW(open_datasets(few, with));
}

TEST_F(OpenObjectives, NextSentenceNeedsAnotherText) {
  folder.write("one/a.txt", "A sentence. Another one.");
  DatasetConfig c = config(DatasetType::kBert);
  c.path = (folder.path() / "one").string();
  c.split = "1,0";
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(c, context()); }),
              AllOf(HasSubstr("dataset.bert_binary_head=next_sentence"),
                    HasSubstr("try: dataset.bert_binary_head=sentence_order")));
  c.bert_binary_head = BinaryHead::kSentenceOrder;
  EXPECT_NO_THROW(open_datasets(c, context()));
  // Validation data of one sample: its second text is the true one.
  DatasetConfig small = config(DatasetType::kBert);
  small.split = "9995,5";
  const Datasets sets = open_datasets(small, context());
  ASSERT_NE(sets.validation, nullptr);
  ASSERT_EQ(sets.validation->samples_per_epoch(), 1);
  const std::vector<int64_t> ids{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_THAT(make_batch(*sets.validation, ids).ints("next_sentence_label"), Each(0));
}

/// What is logged while the data are opened.
std::string said_of(const DatasetConfig& config, const DatasetContext& context) {
  testing::internal::CaptureStderr();
  open_datasets(config, context);
  return testing::internal::GetCapturedStderr();
}

TEST_F(OpenObjectives, PairsOfACorpusWithoutSentencesAreTold) {
  for (const auto& [name, sentences] : {std::pair{"whole", 1}, {"cut", 2}}) {
    IndexedWriter writer(folder.string() + "/" + name, {});
    for (int32_t d = 0; d < 20; ++d) {
      for (int s = 0; s < sentences; ++s) writer.add_sequence(std::vector<int32_t>(30, d));
      writer.end_document();
    }
    writer.commit();
  }
  DatasetConfig c = config(DatasetType::kBert);
  c.path = folder.string() + "/whole";
  const std::string said = said_of(c, context());
  EXPECT_THAT(said, AllOf(HasSubstr("whole has no boundaries of sentences: each of its 20 "
                                    "documents is one sequence"),
                          HasSubstr("try: a corpus made with pentatron preprocess "
                                    "--split-sentences, or model.binary_head=false and "
                                    "dataset.bert_binary_head=none")));
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << said; // train and validation
  c.bert_binary_head = BinaryHead::kNone;
  EXPECT_EQ(said_of(c, context()), "");
  c.bert_binary_head = BinaryHead::kSentenceOrder;
  c.path = folder.string() + "/cut";
  EXPECT_EQ(said_of(c, context()), "");
}

TEST_F(OpenObjectives, T5TellsOfTargetsThatLeaveInputsShort) {
  stream = "encoder";
  DatasetConfig c = config(DatasetType::kT5);
  EXPECT_EQ(said_of(c, context()), "");
  c.decoder_seq_length = 9;
  EXPECT_THAT(said_of(c, context()),
              AllOf(HasSubstr("dataset.decoder_seq_length=9 leaves room for 40 tokens in each "
                              "input, the other 88 of train.seq_length=128 are padding"),
                    HasSubstr("try: dataset.decoder_seq_length=29, or train.seq_length=40")));
  c.decoder_seq_length = 29;
  EXPECT_EQ(said_of(c, context()), "");
  c.decoder_seq_length = 9;
  DatasetContext shorter = context();
  shorter.sequence_length = 40;
  EXPECT_EQ(said_of(c, shorter), "");
}

TEST_F(OpenObjectives, SpecialTokensMayBeNamed) {
  const auto named = [&](DatasetType type, std::string DatasetConfig::*key, std::string value) {
    stream = type == DatasetType::kT5 ? "encoder" : "tokens";
    DatasetConfig c = config(type);
    c.*key = std::move(value);
    DatasetContext with = context(1000);
    with.tokenizer = make_tokenizer(
        {.path = std::string(PENTATRON_TEST_DATA) + "/tokenizers/bert.json", .eod = "[SEP]"});
    return batch_of(c, with);
  };
  const auto bert = DatasetType::kBert;
  EXPECT_EQ(named(bert, &DatasetConfig::cls_token, "").ints("input_ids")[0], 2);
  EXPECT_EQ(named(bert, &DatasetConfig::cls_token, "[MASK]").ints("input_ids")[0], 4);
  for (const auto key : {&DatasetConfig::sep_token, &DatasetConfig::mask_token})
    EXPECT_FALSE(same(named(bert, key, "[UNK]"), named(bert, key, "")));
  EXPECT_FALSE(same(named(DatasetType::kT5, &DatasetConfig::eos_token, "[CLS]"),
                    named(DatasetType::kT5, &DatasetConfig::eos_token, "")));
  EXPECT_EQ(
      named(DatasetType::kT5, &DatasetConfig::pad_token, "[UNK]").ints("decoder_input_ids")[0], 1);
  EXPECT_THAT(error_of<ConfigError>([&] { named(bert, &DatasetConfig::cls_token, "<none>"); }),
              HasSubstr("dataset.cls_token=<none> is not a token of the tokenizer"));
}

TEST_F(OpenObjectives, CorporaAndTheirBlendsHaveSentences) {
  for (const char* name : {"x", "y"}) {
    IndexedWriter writer(folder.string() + "/" + name, {});
    for (int32_t d = 0; d < 20; ++d) {
      for (int32_t s = 0; s < 5; ++s)
        writer.add_sequence(std::vector<int32_t>(30, 10 * s + (name[0] == 'y' ? 5 : 0)));
      writer.end_document();
    }
    writer.commit();
  }
  DatasetConfig c = config(DatasetType::kBert);
  c.path = folder.string() + "/x";
  const Datasets one = open_datasets(c, context());
  EXPECT_EQ(one.train->samples_per_epoch(), 32); // 16 documents of two pieces
  EXPECT_EQ(one.train_size.documents, 16);
  EXPECT_THAT(one.summary, HasSubstr("100 sentences"));
  c.path = "1 " + folder.string() + "/x 1 " + folder.string() + "/y";
  const Batch batch = batch_of(c, context());
  std::set<int64_t> last_digits;
  for (const int64_t token : batch.ints("input_ids"))
    if (token < 50) last_digits.insert(token % 10);
  EXPECT_TRUE(last_digits.contains(0) && last_digits.contains(5));
}

TEST_F(OpenObjectives, ACorpusOfSentencesGivesTheSamplesOfItsText) {
  std::string lines;
  for (int i = 0; i < 90; ++i)
    lines += "{\"text\": \"Document " + std::to_string(i) + " begins here. It has " +
             std::to_string(i * i) + " more sentences! Does it? No.\"}\n";
  DatasetConfig text = config(DatasetType::kBert), corpus = text;
  text.path = folder.write("docs.jsonl", lines);
  text.split = corpus.split = "1";
  corpus.path = preprocess({.inputs = {text.path},
                            .tokenizer = make_tokenizer({}),
                            .output = folder.string() + "/docs",
                            .split_sentences = true,
                            .workers = 2})
                    .prefixes[0];
  for (const auto head :
       {BinaryHead::kNextSentence, BinaryHead::kSentenceOrder, BinaryHead::kNone}) {
    text.bert_binary_head = corpus.bert_binary_head = head;
    EXPECT_TRUE(same(batch_of(corpus, context()), batch_of(text, context())));
  }
  EXPECT_THAT(open_datasets(corpus, context()).summary, HasSubstr("90 documents, 360 sentences"));
}

TEST_F(OpenObjectives, CorporaOfValidationMayBeKeptApart) {
  std::string names;
  for (const char* name : {"x", "y"}) {
    IndexedWriter writer(folder.string() + "/" + name, {});
    for (int32_t d = 0; d < 20; ++d) {
      writer.add_sequence(std::vector<int32_t>(30, d));
      writer.end_document();
    }
    writer.commit();
    names += (names.empty() ? "" : " ") + folder.string() + "/" + name;
  }
  DatasetConfig c = config(DatasetType::kBert);
  c.path.clear();
  c.train_data_path = folder.string() + "/x";
  c.valid_data_path = names;
  EXPECT_EQ(open_datasets(c, context()).validation_size.documents, 40);
  c.multiple_validation_sets = true;
  const Datasets sets = open_datasets(c, context());
  ASSERT_EQ(sets.validation_sets.size(), 2u);
  EXPECT_EQ(sets.validation_sets[1].name, "y");
  EXPECT_EQ(sets.validation, sets.validation_sets[0].dataset);
  EXPECT_EQ(sets.validation_size.documents, 40);
  c.valid_data_path = "1 " + folder.string() + "/x 2 " + folder.string() + "/y";
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(c, context()); }),
              HasSubstr("try: the corpora without weights"));
}

TEST_F(OpenObjectives, RanksAndResumedRunsSeeTheSameSamples) {
  for (const auto type : {DatasetType::kBert, DatasetType::kT5}) {
    stream = type == DatasetType::kT5 ? "encoder" : "tokens";
    const auto train = open_datasets(config(type), context()).train;
    Loader whole(train, {.global_batch_size = 4, .micro_batch_size = 4});
    LoaderOptions options{
        .global_batch_size = 4, .micro_batch_size = 2, .size = 2, .consumed_samples = 8};
    Loader left(train, options);
    options.rank = 1;
    Loader right(train, options);
    whole.next();
    whole.next();
    const StepData all = whole.next(), a = left.next(), b = right.next();
    for (const auto& [name, values] : all.microbatches[0].fields) {
      std::vector<int64_t> both = a.microbatches[0].ints(name);
      const std::vector<int64_t>& more = b.microbatches[0].ints(name);
      both.insert(both.end(), more.begin(), more.end());
      EXPECT_EQ(both, values.ints) << name;
    }
    for (const auto& [name, n] : all.num_targets)
      EXPECT_EQ(n, a.num_targets.at(name) + b.num_targets.at(name));
  }
}

TEST_F(OpenObjectives, AFieldThatTheModelReadsAndTheDataLackIsNamed) {
  DatasetContext wants = context();
  wants.fields = {{.name = "input_ids"}, label_field("", "next_sentence_label")};
  DatasetConfig c = config(DatasetType::kBert);
  EXPECT_NO_THROW(open_datasets(c, wants));
  c.bert_binary_head = BinaryHead::kNone;
  EXPECT_THAT(
      error_of<ConfigError>([&] { open_datasets(c, wants); }),
      AllOf(HasSubstr("dataset.type=bert does not provide next_sentence_label of each sample"),
            HasSubstr("it provides input_ids, token_type_ids, labels"),
            HasSubstr("try: dataset.bert_binary_head=next_sentence")));
}

TEST_F(OpenObjectives, ATypeOfTokensThatTheModelLacksIsRefused) {
  DatasetContext wants = context();
  wants.fields = {{.name = "input_ids"}, {.name = "token_type_ids", .limit = 1}, label_field()};
  DatasetConfig c = config(DatasetType::kBert);
  EXPECT_THAT(
      error_of<ConfigError>([&] { open_datasets(c, wants); }),
      AllOf(HasSubstr("dataset.bert_binary_head=next_sentence gives token_type_ids up to 1, "
                      "but the model has only 1\n"),
            HasSubstr("try: dataset.bert_binary_head=none")));
  wants.fields.push_back(label_field("", "next_sentence_label"));
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(c, wants); }),
              HasSubstr("try: model.num_tokentypes=2"));
  wants.fields.pop_back();
  c.bert_binary_head = BinaryHead::kNone;
  EXPECT_NO_THROW(open_datasets(c, wants));
}

TEST_F(OpenObjectives, ATypeThatFitsTheModelIsProposed) {
  const auto proposal = [&](DatasetConfig c, std::vector<BatchField> fields) {
    DatasetContext wants = context();
    wants.fields = std::move(fields);
    const std::string error = error_of<ConfigError>([&] { open_datasets(c, wants); });
    const size_t at = error.find("\n  try: ");
    return at == std::string::npos ? error : error.substr(at + 8);
  };
  const std::vector<BatchField> encoder{
      {.name = "input_ids"}, {.name = "token_type_ids"}, label_field()};
  const std::vector<BatchField> pairs{{.name = "input_ids"},
                                      label_field("", "next_sentence_label")};
  const std::vector<BatchField> both{{.name = "input_ids", .stream = "encoder"},
                                     label_field("decoder")};
  BatchField number = label_field("");
  number.type = FieldType::kFloat64;
  const DatasetConfig text = config(DatasetType::kText);
  EXPECT_EQ(proposal(text, encoder), "dataset.type=bert");
  EXPECT_EQ(proposal(config(DatasetType::kMock), encoder), "dataset.type=bert");
  DatasetConfig alone = text;
  alone.bert_binary_head = BinaryHead::kNone;
  EXPECT_EQ(proposal(alone, pairs), "dataset.type=bert and dataset.bert_binary_head=next_sentence");
  EXPECT_EQ(proposal(text, both), "dataset.type=t5");
  EXPECT_EQ(proposal(config(DatasetType::kBert), both), "dataset.type=t5");
  EXPECT_EQ(proposal(config(DatasetType::kBert), next_token_fields()), "dataset.type=text");
  EXPECT_EQ(proposal(text, {{.name = "input_ids"}, label_field("")}),
            "dataset.type=classification and dataset.path=FILE.jsonl");
  EXPECT_EQ(proposal(text, {{.name = "input_ids"}, number}),
            "dataset.type=classification and dataset.path=FILE.jsonl");
  EXPECT_EQ(proposal(text, {{.name = "pixels"}}),
            "dataset.type=batches and dataset.path=FILE.safetensors");
  IndexedWriter writer(folder.string() + "/x", {});
  writer.add_sequence(std::vector<int32_t>(300, 1));
  writer.end_document();
  writer.commit();
  DatasetConfig corpus = config(DatasetType::kT5);
  corpus.path = folder.string() + "/x";
  EXPECT_EQ(proposal(corpus, next_token_fields()), "dataset.type=indexed");
  // What is proposed gives them.
  DatasetContext wants = context();
  wants.fields = encoder;
  EXPECT_NO_THROW(open_datasets(config(DatasetType::kBert), wants));
  wants.fields = both;
  EXPECT_NO_THROW(open_datasets(config(DatasetType::kT5), wants));
}

TEST(ObjectiveKeys, WithoutTheirTypeHaveNoEffect) {
  const auto problems = [](DatasetConfig c) {
    pentatron::config::Violations violations;
    pentatron::config::validate(c, violations);
    return violations.text();
  };
  EXPECT_THAT(problems({.mask_prob = 0.3}),
              HasSubstr("mask_prob=0.3 has no effect without type=bert"));
  EXPECT_THAT(problems({.type = DatasetType::kBert, .decoder_seq_length = 9}),
              HasSubstr("decoder_seq_length=9 has no effect without type=t5"));
  EXPECT_THAT(problems({.type = DatasetType::kBert, .eod_mask_loss = true}),
              HasSubstr("eod_mask_loss=true has no effect without type=text"));
  EXPECT_EQ(problems({.type = DatasetType::kT5, .mask_prob = 0.3}), "");
}

} // namespace
} // namespace pentatron::data
