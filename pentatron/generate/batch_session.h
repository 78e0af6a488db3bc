/// A session whose texts are opened and closed at any time: each pass reads tokens of any open
/// texts, pages of common prefixes are shared, and all pages together stay within a limit.
///
/// Ranks of a model make the same calls in the same order, and therefore share and drop the same
/// pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pentatron/generate/prefix_tree.h"
#include "pentatron/generate/session.h"

namespace pentatron::generate {

class BatchSession {
 public:
  struct Options {
    int64_t texts = 1;      ///< open at the same time
    int64_t pages = 1;      ///< kept at most, of open and of closed texts
    bool share = true;      ///< pages between texts; never for a model with an encoder
    bool fp8_cache = false; ///< see nn::KvCache
  };
  BatchSession(parallelize::ModelView model, const Options& options);

  /// Opens place `text`, which is closed, for a text that begins with `tokens`. Returns how many of
  /// them need not be read, because pages of earlier texts are taken over; at least one is left to
  /// read. `variant`: texts of different variants of the weights share nothing.
  int64_t open(int64_t text, std::span<const int64_t> tokens, int64_t variant, bool take_over);
  /// The text ends; its full pages stay for others until their room is needed.
  void close(int64_t text);

  /// As Session::read(). There must be room: pages_needed() of all inputs <= pages_free().
  at::Tensor read(const std::vector<Session::Input>& inputs);

  /// Pages that a text needs in addition for `count` more tokens.
  int64_t pages_needed(int64_t text, int64_t count) const;
  /// Pages that open texts do not use.
  int64_t pages_free() const;
  int64_t pages_limit() const { return options_.pages; }
  /// That are filled with the tokens of some text, closed ones included.
  int64_t pages_held() const;

  int64_t length(int64_t text) const { return std::ssize(session_.tokens(text)); }
  const Session& session() const { return session_; }

 private:
  struct Place {
    bool open = false;
    int64_t variant = 0;
    PrefixTree::Path path; ///< of its pages, those in the tree; they come first
  };
  int64_t own_pages(int64_t text) const;
  void share_full_pages(int64_t text);

  Options options_;
  Session session_;
  PrefixTree tree_;
  std::vector<Place> places_;
};

} // namespace pentatron::generate
