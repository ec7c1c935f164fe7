#include "weight.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <stdexcept>
#include <vector>

#include "half.h"
#include "team.h"

namespace sge {
namespace {

// Half-precision neighbours of a scale that are tried when an exact one is looked for.
constexpr int kScaleNeighbours = 2;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

size_t block_bytes(Format format) {
  return format == Format::int8 ? 2 * kPanel + kBlock / 4 * kQuad : 4 * kPanel + kBlock / 8 * kQuad;
}

size_t panel_size(Format format, int k, int blocks) {
  switch (format) {
    case Format::float32:
      return static_cast<size_t>(k) * kPanel * 4;
    case Format::bfloat16:
      return static_cast<size_t>(k) * kPanel * 2;
    default:
      return static_cast<size_t>(blocks) * block_bytes(format);
  }
}

// Where the code of input i (of a block) and an output lies among the quads.
int quad_offset(int i, int lane) { return i / 4 * kQuad + lane * 4 + i % 4; }

void put_half(uint8_t* to, int lane, uint16_t h) { std::memcpy(to + 2 * lane, &h, 2); }
uint16_t get_half(const uint8_t* from, int lane) {
  uint16_t h;
  std::memcpy(&h, from + 2 * lane, 2);
  return h;
}

// Codes of one group of one output. Returns whether scale * code is every weight exactly.
bool code_int8(const float* w, int count, uint16_t scale_half, int8_t* codes) {
  const float scale = half_value(scale_half);
  bool exact = true;
  for (int i = 0; i < count; ++i) {
    const float q = scale == 0.0f ? 0.0f : std::nearbyint(w[i] / scale);
    codes[i] = static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f));
    exact = exact && static_cast<float>(codes[i]) * scale == w[i];
  }
  return exact;
}

bool group_int8(const float* w, int count, uint16_t& scale_half, int8_t* codes, bool& fits) {
  float largest = 0.0f;
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    finite = finite && std::isfinite(w[i]);
    largest = std::max(largest, std::fabs(w[i]));
  }
  scale_half = half_of(largest / 127.0f);
  constexpr uint16_t kInfinity = 0x7c00;
  if (!finite || scale_half >= kInfinity) {
    std::fill(codes, codes + count, int8_t{0});
    fits = false;
    return false;
  }
  if (code_int8(w, count, scale_half, codes)) return true;
  // A file that was written in 8 bits has the scale that its own largest weight gave, a rounding away.
  for (int step = 1; step <= kScaleNeighbours; ++step) {
    for (int sign : {-1, 1}) {
      const int neighbour = static_cast<int>(scale_half) + sign * step;
      if (neighbour <= 0 || neighbour >= 0x7c00) continue;
      if (code_int8(w, count, static_cast<uint16_t>(neighbour), codes)) {
        scale_half = static_cast<uint16_t>(neighbour);
        return true;
      }
    }
  }
  code_int8(w, count, scale_half, codes);
  return false;
}

bool code_affine(const float* w, float scale, float minimum, uint8_t* codes) {
  for (int i = 0; i < kBlock; ++i) {
    const float q = scale == 0.0f ? 0.0f : std::nearbyint((w[i] - minimum) / scale);
    if (!(q >= 0.0f && q <= 15.0f)) return false;
    const float product = scale * q;  // this file is compiled without contraction: two roundings
    if (product + minimum != w[i]) return false;
    codes[i] = static_cast<uint8_t>(q);
  }
  return true;
}

bool group_affine4(const float* w, uint16_t& scale_half, uint16_t& minimum_half, uint8_t* codes) {
  const auto [low, high] = std::minmax_element(w, w + kBlock);
  minimum_half = half_of(*low);
  const float minimum = half_value(minimum_half);
  if (minimum != *low) return false;
  const int scale = half_of((*high - *low) / 15.0f);
  for (int step = 0; step <= kScaleNeighbours; ++step) {
    for (int sign : {1, -1}) {
      const int candidate = scale + sign * step;
      if (candidate < 0 || candidate >= 0x7c00) continue;
      scale_half = static_cast<uint16_t>(candidate);
      if (code_affine(w, half_value(scale_half), minimum, codes)) return true;
    }
  }
  return false;
}

}  // namespace

const char* name_of(Format format) {
  constexpr const char* names[] = {"float32", "bfloat16", "int8", "affine4"};
  return names[static_cast<int>(format)];
}

Weight::Weight(const float* matrix, int n_, int k_, const std::string& wanted, bool integer_)
    : n(n_), k(k_), panels(ceil_div(n_, kPanel)), blocks(ceil_div(k_, kBlock)), integer(integer_) {
  if (wanted != "float32" && wanted != "lossless" && wanted != "int8" && wanted != "small") {
    throw std::invalid_argument("format must be 'float32', 'lossless', 'int8' or 'small', not '" + wanted + "'");
  }
  if (integer && wanted != "int8" && wanted != "small") {
    throw std::invalid_argument("integer products need the format 'int8' or 'small', not '" + wanted + "'");
  }
  if (wanted == "float32") {
    pack(matrix, Format::float32);
    return;
  }
  if (wanted != "int8" && k % kBlock == 0 && pack(matrix, Format::affine4)) return;
  if (pack(matrix, Format::int8) || (wanted != "lossless" && fits)) return;
  integer = false;
  if (!pack(matrix, Format::bfloat16)) pack(matrix, Format::float32);
}

