#!/usr/bin/env bash
# Build the CPU kernels with a sanitizer and run their stress program.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/sanitize.sh [address|thread|all] [seconds] [seed]

Compares every operation of the kernels with plain arithmetic on random sizes, from several threads at once, for some
seconds (default 10) with each instruction set of this machine. The sanitizer sees accesses outside the memory that is
one's own (address) and unsynchronised ones (thread); all, the default, is both, one after the other.
TEXT
}

case "${1:-all}" in
  address | thread) kinds=("$1") ;;
  all) kinds=(address thread) ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
seconds="${2:-10}" seed="${3:-$RANDOM}"

# shellcheck source=scripts/lib/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
prepare_environment

# What the kernels would refuse on this processor is left out; of each set the flag that came last.
isas=(generic)
if grep -q -w avx2 /proc/cpuinfo; then isas+=(avx2); fi
if grep -q -w avx512_vnni /proc/cpuinfo; then isas+=(avx512); fi

for kind in "${kinds[@]}"; do
  build="$CLONE/.build/sanitize-$kind"
  mkdir -p "$build"
  compile_kernels "the stress program" "$build" "$build/log" stress -DSGE_SANITIZE="$kind"
  for isa in "${isas[@]}"; do
    say "sanitizer: $kind, $isa, $seconds s, seed $seed"
    attempt "$kind/$isa" env SGLANG_ENTROPIC_ISA="$isa" "$build/stress" "$seconds" "$seed"
  done
done

no_failures "these found something with seed $seed"
say "no sanitizer found anything"
