// Compiled once for each instruction set (see CMakeLists.txt), always without contraction: where a multiplication and an
// addition are fused, the code says so, and so every format and every number of rows computes the same bits.
#include "impl_attention.h"
#include "impl_blocks.h"
#include "impl_codes.h"
#include "impl_integer.h"
#include "impl_products.h"
#include "impl_rows.h"
#include "impl_sampling.h"
#include "kernels.h"

namespace sge::SGE_ISA {

const Kernels& table() {
#define SGE_NAME(x) #x
#define SGE_STRING(x) SGE_NAME(x)
  static const Kernels kernels = {
      SGE_STRING(SGE_ISA), linear, linear_integer, round_inputs, row_sums,     rms_norm,
      silu_mul,            rope,   to_bf16_row,    decode_share, extend_block,
      bound_keys,          code_keys,      score_bounds,   score_codes, keep_largest,
      tempered,            draw_row, solve_row,
  };
  return kernels;
}

}  // namespace sge::SGE_ISA

namespace sge {
#define SGE_JOIN(a, b) a##b
#define SGE_FUNCTION(isa) SGE_JOIN(isa, _kernels)
const Kernels& SGE_FUNCTION(SGE_ISA)() { return SGE_ISA::table(); }
}  // namespace sge