Weight::~Weight() {
  if (data_) munmap(data_, allocated_);
}

// Whether the format holds the matrix exactly; of the formats, only int8 is of use when not.
bool Weight::pack(const float* matrix, Format format_) {
  format = format_;
  panel_bytes = panel_size(format, k, blocks);
  constexpr size_t kHugePage = size_t{2} << 20;
  if (data_) munmap(data_, allocated_);
  data_ = nullptr;
  allocated_ = (bytes() + 64 + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = mmap(nullptr, allocated_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // A hint: fewer page-table walks while the weights stream by.
  if (bytes() >= kHugePage) madvise(memory, allocated_ / kHugePage * kHugePage, MADV_HUGEPAGE);
  data_ = static_cast<uint8_t*>(memory);
  std::atomic<bool> all_exact{true}, all_fit{true};
  const bool lossless = format == Format::affine4 || format == Format::bfloat16;
  team()->run(panels, [&](int p) {
    if (lossless && !all_exact.load(std::memory_order_relaxed)) return;
    bool panel_fits = true;
    if (!pack_panel(matrix, p, data_ + panel_bytes * static_cast<size_t>(p), panel_fits)) {
      all_exact.store(false, std::memory_order_relaxed);
    }
    if (!panel_fits) all_fit.store(false, std::memory_order_relaxed);
  });
  exact = all_exact.load();
  fits = all_fit.load();
  return exact;
}

bool Weight::pack_panel(const float* matrix, int panel, uint8_t* to, bool& fits_) {
  const int step = format == Format::float32 || format == Format::bfloat16 ? k : kBlock;
  std::vector<float> w(static_cast<size_t>(step));
  bool all_exact = true;
  for (int start = 0; start < k; start += step) {
    const int count = std::min(step, k - start);
    for (int lane = 0; lane < kPanel; ++lane) {
      const int row = panel * kPanel + lane;
      std::fill(w.begin(), w.end(), 0.0f);
      if (row < n) std::memcpy(w.data(), matrix + static_cast<size_t>(row) * k + start, sizeof(float) * count);
      switch (format) {
        case Format::float32:
          for (int i = 0; i < count; ++i) std::memcpy(to + 4 * (static_cast<size_t>(i) * kPanel + lane), &w[i], 4);
          break;
        case Format::bfloat16:
          for (int i = 0; i < count; ++i) {
            if (bits_of(w[i]) & 0xffff) return false;
            put_half(to, i * kPanel + lane, static_cast<uint16_t>(bits_of(w[i]) >> 16));
          }
          break;
        case Format::int8: {
          uint16_t scale;
          int8_t codes[kBlock];
          all_exact = group_int8(w.data(), kBlock, scale, codes, fits_) && all_exact;
          put_half(to, lane, scale);
          for (int i = 0; i < kBlock; ++i) to[2 * kPanel + quad_offset(i, lane)] = static_cast<uint8_t>(codes[i] + 128);
          break;
        }
        case Format::affine4: {
          uint16_t scale, minimum;
          uint8_t codes[kBlock];
          if (!group_affine4(w.data(), scale, minimum, codes)) return false;
          put_half(to, lane, scale);
          put_half(to, kPanel + lane, minimum);
          for (int i = 0; i < kBlock / 2; ++i) {
            to[4 * kPanel + quad_offset(i, lane)] = static_cast<uint8_t>(codes[i] | codes[i + kBlock / 2] << 4);
          }
          break;
        }
      }
    }
    if (step == kBlock) to += block_bytes(format);
  }
  return all_exact;
}

void Weight::row(int row, float* out) const {
  const uint8_t* from = panel(row / kPanel);
  const int lane = row % kPanel;
  if (format == Format::float32) {
    for (int i = 0; i < k; ++i) std::memcpy(out + i, from + 4 * (static_cast<size_t>(i) * kPanel + lane), 4);
    return;
  }
  if (format == Format::bfloat16) {
    for (int i = 0; i < k; ++i) out[i] = float_of(static_cast<uint32_t>(get_half(from, i * kPanel + lane)) << 16);
    return;
  }
  for (int start = 0; start < k; start += kBlock, from += block_bytes(format)) {
    const int count = std::min(kBlock, k - start);
    const float scale = half_value(get_half(from, lane));
    if (format == Format::int8) {
      for (int i = 0; i < count; ++i) {
        out[start + i] = scale * static_cast<float>(from[2 * kPanel + quad_offset(i, lane)] - 128);
      }
      continue;
    }
    const float minimum = half_value(get_half(from, kPanel + lane));
    for (int i = 0; i < count; ++i) {
      const uint8_t byte = from[4 * kPanel + quad_offset(i % (kBlock / 2), lane)];
      const float product = scale * static_cast<float>(i < kBlock / 2 ? byte & 15 : byte >> 4);
      out[start + i] = product + minimum;
    }
  }
}

}  // namespace sge
