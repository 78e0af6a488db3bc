/// The sections `dataset` and `tokenizer` of a configuration.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/config/field.h"
#include "pentatron/config/violations.h"

namespace pentatron::data {

enum class DatasetType : uint8_t {
  kText,
  kIndexed,
  kBert,
  kT5,
  kClassification,
  kSft,
  kBatches,
  kMock
};
constexpr auto enum_names(DatasetType) {
  return std::array{config::name(DatasetType::kText, "text"),
                    config::name(DatasetType::kIndexed, "indexed"),
                    config::name(DatasetType::kBert, "bert"),
                    config::name(DatasetType::kT5, "t5"),
                    config::name(DatasetType::kClassification, "classification"),
                    config::name(DatasetType::kSft, "sft"),
                    config::name(DatasetType::kBatches, "batches"),
                    config::name(DatasetType::kMock, "mock")};
}

/// Whether samples are made of text, or of the tokens of text.
constexpr bool reads_text(DatasetType type) {
  return type != DatasetType::kBatches && type != DatasetType::kMock;
}

/// Whether samples may end in padding. Samples of tokens are never padded.
constexpr bool has_padding(DatasetType type) {
  return type == DatasetType::kBert || type == DatasetType::kT5 ||
         type == DatasetType::kClassification || type == DatasetType::kSft ||
         type == DatasetType::kBatches;
}

/// What BERT has to tell of the two texts of a sample.
enum class BinaryHead : uint8_t { kNextSentence, kSentenceOrder, kNone };
constexpr auto enum_names(BinaryHead) {
  return std::array{config::name(BinaryHead::kNextSentence, "next_sentence"),
                    config::name(BinaryHead::kSentenceOrder, "sentence_order"),
                    config::name(BinaryHead::kNone, "none")};
}

enum class SampleOrder : uint8_t { kStable, kMegatron };
constexpr auto enum_names(SampleOrder) {
  return std::array{config::name(SampleOrder::kStable, "stable"),
                    config::name(SampleOrder::kMegatron, "megatron")};
}

enum class OnBadInput : uint8_t { kError, kSkip };
constexpr auto enum_names(OnBadInput) {
  return std::array{config::name(OnBadInput::kError, "error"),
                    config::name(OnBadInput::kSkip, "skip")};
}

struct DatasetConfig {
  DatasetType type = DatasetType::kText;
  std::string path;
  std::string train_data_path;
  std::string valid_data_path;
  std::string test_data_path;
  std::string per_split_data_args_path;
  bool multiple_validation_sets = false;
  bool full_validation = false;
  bool drop_last_partial_validation_sequence = true;
  SampleOrder order = SampleOrder::kStable;
  std::string data_cache_path;
  std::string text_key = "text";
  std::string text_pair_key = "text_pair";
  std::string label_key = "label";
  bool pack = true;
  bool group_by_length = false;
  std::string chat_date;
  std::string split = "95,5,0";
  uint64_t seed = 1234;
  OnBadInput on_bad_input = OnBadInput::kError;
  int64_t max_line_bytes = int64_t{256} << 20;
  int64_t num_workers = 2;
  int64_t prefetch = 2;
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  double fim_rate = 0;
  double fim_spm_rate = 0.5;
  int64_t fim_prefix_token = -1;
  int64_t fim_middle_token = -1;
  int64_t fim_suffix_token = -1;
  int64_t fim_pad_token = -1;
  double mask_prob = 0.15;
  double short_seq_prob = 0.1;
  int64_t masking_max_ngram = 1;
  bool masking_do_full_word = true;
  BinaryHead bert_binary_head = BinaryHead::kNextSentence;
  double mean_noise_span_length = 3;
  int64_t decoder_seq_length = 0;
  static constexpr int64_t kMaxExtraIds = 1 << 20;
  int64_t vocab_extra_ids = 100;
  std::string cls_token;
  std::string sep_token;
  std::string mask_token;
  std::string pad_token;
  std::string eos_token;

