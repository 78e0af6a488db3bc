#include "pentatron/checkpoint/sharded/parity.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <set>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/crc32c.h"
#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/sharded/shard_file.h"
#include "pentatron/checkpoint/sharded/spares.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kGroup = 128;
constexpr uint64_t kBlock = kDefaultChunk;

using Bytes = std::vector<std::byte>;

/// Products of GF(256) by one factor.
using Products = std::array<std::byte, 256>;

uint8_t multiply(uint8_t a, uint8_t b) {
  unsigned product = 0;
  for (unsigned x = a, y = b; y != 0; y >>= 1, x = x << 1 ^ (x & 0x80 ? 0x11d : 0))
    if (y & 1) product ^= x;
  return static_cast<uint8_t>(product);
}

/// a to the power of 254: the group has 255 elements.
uint8_t inverse(uint8_t a) {
  uint8_t result = 1;
  for (int i = 0; i < 254; ++i) result = multiply(result, a);
  return result;
}

uint8_t coefficient(size_t row, size_t shard, size_t rows) {
  const auto y = static_cast<uint8_t>(rows + shard);
  return multiply(y, inverse(static_cast<uint8_t>(row ^ y)));
}

/// target += factor * source
void add_product(uint8_t factor, std::span<const std::byte> source, std::span<std::byte> target) {
  if (factor == 1) {
    for (size_t i = 0; i < source.size(); ++i) target[i] ^= source[i];
    return;
  }
  Products products;
  for (size_t i = 0; i < products.size(); ++i)
    products[i] = std::byte{multiply(factor, static_cast<uint8_t>(i))};
  for (size_t i = 0; i < source.size(); ++i) target[i] ^= products[static_cast<size_t>(source[i])];
}

/// Gauss and Jordan; the matrix is a part of a Cauchy matrix, so there is always a pivot.
std::vector<std::vector<uint8_t>> inverted(std::vector<std::vector<uint8_t>> m) {
  const size_t n = m.size();
  std::vector<std::vector<uint8_t>> result(n, std::vector<uint8_t>(n, 0));
  for (size_t i = 0; i < n; ++i) result[i][i] = 1;
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    while (m[pivot][column] == 0) ++pivot;
    std::swap(m[pivot], m[column]);
    std::swap(result[pivot], result[column]);
    const uint8_t scale = inverse(m[column][column]);
    for (size_t k = 0; k < n; ++k) {
      m[column][k] = multiply(m[column][k], scale);
      result[column][k] = multiply(result[column][k], scale);
    }
    for (size_t row = 0; row < n; ++row) {
      const uint8_t factor = row == column ? uint8_t{0} : m[row][column];
      for (size_t k = 0; k < n && factor != 0; ++k) {
        m[row][k] ^= multiply(factor, m[column][k]);
        result[row][k] ^= multiply(factor, result[column][k]);
      }
    }
  }
  return result;
}

/// Reads a block; zeros behind the end.
void read_block(const ShardFile& file, const FileInfo& info, uint64_t at,
                std::span<std::byte> block) {
  const uint64_t have = info.bytes > at ? std::min<uint64_t>(info.bytes - at, block.size()) : 0;
  file.read(at, block.first(static_cast<size_t>(have)));
  std::ranges::fill(block.subspan(static_cast<size_t>(have)), std::byte{0});
}

/// A new file that arrives in order, with the checksums of its chunks.
class SummedFile {
 public:
  SummedFile(const fs::path& target, uint64_t bytes) : file_(target) { info_.bytes = bytes; }
  /// What lies beyond the file's size is left out.
  void write(std::span<const std::byte> block) { // blocks are chunks
    block =
        block.first(static_cast<size_t>(std::min<uint64_t>(block.size(), info_.bytes - written_)));
    if (block.empty()) return;
    file_.write(block);
    written_ += block.size();
    info_.crcs.push_back(crc32c(block));
  }
  const FileInfo& info() const { return info_; }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  FileInfo info_;
  uint64_t written_ = 0;
};

/// What rebuilding works with: the files of a group that are good.
struct Group {
  std::vector<std::string> shards;
  std::vector<std::string> parity; ///< by row
};

