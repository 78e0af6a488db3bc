/// Cases of core attention: shapes, masks, pairs.
#pragma once

#include "pentatron/layers/core_attention.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace pentatron::layers::test_cases {

struct AttentionCase {
  std::string name;
  int64_t heads = 4, kv_heads = 4, head_size = 8;
  int64_t batch = 2, sequence = 13;
  std::vector<int64_t> documents = {}; ///< empty: one a sample
  int64_t window = 0;
  SoftmaxKind softmax = SoftmaxKind::kVanilla;
  double dropout = 0;
  double scale = 0.3;
  AttentionMask mask = AttentionMask::kCausal;
  int64_t value_size = 0; ///< 0: head_size
  double cap = 0;
  bool bias = false, dlse = false;
  std::vector<AttentionPair> pairs = {}; ///< empty: the documents
  int64_t keys = 0;                      ///< of `pairs`

  int64_t tokens() const { return batch * sequence; }
  int64_t key_tokens() const { return pairs.empty() ? tokens() : keys; }
  int64_t values() const { return value_size > 0 ? value_size : head_size; }
  int64_t span() const { return sequence + 60; }
  nn::SequenceLayout layout() const {
    std::vector<uint64_t> ids;
    for (int64_t b = 0; b < batch; ++b) ids.push_back(static_cast<uint64_t>(70 + b));
    return documents.empty()
               ? nn::SequenceLayout::dense(batch, sequence, ids, at::kCPU)
               : nn::SequenceLayout::packed(batch, sequence, ids, documents, true, at::kCPU);
  }
  std::vector<AttentionPair> all_pairs() const {
    return pairs.empty() ? layout().self_attention() : pairs;
  }
  bool sees(const AttentionPair& pair, int64_t i, int64_t j) const {
    const int64_t ahead = j + pair.offset - i;
    if (window > 0 && std::abs(ahead) >= window) return false;
    return mask == AttentionMask::kFull || ahead <= 0 ||
           (mask == AttentionMask::kPrefix && j < pair.prefix);
  }
};

