/// Products of bf16 matrices in tiles: Intel AMX (amx-tile, amx-bf16) behind a small type. x86-64
/// only.
///
/// A tile has 16 rows of 64 bytes. There are three kinds:
///   sums   16 x 16 fp32
///   rows   16 rows of op(A) x 32 bf16 of consecutive k
///   pairs  16 pairs of consecutive k x 16 columns of op(B), the two elements of a pair adjacent
/// dot() adds even + odd to sums[i][j], where even and odd are the sums of rows[i][k] pairs[k][j]
/// over the even and the odd k. Each is a chain of fused multiply-adds in order of k that begins
/// with 0. Every operation rounds to nearest even and takes subnormal inputs and results for zero.
///
/// The functions below take any type with the members of AmxTiles; tests give one in scalar code
/// (tests/kernels/emulated_tiles.h).
/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 1 ch. 18, vol. 2
/// TDPBF16PS.
#pragma once

#include <array>
#include <cstdint>

namespace pentatron::kernels {

constexpr int kTileRows = 16;
constexpr int kTileK = 32; ///< bf16 of a row
constexpr int64_t kTileBytes = 1024;

/// The eight tile registers of the calling thread, all 16 x 64 bytes while the object lives. A
/// thread makes one at the start of a parallel region and destroys it at the end: the destructor
/// releases the tiles, so that a context switch has nothing to save. A configuration that the
/// thread had before (of another library) is put back, without the tiles' content.
class AmxTiles {
 public:
  AmxTiles() {
    Config config{};
    config.palette = 1;
    for (int i = 0; i < kTiles; ++i) {
      config.row_bytes[static_cast<size_t>(i)] = 64;
      config.rows[static_cast<size_t>(i)] = kTileRows;
    }
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~AmxTiles() {
    if (before_.palette != 0) {
      asm volatile("ldtilecfg %0" ::"m"(before_));
    } else {
      asm volatile("tilerelease");
    }
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // Inline assembly and not the intrinsics: those of g++ 12 do not tell the compiler that a load
  // reads memory, which lets it move earlier stores behind the load.
  template <int kTile> void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(kTile)); }
  template <int kTile> void load(const void* data, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(data), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  /// Like load(), for a tile that is not reused while it would stay in the first-level cache: the
  /// load does not evict data that is reused (tileloaddt1).
  template <int kTile> void load_once(const void* data, int64_t row_bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(data), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile> void store(void* data, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(data), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kSums, int kRows, int kPairs> void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kPairs));
  }

 private:
  static constexpr int kTiles = 8;
  struct Config { // the operand of ldtilecfg
    uint8_t palette;
    uint8_t start_row;
    std::array<uint8_t, 14> reserved;
    std::array<uint16_t, 16> row_bytes; // of tiles 0..7; the others stay 0
    std::array<uint8_t, 16> rows;
  };
  static_assert(sizeof(Config) == 64);
  Config before_;
};

/// Where the tiles of an operand lie: tile i of step s begins at data + i tile_bytes + s
/// step_bytes, its rows row_bytes apart.
struct TileGrid {
  const void* data = nullptr;
  int64_t row_bytes = 0;
  int64_t tile_bytes = 0;
  int64_t step_bytes = 0;
};

/// c = a b, or c += a b if kAdd: (16 kRows) x (16 kColumns) sums, each of kRows and kColumns 1 or
/// 2, over `steps` steps of 32 k; the rows of c lie c_bytes apart. The sums stay in four tiles, so
/// that a step of 2 x 2 loads four tiles for four dots: 64 bytes a cycle at the peak rate of 16
/// cycles a dot, half of what the first-level cache gives and twice what the second-level cache
/// does. So `b` should lie in the first; `a` passes by it.
template <int kRows, int kColumns, bool kAdd, class Tiles>
void multiply_tiles(Tiles& tiles, int64_t steps, const TileGrid& a, const TileGrid& b, float* c,
                    int64_t c_bytes) {
  constexpr bool kDown = kRows == 2, kRight = kColumns == 2;
  char* const c0 = reinterpret_cast<char*>(c);
  char* const c1 = c0 + kTileRows * c_bytes;
  if constexpr (kAdd) {
    tiles.template load<0>(c0, c_bytes);
    if constexpr (kRight) tiles.template load<1>(c0 + 64, c_bytes);
    if constexpr (kDown) tiles.template load<2>(c1, c_bytes);
    if constexpr (kDown && kRight) tiles.template load<3>(c1 + 64, c_bytes);
  } else {
    tiles.template zero<0>();
    if constexpr (kRight) tiles.template zero<1>();
    if constexpr (kDown) tiles.template zero<2>();
    if constexpr (kDown && kRight) tiles.template zero<3>();
  }
  // Copies, because every tile load and store tells the compiler that memory may have changed.
  const int64_t a_row = a.row_bytes, b_row = b.row_bytes, a_step = a.step_bytes,
                b_step = b.step_bytes;
  const char* a0 = static_cast<const char*>(a.data);
  const char* a1 = a0 + a.tile_bytes;
  const char* b0 = static_cast<const char*>(b.data);
  const char* b1 = b0 + b.tile_bytes;
  for (int64_t s = 0; s < steps; ++s) {
    tiles.template load<6>(b0, b_row);
    tiles.template load_once<4>(a0, a_row);
    tiles.template dot<0, 4, 6>();
    if constexpr (kRight) {
      tiles.template load<7>(b1, b_row);
      tiles.template dot<1, 4, 7>();
    }
    if constexpr (kDown) {
      tiles.template load_once<5>(a1, a_row);
      tiles.template dot<2, 5, 6>();
    }
    if constexpr (kDown && kRight) tiles.template dot<3, 5, 7>();
    a0 += a_step, a1 += a_step, b0 += b_step, b1 += b_step;
  }
  tiles.template store<0>(c0, c_bytes);
  if constexpr (kRight) tiles.template store<1>(c0 + 64, c_bytes);
  if constexpr (kDown) tiles.template store<2>(c1, c_bytes);
  if constexpr (kDown && kRight) tiles.template store<3>(c1 + 64, c_bytes);
}

/// The variant with `rows` and `columns` (1 or 2 tiles) known at run time.
template <bool kAdd, class Tiles>
void multiply_tiles(Tiles& tiles, int rows, int columns, int64_t steps, const TileGrid& a,
                    const TileGrid& b, float* c, int64_t c_bytes) {
  if (rows == 2) {
    if (columns == 2) return multiply_tiles<2, 2, kAdd>(tiles, steps, a, b, c, c_bytes);
    return multiply_tiles<2, 1, kAdd>(tiles, steps, a, b, c, c_bytes);
  }
  if (columns == 2) return multiply_tiles<1, 2, kAdd>(tiles, steps, a, b, c, c_bytes);
  return multiply_tiles<1, 1, kAdd>(tiles, steps, a, b, c, c_bytes);
}

} // namespace pentatron::kernels
