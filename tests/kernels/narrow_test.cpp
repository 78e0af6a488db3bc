#include "pentatron/kernels/optimizer/narrow.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/formats.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

constexpr NarrowType kTypes[] = {NarrowType::kBFloat16, NarrowType::kFloat16, NarrowType::kE4M3};
constexpr uint64_t kStep = (uint64_t{1} << 33) + 7;

/// What a code without a sign stands for.
double number_of(NarrowType type, uint32_t code) {
  switch (type) {
  case NarrowType::kBFloat16:
    return to_acc(bf16{static_cast<uint16_t>(code)});
  case NarrowType::kFloat16:
    return to_acc(fp16{static_cast<uint16_t>(code)});
  case NarrowType::kE4M3:
    break;
  }
  return value_of(kE4M3, static_cast<uint8_t>(code));
}
uint32_t largest_code(NarrowType type) {
  return type == NarrowType::kBFloat16 ? 0x7F7F : type == NarrowType::kFloat16 ? 0x7BFF : 0x7E;
}
uint32_t sign_of(NarrowType type) {
  return type == NarrowType::kE4M3 ? 0x80 : 0x8000;
}

/// Codes of a type, with memory that a GPU reaches.
struct Codes {
  Codes(NarrowType of, int64_t n)
      : type(of), size(n), memory(DType::kBFloat16, of == NarrowType::kE4M3 ? (n + 1) / 2 : n) {}
  uint32_t operator[](int64_t i) const {
    return type == NarrowType::kE4M3 ? static_cast<const uint8_t*>(memory.data())[i]
                                     : static_cast<const uint16_t*>(memory.data())[i];
  }
  void set(int64_t i, uint32_t code) {
    if (type == NarrowType::kE4M3)
      static_cast<uint8_t*>(memory.data())[i] = static_cast<uint8_t>(code);
    else
      static_cast<uint16_t*>(memory.data())[i] = static_cast<uint16_t>(code);
  }
  double number(int64_t i) const {
    const uint32_t code = (*this)[i], sign = code & sign_of(type);
    return (sign != 0 ? -1 : 1) * number_of(type, code ^ sign);
  }
  NarrowType type;
  int64_t size;
  Array memory;
};

StoreNarrowArgs arguments(const Array& x, Codes& codes) {
  return {.dtype = x.dtype(),
          .type = codes.type,
          .cols = x.size(),
          .stride = x.size(),
          .value = x.data(),
          .stored = codes.memory.data(),
          .by_chance = true,
          .key = Stream(5, "rounding").key(),
          .step = kStep,
          .first = 1000};
}

/// In (0, 1).
double draw_of(int64_t element) {
  const auto g = static_cast<uint64_t>(element), h = g % 128 / 16;
  const uint32_t word = Stream(5, "rounding").bits(g / 128 * 16 + g % 16, kStep)[h % 4];
  return ((h < 4 ? word & 0xFFFF : word >> 16) + 0.5) * 0x1p-16;
}

/// The largest code whose number is at most `size`.
uint32_t code_below(NarrowType type, double size) {
  uint32_t low = 0, high = largest_code(type) + 1;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (number_of(type, middle) <= size ? low : high) = middle;
  }
  return low;
}

/// Numbers of all sizes, most of them within the range of the type.
Array numbers(DType dtype, NarrowType type, int64_t n, bool positive) {
  Array x = Array::random(DType::kFloat32, n, 3), y(dtype, n);
  const double bits = type == NarrowType::kBFloat16 ? 270 : type == NarrowType::kFloat16 ? 50 : 30;
  const double most = std::log2(number_of(type, largest_code(type)));
  y.fill([&](int64_t i) {
    const double size =
        std::exp2(most - 3 - bits * static_cast<double>(i) / static_cast<double>(n));
    const double number = static_cast<float>(x[i] * size);
    return positive ? std::abs(number) : number;
  });
  return y;
}

/// What `visit(x, below)` makes of elements, against every entry.
template <class Up>
void expect_codes(const StoreNarrowArgs& a, const Array& x, Codes& codes, const Up& goes_up) {
  const int64_t n = x.size();
  for (const auto& e : entries_for(store_narrow_entries(), a)) {
    e.run(a, {});
    int64_t up = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto y = static_cast<float>(x[i] * a.scale * (a.root ? a.scale : 1));
      const double size = a.root ? std::sqrt(y) : std::abs(y);
      const uint32_t below = code_below(codes.type, size), largest = largest_code(codes.type);
      uint32_t expected = below;
      if (below < largest && goes_up(i, std::abs(y), below)) ++expected, ++up;
      ASSERT_EQ(codes[i], expected | (!a.root && std::signbit(x[i]) ? sign_of(codes.type) : 0))
          << e.name << " " << x[i] << " " << static_cast<int>(codes.type) << a.root;
    }
    EXPECT_GT(up, n / 10);
    EXPECT_LT(up, 9 * n / 10);
  }
}

