#include "pentatron/checkpoint/machines.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/sha256.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/shard_file.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kTransferBlock = int64_t{16} << 20;
constexpr uint64_t kMaxManifest = uint64_t{1} << 32;

/// What two ranks agree in if they see the same folder: the kernel that runs them, and its file.
/// "-" and the reason if there is no folder.
std::string identity(const fs::path& dir) {
  try {
    create_durably(dir);
  } catch (const Error& error) {
    return std::string("-") + error.what();
  }
  struct stat status = {};
  if (::stat(dir.c_str(), &status) != 0)
    return fmt::format("-{}: {}", dir.string(), std::strerror(errno));
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return fmt::format("+{} {} {}", boot, status.st_dev, status.st_ino);
}

/// What the leaders say, by leader.
std::map<int, Json> from_leaders(const Json& own, const Machines& machines,
                                 const comm::Group& world) {
  const std::vector<std::string> texts =
      comm::gather_text(machines.leads() ? dump_json(own) : std::string(), world);
  std::map<int, Json> said;
  for (const int leader : machines.all_leaders())
    said[leader] = parse_json(texts[static_cast<size_t>(leader)], "a rank's report");
  return said;
}

std::vector<std::string> list_in(const Json& report, const char* key) {
  return json_get<std::vector<std::string>>(report, key, "a rank's report");
}
std::string text_in(const Json& report, const char* key) {
  return json_get<std::string>(report, key, "a rank's report");
}

/// The folders of checkpoints on any machine that `latest` does not exclude, newest first.
std::vector<std::string> candidates(const fs::path& dir, const Machines& machines,
                                    const comm::Group& world) {
  if (const Json alone{{"is", is_there(dir / kManifestName)}};
      std::ranges::any_of(from_leaders(alone, machines, world),
                          [](const auto& said) { return said.second["is"] == true; }))
    return {""}; // a checkpoint itself
  Json own{{"latest", latest_name(dir).value_or("")}, {"steps", Json::array()}};
  for (const CheckpointFolder& f : saved_in(dir))
    own["steps"].push_back(f.path.filename().string());
  std::set<std::string, std::greater<>> names; // "step_00000100": of one length
  std::string latest;
  for (const auto& [leader, said] : from_leaders(own, machines, world)) {
    latest = std::max(latest, text_in(said, "latest"));
    for (std::string& name : list_in(said, "steps")) names.insert(std::move(name));
  }
  std::vector<std::string> result;
  for (const std::string& name : names)
    if (latest.empty() || name <= latest) result.push_back(name);
  return result;
}

/// Of everything that the manifest lists.
std::map<std::string, uint64_t> sizes_of(const Manifest& manifest) {
  std::map<std::string, uint64_t> sizes;
  for (const auto& [name, file] : manifest.files) sizes[name] = file.bytes;
  for (const auto& [name, attachment] : manifest.attachments) sizes[name] = attachment.bytes;
  return sizes;
}

/// What a leader knows of the files on its machine.
Json report_of(const fs::path& folder, VerifyScope scope, const comm::Group& world) {
  const comm::LongWork work(world, "checking " + folder.string());
  const VerifyReport report = verify(folder, scope, [&] { work.progress(); });
  Json own{{"fault", ""}, {"absent", report.absent}, {"damaged", Json::object()}};
  std::map<std::string, uint64_t> listed;
  if (!report.first_faults.contains("")) listed = sizes_of(read_manifest(folder));
  for (const auto& [file, fault] : report.first_faults) {
    if (listed.contains(file))
      own["damaged"][file] = fault; // for which another machine may stand in
    else
      own["fault"] = fault;
  }
  return own;
}

struct Found {
  std::string fault;    ///< why the machines together do not hold the checkpoint, or empty
  bool removed = false; ///< damaged copies, of files that another machine has whole
  std::set<std::string> lost = {}; ///< optional attachments that no machine has whole
};

