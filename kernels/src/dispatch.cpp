#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace sge {
namespace {

const Kernels& choose() {
#if defined(SGE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
#else
  constexpr bool avx2 = false, avx512 = false;
#endif
  const char* variable = std::getenv("SGLANG_ENTROPIC_ISA");
  const std::string wanted = variable ? variable : "";
  if (!wanted.empty()) {
    if (wanted == "generic") return generic_kernels();
#if defined(SGE_X86)
    if (wanted == "avx2" && avx2) return avx2_kernels();
    if (wanted == "avx512" && avx512) return avx512_kernels();
#endif
    throw std::runtime_error("SGLANG_ENTROPIC_ISA=" + wanted + ": accepted: generic, and, where the processor has it, avx2, avx512");
  }
#if defined(SGE_X86)
  if (avx512) return avx512_kernels();
  if (avx2) return avx2_kernels();
#endif
  (void)avx2, (void)avx512;
  return generic_kernels();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace sge
