/// Saves and checks small checkpoints, for fault_campaign.py.
///
///   driver save DIR FIRST LAST   saves iterations FIRST to LAST by two ranks (FIRST twice) with
///                                retention, and says on standard output which ones are committed
///   driver check COMMITTED DIR...
///                                of each folder: the newest good checkpoint is at least of that
///                                iteration, and all its values are what that iteration had
/// Exit codes: 0 good, 2 a check failed, 3 an error was reported.
#include <cstdio>
#include <string>

#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "tests/checkpoint/sharded/example.h"

namespace {

using namespace pentatron;
using namespace pentatron::checkpoint;

void say(const std::string& text) {
  if (::write(1, text.data(), text.size()) < 0) std::abort();
}

int save(const std::string& dir, int64_t first, int64_t last) {
  for (int64_t i = first - 1; i <= last; ++i) {
    const int64_t iteration = std::max(i, first);
    test::write_example(dir, iteration, 2, test::example_tensors(),
                        {{"loss", 1.0 / static_cast<double>(iteration)}});
    say(fmt::format("committed {}\n", iteration));
    prune_checkpoints(dir, {.keep_last = 2, .keep_every = 4});
  }
  say("done\n");
  return 0;
}

int check(int64_t committed, const std::string& dir) {
  const auto complain = [&](const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", dir.c_str(), what.c_str());
    return 2;
  };
  const auto found = newest_checkpoint(dir);
  if (!found) return committed == 0 ? 0 : complain("nothing is left");
  if (*iteration_of(found->folder.filename().string()) < committed)
    return complain(fmt::format("{} is older than {}", found->folder.string(), committed));
  const auto wrong = test::wrong_tensors(found->folder);
  return wrong.empty() ? 0 : complain("wrong values in " + wrong[0]);
}

int run(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "save" && argc == 5) return save(argv[2], std::stol(argv[3]), std::stol(argv[4]));
  int worst = verb == "check" ? 0 : 3;
  for (int i = 3; i < argc && verb == "check"; ++i) {
    try {
      worst = std::max(worst, check(std::stol(argv[2]), argv[i]));
    } catch (const Error& error) { // no checkpoint is whole
      std::fprintf(stderr, "%s: %s\n", argv[i], error.what());
      worst = 2;
    }
  }
  return worst;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