/// Looks at the checkpoint on all machines. If they hold it, those without its manifest get it, and
/// of a file that another machine has whole nothing damaged stays.
Found look_at(const fs::path& folder, VerifyScope scope, const Machines& machines,
              const comm::Group& world) {
  Json own{{"fault", ""}, {"absent", Json::array()}, {"damaged", Json::object()}};
  std::string text;
  if (machines.leads() && is_there(folder / kManifestName)) {
    own = report_of(folder, scope, world);
    text = read_small_file(folder / kManifestName, kMaxManifest);
  }
  own["digest"] = text.empty() ? "" : sha256(text);
  int source = -1;
  bool everywhere = true; // the manifest
  std::string digest;
  std::set<std::string> absent;
  std::map<std::string, std::string> damage;
  for (const auto& [leader, said] : from_leaders(own, machines, world)) {
    const std::string theirs = text_in(said, "digest");
    if (const std::string fault = text_in(said, "fault"); !fault.empty())
      return {fmt::format("on the machine of rank {}: {}", leader, fault)};
    if (theirs.empty()) {
      everywhere = false;
      continue;
    }
    const std::vector<std::string> list = list_in(said, "absent");
    std::set<std::string> lacks(list.begin(), list.end());
    for (const auto& [name, fault] : said["damaged"].items()) {
      lacks.insert(name);
      damage.emplace(
          name, fmt::format("on the machine of rank {}: {}", leader, fault.get<std::string>()));
    }
    if (source < 0) {
      source = leader;
      digest = theirs;
      absent = lacks;
      continue;
    }
    if (theirs != digest)
      return {
          fmt::format("the manifests on the machines of ranks {} and {} differ", source, leader)};
    std::erase_if(absent, [&](const std::string& name) { return !lacks.contains(name); });
  }
  if (source < 0) return {"no machine has its manifest"};
  std::set<std::string> lost;
  std::ranges::copy_if(absent, std::inserter(lost, lost.end()), is_optional);
  for (const std::string& name : lost) {
    absent.erase(name);
    damage.erase(name);
    own["damaged"].erase(name);
  }
  for (const std::string& name : absent)
    if (damage.contains(name)) return {damage[name]};
  if (!absent.empty())
    return {fmt::format("{} {} missing on all machines", fmt::join(absent, ", "),
                        absent.size() == 1 ? "is" : "are")};
  if (!everywhere) {
    text = comm::broadcast_text(text, source, world);
    if (machines.leads() && !is_there(folder / kManifestName)) {
      create_durably(folder);
      write_file_atomically(folder / kManifestName, text);
    }
  }
  for (const auto& [name, fault] : own["damaged"].items()) {
    log::warning("{}; using the intact copy of another machine", fault.get<std::string>());
    if (std::error_code error; !fs::remove(folder / name, error))
      raise<CheckpointError>("cannot remove {}: {}", (folder / name).string(), error.message());
  }
  comm::barrier(world);
  return {.fault = "", .removed = !damage.empty(), .lost = std::move(lost)};
}

void give(const fs::path& file, uint64_t bytes, int to, const comm::Group& world) {
  const comm::LongWork work(world, "sending " + file.string());
  const ShardFile source(file, FileInfo{.bytes = bytes, .crcs = {}, .entries = {}});
  const at::Tensor block = at::empty({kTransferBlock}, at::kByte);
  for (uint64_t at = 0; at < bytes;) {
    const auto size = std::min<uint64_t>(bytes - at, kTransferBlock);
    const at::Tensor part = block.narrow(0, 0, static_cast<int64_t>(size));
    source.read(at, {static_cast<std::byte*>(part.mutable_data_ptr()), size});
    comm::send(part, to, world);
    work.progress();
    at += size;
  }
}

void take(const fs::path& file, uint64_t bytes, int from, const comm::Group& world) {
  const comm::LongWork work(world, "receiving " + file.string());
  create_durably(file.parent_path());
  AtomicFile target(file);
  const at::Tensor block = at::empty({kTransferBlock}, at::kByte);
  for (uint64_t at = 0; at < bytes;) {
    const auto size = std::min<uint64_t>(bytes - at, kTransferBlock);
    const at::Tensor part = block.narrow(0, 0, static_cast<int64_t>(size));
    comm::recv(part, from, world);
    target.write({static_cast<const std::byte*>(part.const_data_ptr()), size});
    work.progress();
    at += size;
  }
  target.commit();
}

} // namespace

