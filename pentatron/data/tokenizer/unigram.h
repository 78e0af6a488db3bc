/// The segmentation with the highest sum of scores.
///
/// Source: Kudo 2018 (arXiv:1804.10959).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "pentatron/data/tokenizer/trie.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

/// A part of a text and its token; that of unknown characters is `unk`.
struct Segment {
  size_t begin, end;
  int32_t token;
};

/// Viterbi's algorithm over the tokens of `trie`, in linear time. `score_of(token, bytes)` is the
/// score of a token; a character without a token of its own costs `unk_score`. Sums are kept in
/// `Sum`, float or double, because the libraries' choice decides near ties.
template <class Sum, class Score>
void best_segmentation(const Trie& trie, std::string_view text, Sum unk_score, int32_t unk,
                       Score&& score_of, std::vector<Segment>& segments) {
  struct Node {
    Sum score = 0;
    uint32_t length = 0; // of the token that ends here; 0: none does
    int32_t token = -1;
  };
  std::vector<Node> nodes(text.size() + 1);
  for (size_t begin = 0; begin < text.size();) {
    const Sum here = nodes[begin].score;
    const size_t character = utf8_length(text[begin]);
    bool alone = false;
    const auto offer = [&](size_t end, auto total, int32_t token) {
      Node& node = nodes[end];
      if (node.length != 0 && !(total > node.score)) return;
      node = {static_cast<Sum>(total), static_cast<uint32_t>(end - begin), token};
    };
    uint32_t at = Trie::kRoot;
    for (size_t end = begin; end < text.size();) {
      at = trie.step(at, text[end++]);
      if (at == Trie::kNone) break;
      const int32_t token = trie.value(at);
      if (token < 0) continue;
      offer(end, score_of(token, end - begin) + here, token);
      alone = alone || end - begin == character;
    }
    if (!alone) offer(begin + character, unk_score + here, unk);
    begin += character;
  }
  const size_t first = segments.size();
  for (size_t end = text.size(); end > 0;) {
    const size_t begin = end - nodes[end].length;
    segments.push_back({begin, end, nodes[end].token});
    end = begin;
  }
  for (size_t i = first, j = segments.size(); i + 1 < j; ++i) std::swap(segments[i], segments[--j]);
}

} // namespace pentatron::data::tokenizer