TEST(StoreNarrow, ByChanceTakesTheUpperNeighbourForItsShareOfTheDraws) {
  for (const NarrowType type : kTypes)
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const Array x = numbers(dtype, type, 3001, false);
      Codes codes(type, x.size());
      StoreNarrowArgs a = arguments(x, codes);
      a.scale = 0.5;
      expect_codes(a, x, codes, [&](int64_t i, double size, uint32_t below) {
        const double low = number_of(type, below), high = number_of(type, below + 1);
        return draw_of(1000 + i) * (high - low) < size - low;
      });
    }
}

TEST(StoreNarrow, OfRootsByChanceTakesTheShareOfTheSquares) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Array x = numbers(dtype, NarrowType::kE4M3, 3001, true);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, static_cast<float>(x[i] * x[i] * 64));
    Codes codes(NarrowType::kE4M3, x.size());
    StoreNarrowArgs a = arguments(x, codes);
    a.scale = 0.25;
    a.root = true;
    expect_codes(a, x, codes, [&](int64_t i, double square, uint32_t below) {
      const double low = number_of(codes.type, below), high = number_of(codes.type, below + 1);
      return draw_of(1000 + i) * (high * high - low * low) < square - low * low;
    });
  }
}

TEST(StoreNarrow, ToTheNearestBreaksTiesToEven) {
  for (const NarrowType type : kTypes)
    for (const bool root : {false, true}) {
      if (root && type != NarrowType::kE4M3) continue;
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
        Array x = numbers(dtype, type, 3001, root);
        for (int64_t i = 0; i < x.size(); ++i) {
          const auto code = static_cast<uint32_t>(i % 100);
          // Every third lies half way.
          double size =
              i % 3 == 0 ? (number_of(type, code) + number_of(type, code + 1)) / 2 : std::abs(x[i]);
          if (root) size = static_cast<float>(size * size);
          x.set(i, std::signbit(x[i]) ? -size : size);
        }
        Codes codes(type, x.size());
        StoreNarrowArgs a = arguments(x, codes);
        a.by_chance = false;
        a.root = root;
        expect_codes(a, x, codes, [&](int64_t, double y, uint32_t below) {
          const double low = number_of(type, below), high = number_of(type, below + 1);
          const double size = root ? std::sqrt(static_cast<float>(y)) : y;
          return size - low > high - size || (size - low == high - size && below % 2 != 0);
        });
      }
    }
}

/// What is stored has the number, or the square, as its mean; nothing but the two neighbours
/// occurs.
TEST(StoreNarrow, IsExactOnAverage) {
  const int64_t n = int64_t{1} << 20;
  for (const bool root : {false, true})
    for (const NarrowType type : kTypes) {
      if (root && type != NarrowType::kE4M3) continue;
      const double least = number_of(type, 1), most = number_of(type, largest_code(type));
      for (const double number :
           {1.37, 0.013, 0.3 * least, 1.45 * least, 5.001 * least, 0.977 * most, 1.002 * 0.25}) {
        const auto value = static_cast<float>(root ? number * number : number);
        const Array x(DType::kFloat32, n, value);
        Codes codes(type, n);
        StoreNarrowArgs a = arguments(x, codes);
        a.root = root;
        store_narrow(a);
        const uint32_t below = code_below(type, root ? std::sqrt(value) : value);
        int64_t up = 0;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_TRUE(codes[i] == below || codes[i] == below + 1) << number;
          up += codes[i] - below;
        }
        double low = number_of(type, below), high = number_of(type, below + 1);
        if (root) low *= low, high *= high;
        const double share = (value - low) / (high - low);
        const double noise = std::sqrt(share * (1 - share) / static_cast<double>(n));
        EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(n), share, 4 * noise)
            << number << " " << static_cast<int>(type) << root;
        EXPECT_GT(up, 0) << number;
        EXPECT_LT(up, n) << number;
      }
    }
}

TEST(StoreNarrow, OfPartsOfAMatrixIsThatOfTheWhole) {
  const int64_t rows = 37, cols = 150;
  for (const NarrowType type : kTypes) {
    const Array x = numbers(DType::kFloat32, type, rows * cols, true);
    Codes whole(type, rows * cols);
    const StoreNarrowArgs a = arguments(x, whole);
    reference_of(store_narrow_entries()).run(a, {});
    const int64_t width = type == NarrowType::kE4M3 ? 1 : 2;
    for (const auto& e : entries_for(store_narrow_entries(), a))
      for (const int64_t part : {1, 17, 64, 149}) {
        Codes cut(type, rows * cols);
        for (int64_t c = 0; c < cols; c += part) {
          StoreNarrowArgs b = arguments(x, cut);
          b.rows = rows;
          b.cols = std::min(part, cols - c);
          b.stride = b.first_step = cols;
          b.value = static_cast<const float*>(x.data()) + c;
          b.stored = static_cast<std::byte*>(cut.memory.data()) + width * c;
          b.first += c;
          e.run(b, {});
        }
        EXPECT_TRUE(cut.memory.same_bits(whole.memory)) << e.name << " " << part;
      }
  }
}