  /// Whether samples are pairs of texts with a label of the pair.
  bool has_pairs() const {
    return type == DatasetType::kBert && bert_binary_head != BinaryHead::kNone;
  }

  void validate(config::Violations& violations, std::string_view path) const;

  static constexpr auto fields() {
    using C = DatasetConfig;
    return std::tuple{
        config::field(
            "type", &C::type,
            "kind of data; text: text files; indexed: corpora made by `pentatron preprocess` or "
            "Megatron; bert: text files or corpora, for masked words; t5: text files or corpora, "
            "for masked spans; classification: JSON objects with one or two texts and a label; "
            "sft: conversations and other examples, with the loss only on the answers; batches: a "
            "Safetensors file with prepared batches; mock: random tokens; default: text, bert, t5 "
            "or classification, depending on the model"),
        config::field(
            "path", &C::path,
            "data to read. type=text: files or folders, separated by commas (.txt, .md, .jsonl, "
            ".json, each also as .gz or .zst; .parquet); empty: the text that comes with "
            "pentatron. "
            "type=indexed: the prefix of PREFIX.bin and PREFIX.idx; several prefixes for a blend, "
            "with a weight before each (0.3 a 0.7 b) or without weights; or a .json or .yaml file "
            "with such a list or an object with train, valid and test. type=bert and t5: as for "
            "type=text or indexed. type=classification and sft: JSON and Parquet files as for "
            "text. "
            "type=batches: the .safetensors file"),
        config::field(
            "train_data_path", &C::train_data_path,
            "type=indexed, bert, t5, classification and sft: training data, in the format of "
            "dataset.path"),
        config::field(
            "valid_data_path", &C::valid_data_path,
            "type=indexed, bert, t5, classification, sft and batches: validation data, in the "
            "format of dataset.path"),
        config::field("test_data_path", &C::test_data_path,
                      "type=indexed, bert, t5, classification and sft: test data, in the format of "
                      "dataset.path"),
        config::field("per_split_data_args_path", &C::per_split_data_args_path,
                      "type=indexed, bert and t5: JSON or YAML file with an object that has train, "
                      "valid and test corpora"),
        config::field("multiple_validation_sets", &C::multiple_validation_sets,
                      "report a separate loss for each corpus or file in valid_data_path"),
        config::field("full_validation", &C::full_validation,
                      "evaluate on all validation data instead of train.eval_iters batches"),
        config::field("drop_last_partial_validation_sequence",
                      &C::drop_last_partial_validation_sequence,
                      "order=megatron: drop the last, incomplete validation sample; false: pad it "
                      "and ignore the padding in the loss"),
        config::field(
            "order", &C::order,
            "order of samples; stable: each sample number always gives the same sample, so a "
            "longer run starts with the samples of a shorter run; megatron: Megatron's order, "
            "which depends on the number of samples in the run (type=indexed)"),
        config::field("data_cache_path", &C::data_cache_path,
                      "order=megatron: local folder that caches the sample order for all processes "
                      "of a machine; empty: one process of each machine computes it at startup, "
                      "and the others map it")
            .on_resume(config::OnResume::kIgnored),
        config::field("text_key", &C::text_key,
                      "key of the text or of the list of token ids in each JSON object, or name of "
                      "the column in Parquet and .tsv files; a number selects a column of a .tsv "
                      "file without a header line")
            .not_empty(),
        config::field(
            "chat_date", &C::chat_date,
            "type=sft: date (YYYY-MM-DD) that the tokenizer's chat template prints; empty: "
            "none, so that the template's own date is used if it has one"),
        config::field("text_pair_key", &C::text_pair_key,
                      "type=classification: key or column of the second text of a sample; objects "
                      "without it have one text")
            .not_empty(),
        config::field(
            "label_key", &C::label_key,
            "type=classification: key or column of the label: the number of a class, counted from "
            "0, the name of a class, or any number with model.head=regression")
            .not_empty(),
        config::field("pack", &C::pack,
                      "type=sft: pack several examples into one sample; each example is a separate "
                      "document, and attention does not cross its boundaries; not for models with "
                      "an encoder, which read one example at a time"),
        config::field(
            "group_by_length", &C::group_by_length,
            "type=sft and dataset.pack=false: sort each 1024 samples of the random order by "
            "length, longest first, so that the samples of a batch have similar lengths"),
        config::field("split", &C::split,
                      "proportions of training, validation and test data (train,validation,test), "
                      "taken in the order of the documents")
            .not_empty(),
        config::field("seed", &C::seed, "random seed for the order of samples").non_negative(),
        config::field(
            "on_bad_input", &C::on_bad_input,
            "what to do with invalid UTF-8, empty files, missing keys, lines longer than "
            "max_line_bytes and corrupted archives; error: stop; skip: leave them out and list "
            "them in logger.dir/skipped.jsonl"),
        config::field("max_line_bytes", &C::max_line_bytes, "maximum length of a JSON line")
            .min(1)
            .unit("bytes"),
        config::field("num_workers", &C::num_workers,
                      "number of threads that read and tokenize files")
            .range(1, 256)
            .on_resume(config::OnResume::kIgnored),
        config::field("prefetch", &C::prefetch,
                      "number of global batches to prepare ahead of the training step")
            .range(1, 1024)
            .on_resume(config::OnResume::kIgnored),
        config::field("eod_mask_loss", &C::eod_mask_loss,
                      "in training, ignore the loss where the input is the end-of-document token"),
        config::field("reset_position_ids", &C::reset_position_ids,
                      "restart position ids after each end-of-document token"),
        config::field("reset_attention_mask", &C::reset_attention_mask,
                      "prevent attention across the boundaries of documents"),
        config::field("fim_rate", &C::fim_rate,
                      "fraction of documents that are rearranged for fill-in-the-middle training")
            .range(0, 1),
        config::field("fim_spm_rate", &C::fim_spm_rate,
                      "fraction of fill-in-the-middle documents in the order suffix, prefix, "
                      "middle; the others are in the order prefix, suffix, middle")
            .range(0, 1),
        config::field("fim_prefix_token", &C::fim_prefix_token,
                      "token id that marks the prefix in fill-in-the-middle samples")
            .min(-1),
        config::field("fim_middle_token", &C::fim_middle_token,
                      "token id that marks the middle in fill-in-the-middle samples")
            .min(-1),
        config::field("fim_suffix_token", &C::fim_suffix_token,
                      "token id that marks the suffix in fill-in-the-middle samples")
            .min(-1),
        config::field("fim_pad_token", &C::fim_pad_token,
                      "token id that fills unused space in fill-in-the-middle samples")
            .min(-1),
        config::field("mask_prob", &C::mask_prob,
                      "type=bert and t5: fraction of the tokens that the model has to restore")
            .more_than(0)
            .less_than(1),
        config::field("short_seq_prob", &C::short_seq_prob,
                      "type=bert: fraction of samples with a random shorter length")
            .range(0, 1),
        config::field("masking_max_ngram", &C::masking_max_ngram,
                      "type=bert: maximum number of neighboring words that are masked together; n "
                      "words have a probability proportional to 1/n (Megatron uses 3)")
            .range(1, 64),
        config::field("masking_do_full_word", &C::masking_do_full_word,
                      "type=bert: mask all tokens of a word together"),
        config::field("bert_binary_head", &C::bert_binary_head,
                      "type=bert: label of a pair of texts; next_sentence: whether the second text "
                      "comes from another document; sentence_order: whether the two texts are "
                      "swapped; none: samples have a single text"),
        config::field("mean_noise_span_length", &C::mean_noise_span_length,
                      "type=t5: mean number of tokens in a masked span")
            .min(1),
        config::field(
            "decoder_seq_length", &C::decoder_seq_length,
            "type=t5 and sft: number of tokens in each target; 0: with type=t5, the number that "
            "train.seq_length input tokens need; with type=sft, train.seq_length")
            .range(0, 0x1p30),
        config::field(
            "vocab_extra_ids", &C::vocab_extra_ids,
            "type=t5: number of span markers to add above the vocabulary if the tokenizer "
            "has no tokens <extra_id_0>, <extra_id_1> and so on")
            .range(1, kMaxExtraIds),
        config::field(
            "cls_token", &C::cls_token,
            "type=bert and classification: token before the text; empty: [CLS] or <s>, or "
            "an id above the vocabulary, but for classification the tokenizer's own "
            "template if it has one"),
        config::field("sep_token", &C::sep_token,
                      "type=bert and classification: token after each text; empty: [SEP] or </s>, "
                      "or an id above the vocabulary, but for classification the tokenizer's own "
                      "template if it has one"),
        config::field("mask_token", &C::mask_token,
                      "type=bert: token that replaces masked tokens; empty: [MASK] or <mask>, or "
                      "an id above the vocabulary"),
        config::field("pad_token", &C::pad_token,
                      "type=bert, t5, classification and sft: token that fills short samples; "
                      "empty: [PAD] or <pad>, or an id above the vocabulary"),
        config::field(
            "eos_token", &C::eos_token,
            "type=t5 and sft: token that ends inputs and targets; empty: </s>, or the token that "
            "ends documents")};
  }
};

enum class TokenizerType : uint8_t {
  kAuto,
  kBytes,
  kNull,
  kHuggingFace,
  kSentencePiece,
  kTiktoken,
  kGpt2
};
constexpr auto enum_names(TokenizerType) {
  return std::array{config::name(TokenizerType::kAuto, "auto"),
                    config::name(TokenizerType::kBytes, "bytes"),
                    config::name(TokenizerType::kNull, "null"),
                    config::name(TokenizerType::kHuggingFace, "huggingface"),
                    config::name(TokenizerType::kSentencePiece, "sentencepiece"),
                    config::name(TokenizerType::kTiktoken, "tiktoken"),
                    config::name(TokenizerType::kGpt2, "gpt2")};
}

struct TokenizerConfig {
  TokenizerType type = TokenizerType::kAuto;
  std::string path;
  std::string eod;
  std::string pattern;
  int64_t vocab_size = 0;