Machines::Machines(const comm::Group& world)
    : rank_(world.rank()), leaders_(static_cast<size_t>(world.size()), 0), all_{0} {}

Machines::Machines(const fs::path& dir, const comm::Group& world) : rank_(world.rank()) {
  std::map<std::string, int> first;
  int rank = 0;
  for (const std::string& text : comm::gather_text(identity(dir), world)) {
    if (text[0] == '-') raise<CheckpointError>("rank {}: {}", rank, text.substr(1));
    const auto [it, is_new] = first.emplace(text, rank);
    leaders_.push_back(it->second);
    if (is_new) all_.push_back(rank);
    ++rank;
  }
}

std::optional<FoundCheckpoint> find_on_machines(const fs::path& dir, const comm::Group& world,
                                                const KnownDamage& damaged) {
  const Machines machines(dir, world);
  std::vector<std::string> faults;
  for (const std::string& name : candidates(dir, machines, world)) {
    const fs::path folder = name.empty() ? dir : dir / name;
    // What was found damaged while it was read is looked at whole: another machine may stand in.
    const auto known = damaged.find(folder);
    const bool whole = known != damaged.end();
    Found found = look_at(folder, whole ? VerifyScope::kPresent : VerifyScope::kPresentStructure,
                          machines, world);
    if (found.fault.empty() && whole && !found.removed) found.fault = known->second;
    if (!found.fault.empty()) {
      faults.push_back(fmt::format("{}: {}", folder.filename().string(), found.fault));
      continue;
    }
    std::set<std::string> attachments;
    const Manifest manifest = read_manifest(folder);
    for (const auto& [attachment, info] : manifest.attachments)
      if (!found.lost.contains(attachment)) attachments.insert(attachment);
    fetch_files(folder, manifest, attachments, machines, world);
    return FoundCheckpoint{.folder = folder,
                           .passed_over = fmt::format("{}", fmt::join(faults, "; "))};
  }
  if (faults.empty()) return std::nullopt;
  raise<CheckpointError>("{} contains no complete checkpoint on {} machines: {}", dir.string(),
                         machines.all_leaders().size(), fmt::join(faults, "; "));
}

void fetch_files(const fs::path& folder, const Manifest& manifest,
                 const std::set<std::string>& needed, const Machines& machines,
                 const comm::Group& world) {
  const std::map<std::string, uint64_t> sizes = sizes_of(manifest);
  Json own{{"files", Json::array()}};
  for (const auto& [name, bytes] : sizes)
    if (machines.leads() && is_there(folder / name)) own["files"].push_back(name);
  std::map<int, std::set<std::string>> have, lacking; // by leader
  std::map<std::string, int> owner;
  for (const auto& [leader, said] : from_leaders(own, machines, world))
    for (const std::string& name : list_in(said, "files")) {
      have[leader].insert(name);
      owner.emplace(name, leader);
    }
  const std::vector<std::string> wanted =
      comm::gather_text(fmt::format("{}", fmt::join(needed, "\n")), world);
  uint64_t fetched = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    const int leader = machines.leader(rank);
    for (const std::string_view name : split(wanted[static_cast<size_t>(rank)], '\n'))
      if (!name.empty() && !have[leader].contains(std::string(name))) lacking[leader].emplace(name);
  }
  for (const auto& [leader, names] : lacking)
    for (const std::string& name : names) {
      const auto from = owner.find(name);
      if (from == owner.end())
        raise<CheckpointError>("{} is missing on all machines", (folder / name).string());
      if (from->second == world.rank()) give(folder / name, sizes.at(name), leader, world);
      if (leader == world.rank()) take(folder / name, sizes.at(name), from->second, world);
      if (leader == machines.own_leader()) fetched += sizes.at(name);
    }
  comm::barrier(world);
  if (fetched > 0 && machines.leads())
    log::info("fetched {} of {} from other machines", format_bytes(static_cast<double>(fetched)),
              folder.string());
}

} // namespace pentatron::checkpoint
