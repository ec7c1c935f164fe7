#!/usr/bin/env bash
# Run Python in the environment of this clone, installing it first if it is missing.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/python.sh [python arguments]

  scripts/python.sh -m sgl_entropic.models list      models that can be had without a hub; also: fetch, path, verify, remove
  scripts/python.sh -m pre_commit install            the instant checks at every commit of this clone
  scripts/python.sh benchmark/NAME.py                a benchmark
TEXT
}

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  usage
  exit 0
fi

# shellcheck source=scripts/lib/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
prepare_environment
exec python "$@"
