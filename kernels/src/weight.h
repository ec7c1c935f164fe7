// A weight matrix [n, k] (k inputs, n outputs), packed once into panels of 16 outputs: a product streams each panel
// front to back. Every format stands for exactly one matrix of float32 numbers.
//
// One panel, input after input, 16 outputs side by side:
//   float32   16 floats
//   bfloat16  16 bfloat16; for float32 weights that are bfloat16 numbers
//   int8      blocks of 32 inputs: 16 scales (float16), then 8 quads; weight = scale * (code - 128)
//   affine4   blocks of 32 inputs: 16 scales and 16 minima (float16), then 4 pairs of quads, quad j in the low and quad
//             j + 4 in the high half of the bytes; weight = (scale * code) + minimum, rounded twice, as formats of this
//             kind define it
// A quad is four inputs of the 16 outputs, output by output: what one integer dot-product instruction takes.
//
// Products come in two kinds. With float inputs, all formats compute the same sums in the same order, so they differ in
// speed and size only. With `integer` set, the inputs are rounded to 8 bits first, in blocks of 32 with a scale each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sge {

constexpr int kPanel = 16;
constexpr int kBlock = 32;
constexpr int kQuad = 4 * kPanel;  // bytes

enum class Format : int { float32, bfloat16, int8, affine4 };

const char* name_of(Format format);

class Weight {
 public:
  // Packs a row-major [n, k] matrix. `wanted`: "float32" (as it is), "lossless" (the smallest format that holds exactly
  // these numbers), "int8" (rounded to 8 bits), "small" (lossless where that takes at most 8 bits, else int8).
  // Numbers that 8 bits with a float16 scale cannot stand for are kept as they are, and `integer` is off then.
  Weight(const float* matrix, int n, int k, const std::string& wanted, bool integer);
  ~Weight();
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  int n, k, panels;
  int blocks;  // of 32 inputs, the last one filled up; the formats of blocks only
  Format format;
  bool integer;  // products round their inputs to 8 bits; int8 and affine4 only
  bool exact;    // holds exactly the numbers it was made from
  bool fits;     // in int8: every block has a scale that float16 holds (no NaN, no infinity, nothing beyond 8 million)
  size_t panel_bytes;

  const uint8_t* panel(int index) const { return data_ + panel_bytes * static_cast<size_t>(index); }
  size_t bytes() const { return panel_bytes * static_cast<size_t>(panels); }
  // Row `row` as float32 [k].
  void row(int row, float* out) const;

 private:
  bool pack(const float* matrix, Format format);
  bool pack_panel(const float* matrix, int panel, uint8_t* to, bool& fits);

  uint8_t* data_ = nullptr;
  size_t allocated_ = 0;
};

}  // namespace sge