  static constexpr auto fields() {
    using C = TokenizerConfig;
    return std::tuple{
        config::field(
            "type", &C::type,
            "kind of tokenizer; auto: detected from the files at tokenizer.path; if that is empty, "
            "the tokenizer of the model in checkpoint.load, or bytes if there is none; bytes: one "
            "token per byte and one for the end of a document; null: the text "
            "contains token ids; huggingface: tokenizer.json; sentencepiece: a .model file; "
            "tiktoken: a .tiktoken file of tokens and ranks; gpt2: vocab.json and merges.txt"),
        config::field(
            "path", &C::path,
            "tokenizer file, the folder that contains the tokenizer files, or ORG/NAME of a "
            "downloaded Hugging Face model; bytes: the same as tokenizer.type=bytes; empty: the "
            "tokenizer of the model in checkpoint.load, or bytes"),
        config::field("eod", &C::eod,
                      "token that is added after every document; empty: eos_token in "
                      "tokenizer_config.json, or the tokenizer's own end token"),
        config::field(
            "pattern", &C::pattern,
            "tiktoken: how text is split into words: gpt2, cl100k, llama3, qwen2, o200k or a "
            "regular expression; empty: detected from the file name and the vocabulary size"),
        config::field("vocab_size", &C::vocab_size,
                      "type=null: vocabulary size; every token id must be lower")
            .range(0, 1 << 24)};
  }
};

} // namespace pentatron::data