std::vector<Group> groups_of(const Manifest& manifest) {
  std::map<std::vector<std::string>, Group> groups;
  for (const auto& [name, parity] : manifest.parity) {
    Group& group = groups[parity.shards];
    group.shards = parity.shards;
    group.parity.resize(std::max(group.parity.size(), parity.row + 1));
    group.parity[parity.row] = name;
  }
  std::vector<Group> list;
  for (auto& [shards, group] : groups) list.push_back(std::move(group));
  return list;
}

bool is_good(const fs::path& folder, const std::string& name, const FileInfo& info) {
  try {
    const ShardFile file(folder / name, info);
    Bytes block(static_cast<size_t>(std::min(info.bytes, info.chunk_bytes)));
    for (size_t chunk = 0; chunk < info.num_chunks(); ++chunk) {
      const uint64_t begin = chunk * info.chunk_bytes;
      const auto part = std::span(block).first(
          static_cast<size_t>(std::min(info.bytes - begin, info.chunk_bytes)));
      file.read(begin, part);
      if (crc32c(part) != info.crcs[chunk]) return false;
    }
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

/// Passes over all files of a group, a block at a time.
class GroupReader {
 public:
  GroupReader(const fs::path& folder, const Manifest& manifest,
              const std::vector<std::string>& names)
      : buffer_(kBlock) {
    for (const std::string& name : names) {
      const auto shard = manifest.files.find(name);
      infos_.push_back(shard != manifest.files.end() ? &shard->second
                                                     : &manifest.parity.find(name)->second.file);
      files_.push_back(std::make_unique<ShardFile>(folder / name, *infos_.back()));
    }
  }
  std::span<const std::byte> read(size_t file, uint64_t at) {
    read_block(*files_[file], *infos_[file], at, buffer_);
    return buffer_;
  }

 private:
  std::vector<const FileInfo*> infos_;
  std::vector<std::unique_ptr<ShardFile>> files_;
  Bytes buffer_;
};

uint64_t longest(const Manifest& manifest, const std::vector<std::string>& shards) {
  uint64_t bytes = 0;
  for (const std::string& name : shards)
    bytes = std::max(bytes, manifest.files.find(name)->second.bytes);
  return bytes;
}

/// The parity files `rows` of the group, from its shards, which are good.
std::vector<FileInfo> write_rows(const fs::path& folder, const Manifest& manifest,
                                 const Group& group, const std::vector<size_t>& rows) {
  const uint64_t bytes = longest(manifest, group.shards);
  GroupReader reader(folder, manifest, group.shards);
  std::vector<std::unique_ptr<SummedFile>> out;
  for (const size_t row : rows)
    out.push_back(std::make_unique<SummedFile>(folder / group.parity[row], bytes));
  std::vector<Bytes> sums(rows.size());
  for (uint64_t at = 0; at < bytes; at += kBlock) {
    for (Bytes& sum : sums) sum.assign(kBlock, std::byte{0});
    for (size_t i = 0; i < group.shards.size(); ++i) {
      const std::span<const std::byte> block = reader.read(i, at);
      for (size_t r = 0; r < rows.size(); ++r)
        add_product(coefficient(rows[r], i, group.parity.size()), block, sums[r]);
    }
    for (size_t r = 0; r < rows.size(); ++r) out[r]->write(sums[r]);
  }
  std::vector<FileInfo> infos;
  for (const auto& file : out) {
    file->commit();
    infos.push_back(file->info());
  }
  return infos;
}

/// Shards `lost` from the others and as many rows of parity. Their checksums decide whether they
/// take their names.
void rebuild_shards(const fs::path& folder, const Manifest& manifest, const Group& group,
                    const std::vector<size_t>& lost, const std::vector<size_t>& rows,
                    RepairReport& report) {
  const size_t n = lost.size();
  std::vector<std::string> names;
  std::vector<size_t> present;
  for (size_t i = 0; i < group.shards.size(); ++i) {
    if (std::ranges::find(lost, i) == lost.end()) {
      present.push_back(i);
      names.push_back(group.shards[i]);
    }
  }
  for (const size_t row : rows) names.push_back(group.parity[row]);
  std::vector<std::vector<uint8_t>> matrix(n, std::vector<uint8_t>(n));
  for (size_t r = 0; r < n; ++r)
    for (size_t c = 0; c < n; ++c)
      matrix[r][c] = coefficient(rows[r], lost[c], group.parity.size());
  const auto solve = inverted(matrix);
  GroupReader reader(folder, manifest, names);
  std::vector<std::unique_ptr<SummedFile>> out;
  for (const size_t i : lost)
    out.push_back(std::make_unique<SummedFile>(folder / group.shards[i],
                                               manifest.files.find(group.shards[i])->second.bytes));
  std::vector<Bytes> sums(n), solved(n);
  const uint64_t bytes = longest(manifest, group.shards);
  for (uint64_t at = 0; at < bytes; at += kBlock) {
    for (size_t r = 0; r < n; ++r) {
      const auto block = reader.read(present.size() + r, at);
      sums[r].assign(block.begin(), block.end());
    }
    for (size_t k = 0; k < present.size(); ++k) {
      const auto block = reader.read(k, at);
      for (size_t r = 0; r < n; ++r)
        add_product(coefficient(rows[r], present[k], group.parity.size()), block, sums[r]);
    }
    for (size_t c = 0; c < n; ++c) {
      solved[c].assign(kBlock, std::byte{0});
      for (size_t r = 0; r < n; ++r) add_product(solve[c][r], sums[r], solved[c]);
      out[c]->write(solved[c]);
    }
  }
  for (size_t c = 0; c < n; ++c) {
    const std::string& name = group.shards[lost[c]];
    const FileInfo& info = manifest.files.find(name)->second;
    if (info.chunk_bytes != kBlock || out[c]->info().crcs == info.crcs) out[c]->commit();
    if (is_good(folder, name, info)) {
      report.repaired.push_back(name);
    } else {
      report.lost.push_back(
          fmt::format("{}: the checksums of the rebuilt file do not match", name));
    }
  }
}

void repair_group(const fs::path& folder, const Manifest& manifest, const Group& group,
                  RepairReport& report) {
  const size_t lost_before = report.lost.size();
  std::vector<size_t> lost, good_rows, bad_rows;
  for (size_t i = 0; i < group.shards.size(); ++i) {
    if (!is_good(folder, group.shards[i], manifest.files.find(group.shards[i])->second))
      lost.push_back(i);
  }
  for (size_t row = 0; row < group.parity.size(); ++row) {
    const bool good =
        is_good(folder, group.parity[row], manifest.parity.find(group.parity[row])->second.file);
    (good ? good_rows : bad_rows).push_back(row);
  }
  if (lost.size() > good_rows.size()) {
    std::vector<std::string> names;
    for (const size_t i : lost) names.push_back(group.shards[i]);
    report.lost.push_back(
        fmt::format("{}: {} files are corrupted, but only {} parity files are intact",
                    fmt::join(names, ", "), lost.size(), good_rows.size()));
    return;
  }
  if (!lost.empty()) {
    good_rows.resize(lost.size());
    rebuild_shards(folder, manifest, group, lost, good_rows, report);
  }
  if (bad_rows.empty() || report.lost.size() > lost_before) return;
  write_rows(folder, manifest, group, bad_rows);
  for (const size_t row : bad_rows) report.repaired.push_back(group.parity[row]);
}

} // namespace

namespace {

/// The groups of a checkpoint that is to get `count` parity files for each.
std::vector<Group> new_groups(const Manifest& manifest, int64_t count) {
  if (count < 0 || count > static_cast<int64_t>(kMaxParity))
    raise<CheckpointError>("{} parity files are out of range: 0 to {} are allowed", count,
                           kMaxParity);
  std::vector<std::string> names;
  for (const auto& [name, file] : manifest.files) names.push_back(name);
  std::vector<Group> groups;
  for (size_t first = 0; first < names.size() && count > 0; first += kGroup) {
    Group& group = groups.emplace_back();
    const auto begin = names.begin() + static_cast<std::ptrdiff_t>(first);
    group.shards.assign(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(kGroup, names.size() - first)));
    for (size_t row = 0; row < static_cast<size_t>(count); ++row)
      group.parity.push_back(
          fmt::format("parity_{:05}_{:03}{}", first / kGroup, row, kParitySuffix));
  }
  return groups;
}

/// A range of a file that several write, each its own.
class PartFile {
 public:
  explicit PartFile(fs::path path)
      : path_(std::move(path)),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) require_descriptors(errno, path_.native());
    if (descriptor_ < 0) fail();
  }
  ~PartFile() { ::close(descriptor_); }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void write(uint64_t at, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail();
      bytes = bytes.subspan(static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
  }
  void sync() const {
    if (::fsync(descriptor_) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    raise<CheckpointError>("cannot write {}: {}", path_.string(), std::strerror(errno));
  }

  fs::path path_;
  int descriptor_;
};

/// Writes blocks [first, last) of all parity files of the group; adds their checksums by file.
void write_blocks(const fs::path& folder, const Manifest& manifest, const Group& group,
                  uint64_t first, uint64_t last, Json& crcs,
                  const std::function<void()>& progress) {
  const size_t rows = group.parity.size();
  for (const std::string& name : group.parity) crcs[name] = Json::array();
  if (first == last) return;
  const uint64_t bytes = longest(manifest, group.shards);
  GroupReader reader(folder, manifest, group.shards);
  std::vector<std::unique_ptr<PartFile>> out;
  for (const std::string& name : group.parity)
    out.push_back(std::make_unique<PartFile>(folder / name));
  std::vector<Bytes> sums(rows);
  for (uint64_t block = first; block < last; ++block) {
    const uint64_t at = block * kBlock;
    for (Bytes& sum : sums) sum.assign(kBlock, std::byte{0});
    for (size_t i = 0; i < group.shards.size(); ++i) {
      const std::span<const std::byte> read = reader.read(i, at);
      for (size_t r = 0; r < rows; ++r) add_product(coefficient(r, i, rows), read, sums[r]);
      if (progress) progress();
    }
    for (size_t r = 0; r < rows; ++r) {
      const auto part =
          std::span(sums[r]).first(static_cast<size_t>(std::min<uint64_t>(kBlock, bytes - at)));
      out[r]->write(at, part);
      crcs[group.parity[r]].push_back(crc32c(part));
    }
  }
  for (const auto& file : out) {
    file->sync();
    if (progress) progress();
  }
}

} // namespace

