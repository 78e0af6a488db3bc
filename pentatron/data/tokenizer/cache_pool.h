/// Word caches for threads that encode without their own encoder.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "pentatron/data/tokenizer/word_cache.h"

namespace pentatron::data::tokenizer {

/// Lends caches; there are as many as threads ever encoded at once.
class CachePool {
 public:
  class Loan {
   public:
    explicit Loan(CachePool& pool) : pool_(pool), cache_(pool.take()) {}
    ~Loan() { pool_.give_back(std::move(cache_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    WordCache& operator*() { return *cache_; }

   private:
    CachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto cache = std::move(free_.back());
        free_.pop_back();
        return cache;
      }
    }
    return std::make_unique<WordCache>();
  }
  void give_back(std::unique_ptr<WordCache> cache) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(cache));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

} // namespace pentatron::data::tokenizer
