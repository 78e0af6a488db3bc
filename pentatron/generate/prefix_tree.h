/// Cached pages of earlier texts, by their tokens, so a text that shares a prefix with an earlier
/// one reuses its pages.
///
/// A node is one page: as many tokens as a page has, following the tokens of its parent. Pages that
/// no open text uses are dropped one at a time, the least recently used first, children before
/// parents. Everything is a function of the calls, so ranks that make the same calls keep the same
/// pages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "pentatron/nn/kv_cache.h"

namespace pentatron::generate {

class PrefixTree {
 public:
  struct Node;
  /// The pages that an open text uses, from its first.
  using Path = std::vector<Node*>;

  explicit PrefixTree(int64_t page_tokens);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;

  /// The longest known beginning of `tokens`, at most `pages` pages, which are used from now on.
  /// `root`: texts with different roots (weights) share nothing.
  Path find(int64_t root, std::span<const int64_t> tokens, int64_t pages);
  /// The page that follows a path. If it is known already, `block` becomes the known one. It is
  /// used from now on.
  void extend(int64_t root, Path& path, std::span<const int64_t> tokens, nn::KvCache::Block& block);
  /// The text is closed.
  void release(Path& path);

  /// Drops the page that has not been used for the longest time; false if all are in use.
  bool drop_one();

  static const nn::KvCache::Block& block_of(const Node& node);
  int64_t pages() const { return pages_; }
  int64_t pages_in_use() const { return used_; }

 private:
  using Children = std::map<std::vector<int64_t>, std::unique_ptr<Node>>;
  Children& children_of(int64_t root, const Path& path);
  void use(Node& node);

  size_t page_tokens_;
  std::map<int64_t, Children> roots_;
  std::set<std::pair<uint64_t, Node*>> droppable_; ///< by when they were used
  uint64_t clock_ = 0;
  int64_t pages_ = 0, used_ = 0;
};

} // namespace pentatron::generate