TEST(StoreNarrow, KeepsZerosAndWhatIsNoNumber) {
  const double tiny = std::numeric_limits<float>::denorm_min();
  for (const NarrowType type : kTypes)
    for (const bool positive : {false, true})
      for (const auto& [root, chance] :
           {std::pair(false, true), {true, true}, {false, false}, {true, false}}) {
        if (root && type != NarrowType::kE4M3) continue;
        const bool saturates = type != NarrowType::kBFloat16;
        const uint32_t largest = largest_code(type), sign = sign_of(type);
        const Array x = Array::of(DType::kFloat32,
                                  {0.0, kNaN, kInf, 3.4e38, tiny, -0.0, -kInf, -3.4e38, -tiny});
        Codes codes(type, x.size());
        StoreNarrowArgs a = arguments(x, codes);
        a.root = root;
        a.positive = positive;
        a.by_chance = chance;
        for (const auto& e : entries_for(store_narrow_entries(), a)) {
          e.run(a, {});
          EXPECT_EQ(codes[0], 0u) << e.name;
          EXPECT_TRUE(std::isnan(codes.number(1))) << e.name;
          EXPECT_EQ(codes[2], largest + (saturates ? 0 : 1)) << e.name;
          EXPECT_EQ(codes[3], largest) << e.name << ": no number becomes infinite";
          EXPECT_EQ(codes[4], positive ? 1u : 0u) << e.name;
          if (root) continue;
          EXPECT_EQ(codes[5], sign) << e.name;
          EXPECT_EQ(codes[6], (largest + (saturates ? 0 : 1)) | sign) << e.name;
          EXPECT_EQ(codes[7], largest | sign) << e.name;
          EXPECT_EQ(codes[8], sign) << e.name;
        }
      }
}

TEST(StoreNarrow, DrawsAnewInEachStepAndForEachKey) {
  const Array x(DType::kFloat32, 1000, 1.3);
  Codes first(NarrowType::kE4M3, 1000), again = first, next = first, other = first;
  store_narrow(arguments(x, first));
  store_narrow(arguments(x, again));
  EXPECT_TRUE(first.memory.same_bits(again.memory));
  StoreNarrowArgs a = arguments(x, next);
  ++a.step;
  store_narrow(a);
  EXPECT_FALSE(first.memory.same_bits(next.memory));
  a = arguments(x, other);
  ++a.key[1];
  store_narrow(a);
  EXPECT_FALSE(first.memory.same_bits(other.memory));
}

/// Every code of every type.
TEST(LoadNarrow, GivesTheNumbersOfAllCodes) {
  for (const NarrowType type : kTypes)
    for (const bool root : {false, true})
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
        const int64_t n = type == NarrowType::kE4M3 ? 256 : 65536;
        Codes codes(type, n);
        for (int64_t i = 0; i < n; ++i) codes.set(i, static_cast<uint32_t>(i));
        Array values(dtype, n - 3); // no whole number of vectors
        const LoadNarrowArgs a{.dtype = dtype,
                               .type = type,
                               .n = values.size(),
                               .stored = codes.memory.data(),
                               .value = values.data(),
                               .scale = 0.25,
                               .root = root};
        for (const auto& e : entries_for(load_narrow_entries(), a)) {
          values.fill([](int64_t) { return 7; });
          e.run(a, {});
          for (int64_t i = 0; i < values.size(); ++i) {
            const double number = codes.number(i) * 4, expected = root ? number * number : number;
            if (std::isnan(expected))
              ASSERT_TRUE(std::isnan(values[i])) << e.name << " " << i;
            else
              ASSERT_EQ(values[i],
                        dtype == DType::kFloat32 ? static_cast<float>(expected) : expected)
                  << e.name << " " << i << " " << static_cast<int>(type);
          }
        }
      }
}

TEST(StoreNarrow, RefusesWhatItDoesNotKnow) {
  Array x(DType::kBFloat16, 4);
  Codes codes(NarrowType::kFloat16, 4);
  EXPECT_THROW(store_narrow(arguments(x, codes)), ShapeError);
  Array y(DType::kFloat32, 4);
  StoreNarrowArgs a = arguments(y, codes);
  a.root = true;
  EXPECT_THROW(store_narrow(a), ShapeError);
}

} // namespace
} // namespace pentatron::kernels
