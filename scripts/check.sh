#!/usr/bin/env bash
# Everything that can be said of the code without running it. Runs all checks, then fails if any did.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/check.sh [--fix]

Format, lint, types, import contracts, shell scripts, documentation. --fix formats and mends what ruff can mend.
TEXT
}

# shellcheck source=scripts/lib/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"

format=(--check) lint=()
case "${1:-}" in
  "") ;;
  --fix) format=() lint=(--fix) ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac

prepare_environment
cd "$CLONE"

check() {
  say "check: $1"
  attempt "$@"
}

check format ruff format "${format[@]}" .
check lint ruff check "${lint[@]}" .
check types mypy
check imports lint-imports
check shell shellcheck --external-sources .ci/run scripts/*.sh scripts/lib/*.sh
# The variable silences an announcement of the theme's, which is no finding about our pages.
check docs env NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict --site-dir .build/site

no_failures "these checks failed"
say "all checks passed"
