// Any bytes are a request within the limits, or an error of status 400.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/serve/request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron::serve;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const RequestLimits limits{.max_texts = 8, .max_choices = 4, .vocab_size = 100};
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    try {
      const CompletionRequest request = parse_request(body, endpoint, limits);
      if (request.n < 1 || request.best_of < request.n || request.best_of > 4) __builtin_trap();
      if (endpoint == Endpoint::kCompletions && request.prompts.empty()) __builtin_trap();
      if (endpoint == Endpoint::kChat && request.variables["messages"].empty()) __builtin_trap();
      for (const PromptInput& prompt : request.prompts) {
        const auto* const ids = std::get_if<std::vector<int64_t>>(&prompt);
        if (ids == nullptr) continue;
        for (const int64_t id : *ids)
          if (id < 0 || id >= 100) __builtin_trap();
      }
      check(request.sampling);
    } catch (const ApiError& error) {
      if (error.status() != 400) __builtin_trap();
    }
  }
  return 0;
}
