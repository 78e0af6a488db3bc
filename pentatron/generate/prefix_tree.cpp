#include "pentatron/generate/prefix_tree.h"

#include <algorithm>

#include "pentatron/base/error.h"

namespace pentatron::generate {

struct PrefixTree::Node {
  Node* parent = nullptr;
  Children* siblings = nullptr; ///< the map that owns this node
  Children::iterator place;
  Children children;
  nn::KvCache::Block block;
  int64_t users = 0;
  uint64_t used_at = 0; ///< never twice the same, so that the order of nodes is not by address
};

PrefixTree::PrefixTree(int64_t page_tokens) : page_tokens_(static_cast<size_t>(page_tokens)) {}
PrefixTree::~PrefixTree() = default;

const nn::KvCache::Block& PrefixTree::block_of(const Node& node) {
  return node.block;
}

PrefixTree::Children& PrefixTree::children_of(int64_t root, const Path& path) {
  return path.empty() ? roots_[root] : path.back()->children;
}

void PrefixTree::use(Node& node) {
  droppable_.erase({node.used_at, &node});
  if (node.users++ == 0) ++used_;
}

PrefixTree::Path PrefixTree::find(int64_t root, std::span<const int64_t> tokens, int64_t pages) {
  Path path;
  const size_t most = std::min(static_cast<size_t>(pages), tokens.size() / page_tokens_);
  while (path.size() < most) {
    const auto own = tokens.subspan(path.size() * page_tokens_, page_tokens_);
    Children& children = children_of(root, path);
    const auto found = children.find({own.begin(), own.end()});
    if (found == children.end()) break;
    path.push_back(found->second.get());
  }
  for (Node* const node : path) use(*node);
  return path;
}

void PrefixTree::extend(int64_t root, Path& path, std::span<const int64_t> tokens,
                        nn::KvCache::Block& block) {
  PT_DCHECK(tokens.size() == page_tokens_);
  Children& children = children_of(root, path);
  const auto [place, is_new] =
      children.try_emplace(std::vector<int64_t>(tokens.begin(), tokens.end()));
  if (is_new) {
    place->second = std::make_unique<Node>();
    Node& node = *place->second;
    node.parent = path.empty() ? nullptr : path.back();
    node.siblings = &children;
    node.place = place;
    node.block = block;
    node.used_at = ++clock_;
    ++pages_;
  } else {
    block = place->second->block;
  }
  use(*place->second);
  path.push_back(place->second.get());
}

void PrefixTree::release(Path& path) {
  while (!path.empty()) { // children become older than their parents
    Node* const node = path.back();
    path.pop_back();
    node->used_at = ++clock_;
    if (--node->users > 0) continue;
    --used_;
    if (node->children.empty()) droppable_.insert({node->used_at, node});
  }
}

bool PrefixTree::drop_one() {
  if (droppable_.empty()) return false;
  Node* const node = droppable_.begin()->second;
  Node* const parent = node->parent;
  droppable_.erase(droppable_.begin());
  node->siblings->erase(node->place); // frees the node
  --pages_;
  if (parent != nullptr && parent->users == 0 && parent->children.empty())
    droppable_.insert({parent->used_at, parent});
  return true;
}

} // namespace pentatron::generate