inline const std::vector<AttentionCase> kCases = {
    {.name = "heads"},
    {.name = "one_token", .batch = 1, .sequence = 1},
    {.name = "grouped", .heads = 6, .kv_heads = 2},
    {.name = "one_kv_head", .heads = 3, .kv_heads = 1},
    {.name = "own_head_size", .heads = 2, .kv_heads = 1, .head_size = 5},
    {.name = "many_blocks", .heads = 2, .kv_heads = 1, .batch = 1, .sequence = 290},
    {.name = "packed", .documents = {0, 4, 13, 14, 26}},
    {.name = "packed_grouped", .heads = 4, .kv_heads = 2, .documents = {0, 1, 13, 20, 26}},
    {.name = "window", .window = 4},
    {.name = "window_of_one", .window = 1},
    {.name = "window_of_the_sequence", .window = 13},
    {.name = "window_one_short", .window = 12},
    {.name = "window_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 290,
     .window = 140},
    {.name = "window_packed", .documents = {0, 9, 13, 15, 26}, .window = 3},
    {.name = "off_by_one", .heads = 4, .kv_heads = 2, .softmax = SoftmaxKind::kOffByOne},
    {.name = "sinks", .heads = 4, .kv_heads = 2, .softmax = SoftmaxKind::kLearnable},
    {.name = "sinks_window_packed",
     .documents = {0, 9, 13, 15, 26},
     .window = 3,
     .softmax = SoftmaxKind::kLearnable},
    {.name = "dropout", .heads = 4, .kv_heads = 2, .dropout = 0.3},
    {.name = "dropout_over_blocks",
     .heads = 2,
     .kv_heads = 2,
     .batch = 1,
     .sequence = 150,
     .dropout = 0.3},
    {.name = "everything",
     .heads = 6,
     .kv_heads = 2,
     .head_size = 7,
     .documents = {0, 9, 13, 15, 26},
     .window = 5,
     .softmax = SoftmaxKind::kLearnable,
     .dropout = 0.2},
    {.name = "dropout_window_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 150,
     .documents = {0, 3, 150},
     .window = 20,
     .softmax = SoftmaxKind::kOffByOne,
     .dropout = 0.5},
    {.name = "cap", .heads = 4, .kv_heads = 2, .cap = 0.7, .dlse = true},
    {.name = "cap_dropout_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 150,
     .documents = {0, 3, 150},
     .softmax = SoftmaxKind::kLearnable,
     .dropout = 0.3,
     .cap = 0.7},
    {.name = "cap_bias", .cap = 0.7, .bias = true, .dlse = true},
    {.name = "full", .mask = AttentionMask::kFull},
    {.name = "full_grouped_packed",
     .heads = 6,
     .kv_heads = 2,
     .documents = {0, 4, 13, 14, 26},
     .mask = AttentionMask::kFull},
    {.name = "full_window", .window = 4, .mask = AttentionMask::kFull},
    {.name = "full_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 290,
     .window = 140,
     .mask = AttentionMask::kFull,
     .dlse = true},
    {.name = "lse_gradient", .dlse = true},
    {.name = "lse_gradient_sinks",
     .window = 5,
     .softmax = SoftmaxKind::kLearnable,
     .dropout = 0.2,
     .dlse = true},
    {.name = "bias", .heads = 4, .kv_heads = 2, .bias = true},
    {.name = "bias_over_blocks",
     .heads = 2,
     .kv_heads = 2,
     .batch = 1,
     .sequence = 290,
     .documents = {0, 3, 290},
     .mask = AttentionMask::kFull,
     .bias = true,
     .dlse = true},
    {.name = "values_of_their_own_size", .heads = 4, .kv_heads = 2, .value_size = 5},
    {.name = "unaligned_keys", .heads = 4, .kv_heads = 1, .value_size = 5}, // beside the values
    {.name = "cross", // of two samples; key 0 is padding
     .mask = AttentionMask::kFull,
     .dlse = true,
     .pairs = {{.query_size = 13, .key_begin = 1, .key_size = 7, .offset = 1, .key_position = 1},
               {.query_begin = 13, .query_size = 13, .key_begin = 8, .key_size = 8}},
     .keys = 16},
    {.name = "cross_grouped", // keys of equal size: one call of flash without groups
     .heads = 4,
     .kv_heads = 2,
     .mask = AttentionMask::kFull,
     .pairs = {{.query_size = 13, .key_begin = 8, .key_size = 8},
               {.query_begin = 13, .query_size = 13, .key_size = 8}},
     .keys = 16},
    {.name = "cross_of_equal_sizes",
     .mask = AttentionMask::kFull,
     .pairs = {{.query_size = 13, .key_size = 8},
               {.query_begin = 13, .query_size = 13, .key_begin = 8, .key_size = 8}},
     .keys = 17},
    {.name = "cross_dropout_bias",
     .heads = 4,
     .kv_heads = 2,
     .dropout = 0.3,
     .mask = AttentionMask::kFull,
     .value_size = 3,
     .bias = true,
     .dlse = true,
     .pairs = {{.query_begin = 2, .query_size = 10, .key_size = 7, .offset = 30, .key_position = 4},
               {.query_begin = 13, .query_size = 13, .key_begin = 8, .key_size = 8}},
     .keys = 17},
    {.name = "empty_pairs", // and queries and keys in none
     .softmax = SoftmaxKind::kLearnable,
     .bias = true,
     .dlse = true,
     .pairs = {{.query_size = 3, .key_size = 0},
               {.query_begin = 3, .query_size = 0, .key_size = 4},
               {.query_begin = 5, .query_size = 9, .key_begin = 5, .key_size = 6},
               {.query_begin = 26, .query_size = 0, .key_begin = 20, .key_size = 0}},
     .keys = 20},
    {.name = "no_pair", .dlse = true, .pairs = {{.query_size = 26}}, .keys = 5},
    {.name = "queries_before_keys", // the first queries of both pairs see nothing
     .dlse = true,
     .pairs = {{.query_size = 13, .key_begin = 10, .key_size = 9, .offset = 4},
               {.query_begin = 13, .query_size = 13, .key_size = 10, .offset = 20}},
     .keys = 20},
    {.name = "queries_before_keys_sinks",
     .softmax = SoftmaxKind::kOffByOne,
     .dropout = 0.3,
     .bias = true,
     .dlse = true,
     .pairs = {{.query_size = 13, .key_begin = 10, .key_size = 9, .offset = 4},
               {.query_begin = 13, .query_size = 13, .key_size = 10, .offset = 20}},
     .keys = 20},
    {.name = "past_a_window",
     .window = 6,
     .dlse = true,
     .pairs = {{.query_size = 13, .key_begin = 10, .key_size = 9, .offset = -9},
               {.query_begin = 13, .query_size = 13, .key_size = 10, .offset = -20}},
     .keys = 20},
    {.name = "prefix",
     .mask = AttentionMask::kPrefix,
     .pairs =
         {{.query_size = 13, .key_size = 13, .prefix = 5},
          {.query_begin = 13, .query_size = 13, .key_begin = 13, .key_size = 13, .prefix = 13}},
     .keys = 26},
    {.name = "prefix_window_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 290,
     .window = 60,
     .mask = AttentionMask::kPrefix,
     .bias = true,
     .dlse = true,
     .pairs = {{.query_size = 280, .key_begin = 5, .key_size = 250, .offset = -7, .prefix = 170}},
     .keys = 260}};

} // namespace pentatron::layers::test_cases