void write_parity(const fs::path& folder, Manifest& manifest, int64_t count) {
  const std::string whole = write_parity_part(folder, manifest, count, 0, 1);
  add_parity(folder, manifest, count, {&whole, 1});
}

std::string write_parity_part(const fs::path& folder, const Manifest& manifest, int64_t count,
                              int64_t part, int64_t of, const std::function<void()>& progress) {
  Json crcs = Json::object();
  for (const Group& group : new_groups(manifest, count)) {
    const uint64_t blocks = (longest(manifest, group.shards) + kBlock - 1) / kBlock;
    const auto bound = [&](int64_t i) {
      return blocks * static_cast<uint64_t>(i) / static_cast<uint64_t>(of);
    };
    write_blocks(folder, manifest, group, bound(part), bound(part + 1), crcs, progress);
  }
  return dump_json(crcs);
}

void add_parity(const fs::path& folder, Manifest& manifest, int64_t count,
                std::span<const std::string> parts) {
  for (const Group& group : new_groups(manifest, count))
    for (size_t row = 0; row < group.parity.size(); ++row)
      manifest.parity[group.parity[row]] = {
          .file = {.bytes = longest(manifest, group.shards)}, .row = row, .shards = group.shards};
  for (const std::string& text : parts) {
    const Json crcs = parse_json(text, "a rank's parity");
    for (auto& [name, parity] : manifest.parity)
      for (const int64_t crc : json_get<std::vector<int64_t>>(crcs, name, "a rank's parity"))
        parity.file.crcs.push_back(static_cast<uint32_t>(crc));
  }
  for (const auto& [name, parity] : manifest.parity) {
    if (parity.file.crcs.size() != parity.file.num_chunks())
      raise<CheckpointError>("{} has {} chunks instead of {}", name, parity.file.crcs.size(),
                             parity.file.num_chunks());
    const ShardFile file(folder / name, parity.file); // has its size
  }
}

RepairReport repair_checkpoint(const fs::path& folder) {
  RepairReport report;
  const Manifest manifest = repair_small_files(folder, report.repaired, report.lost);
  std::set<std::string> covered;
  for (const Group& group : groups_of(manifest)) {
    covered.insert(group.shards.begin(), group.shards.end());
    repair_group(folder, manifest, group, report);
  }
  for (const auto& [name, info] : manifest.files) {
    if (!covered.contains(name) && !is_good(folder, name, info))
      report.lost.push_back(fmt::format("{} is corrupted, and no parity file covers it", name));
  }
  return report;
}

} // namespace pentatron::checkpoint
