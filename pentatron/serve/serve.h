/// A server for one model: HTTP threads, and the model's passes on the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/serve/http/server.h"
#include "pentatron/serve/scheduler.h"
#include "pentatron/serve/service.h"

namespace pentatron::serve {

struct ServeOptions {
  ServiceOptions service;
  Scheduler::Options scheduler;
  http::ServerOptions http;
  int64_t cache_tokens = 0; ///< kept of all texts at most; 0: choose_cache_tokens()
  bool share_prefixes = true;
  bool fp8_cache = false; ///< see nn::KvCache
  /// Called on rank 0 when requests are accepted, with the server's port.
  std::function<void(uint16_t port)> listening;
  std::function<bool()> asked_to_stop; ///< of rank 0
};

/// Serves until a stop is requested, then finishes the running texts. All ranks of the model call
/// this.
void serve(parallelize::ModelView model, const ServeOptions& options,
           const data::Tokenizer& tokenizer, const comm::Group& world);

/// 2048 tokens for each text of the scheduler (fewer if the context is shorter), at most what a
/// quarter of the free memory holds, but at least one text of the whole context; in whole pages.
int64_t choose_cache_tokens(int64_t bytes_per_token, int64_t free_bytes, int64_t context,
                            int64_t texts);
/// Throws ConfigError if a cache of so many tokens does not fit into the free memory; it names
/// `chosen` instead.
void check_cache_tokens(int64_t tokens, int64_t bytes_per_token, int64_t free_bytes,
                        int64_t chosen);

} // namespace pentatron::serve
