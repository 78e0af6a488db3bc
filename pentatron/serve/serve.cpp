#include "pentatron/serve/serve.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/host_name.h"
#include "pentatron/base/log.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::serve {

namespace {

using generate::Session;

int64_t in_pages(int64_t tokens) {
  return (tokens + Session::kPage - 1) / Session::kPage;
}

/// MemAvailable of this machine.
int64_t free_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
    std::getline(file, unit);
  }
  return int64_t{4} << 30;
}

/// Takes the memory of the pages once and gives it back to the allocator, which keeps it: a machine
/// that has too little shows it now, and the program does not grow while it runs.
void touch_pages(const nn::KvCache::Block& block, int64_t pages) {
  std::vector<at::Tensor> all;
  for (int64_t page = 0; page < pages; ++page) {
    for (const std::vector<at::Tensor>* const tensors : {&block.k, &block.v})
      for (const at::Tensor& tensor : *tensors)
        if (tensor.defined()) all.push_back(at::zeros_like(tensor));
  }
}

/// What a page takes, and the host whose memory holds the fewest.
struct Need {
  int64_t bytes = 0; ///< on all ranks
  struct Host {
    int64_t bytes = 1; ///< on its ranks
    int64_t free = std::numeric_limits<int64_t>::max();
  } host;
};
Need gather_need(int64_t own_bytes, const comm::Group& world) {
  Need need;
  std::map<std::string, Need::Host> hosts;
  for (const std::string& text :
       comm::gather_text(fmt::format("{} {} {}", own_bytes, free_memory(), host_name()), world)) {
    std::istringstream words(text);
    int64_t bytes = 0, free = 0;
    std::string name;
    words >> bytes >> free >> name;
    need.bytes += bytes;
    hosts[name].bytes += bytes;
    hosts[name].free = std::min(hosts[name].free, free);
  }
  need.host = std::ranges::min_element(hosts, {}, [](const auto& host) {
                return host.second.free / host.second.bytes;
              })->second;
  return need;
}

/// Pages of the cache. What a page takes is measured by reading one, which also makes the first
/// calls of everything; these take longer than later ones.
int64_t make_cache(const parallelize::ModelView& model, const ServeOptions& options,
                   const comm::Group& world) {
  Session session(model, 1, options.fp8_cache);
  const std::vector<int64_t> source = {0};
  const std::vector<int64_t> tokens(
      static_cast<size_t>(std::min(Session::kPage, options.service.context)),
      options.service.decoder_start.value_or(0));
  session.read(
      {{.text = 0,
        .tokens = tokens,
        .source = session.has_sources() ? std::span(source) : std::span<const int64_t>()}});
  const Need need = gather_need(session.bytes(), world);
  const int64_t each = std::max<int64_t>(1, need.bytes / Session::kPage);
  const int64_t of_host = need.host.bytes / Session::kPage + 1;
  const int64_t chosen = choose_cache_tokens(of_host, need.host.free, options.service.context,
                                             options.scheduler.texts);
  const int64_t kept = options.cache_tokens == 0 ? chosen : options.cache_tokens;
  if (model.device.is_cpu() && options.cache_tokens != 0)
    check_cache_tokens(kept, of_host, need.host.free, chosen);
  if (world.rank() == 0)
    log::info("cache: {} tokens in {}", format_grouped(kept),
              format_bytes(static_cast<double>(kept * each)));
  if (std::ssize(tokens) == Session::kPage) touch_pages(session.block(0, 0), in_pages(kept));
  return in_pages(kept);
}

void serve_on_first_rank(RankedSession& session, const ServeOptions& options,
                         const data::Tokenizer& tokenizer) {
  Metrics metrics;
  Scheduler scheduler(session, options.scheduler, metrics);
  Service service(options.service, tokenizer, scheduler, metrics);
  http::Server server(
      options.http,
      {.handle =
           [&](http::Request request, std::shared_ptr<http::Exchange> exchange) {
             service.handle(std::move(request), exchange);
           },
       .client_gone = [&] { scheduler.wake(); },
       .connections = [&](int64_t open) { metrics.connections = open; },
       .refused = [&] { ++metrics.refused_connections; },
       .answered = [&](const http::Request& head,
                       int status) { metrics.answered(route_of(head.path), status); }});
  server.start();
  if (options.listening) options.listening(server.port());
  bool told = false;
  scheduler.run([&] {
    if (!options.asked_to_stop || !options.asked_to_stop()) return false;
    if (!told) {
      told = true;
      service.stop();
      server.begin_stop();
    }
    return true;
  });
  constexpr double kSending_s = 5;
  server.stop(kSending_s);
}

} // namespace

int64_t choose_cache_tokens(int64_t bytes_per_token, int64_t free_bytes, int64_t context,
                            int64_t texts) {
  const int64_t one = in_pages(context) + 1;
  constexpr int64_t kOfText = 2048; // tokens; prompts that are shared need fewer
  const int64_t wanted = in_pages(std::min(context, kOfText)) * texts;
  const int64_t fit = free_bytes / 4 / (bytes_per_token * Session::kPage);
  return std::max(one, std::min(wanted, fit)) * Session::kPage;
}

void check_cache_tokens(int64_t tokens, int64_t bytes_per_token, int64_t free_bytes,
                        int64_t chosen) {
  const double wanted = static_cast<double>(tokens) * static_cast<double>(bytes_per_token);
  if (wanted <= static_cast<double>(free_bytes)) return;
  raise<ConfigError>("--cache-tokens {} takes {} of memory, but only {} is free\n  try: "
                     "--cache-tokens {}",
                     tokens, format_bytes(wanted), format_bytes(static_cast<double>(free_bytes)),
                     chosen);
}

void serve(parallelize::ModelView model, const ServeOptions& options,
           const data::Tokenizer& tokenizer, const comm::Group& world) {
  const int64_t pages = make_cache(model, options, world);
  RankedSession session(std::move(model),
                        {.texts = options.scheduler.texts,
                         .pages = pages,
                         .share = options.share_prefixes,
                         .fp8_cache = options.fp8_cache},
                        world);
  if (world.rank() == 0)
    serve_on_first_rank(session, options, tokenizer);
  else
    session.follow();
}

} // namespace pentatron::serve
