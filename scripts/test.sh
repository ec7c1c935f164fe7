#!/usr/bin/env bash
# Run the checks and all tests: install what is missing first.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [pytest arguments]

Without arguments: scripts/check.sh, then every test. With arguments: pytest with these, and no checks.

  scripts/test.sh                        everything, as the continuous integration runs it
  scripts/test.sh -m "not e2e"           without the tests that start a server
  scripts/test.sh test/trace -k sink     some

Variables: SGLANG_ENTROPIC_VENV_ROOT (where the environment is kept), SGLANG_ENTROPIC_PYTHON (the Python to build it with),
SGLANG_ENTROPIC_CACHE (where models are kept), HF_HUB_OFFLINE (set to 1 unless it is set).
TEXT
}

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  usage
  exit 0
fi

# shellcheck source=scripts/lib/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
prepare_environment
cd "$CLONE"

# The tests bring or make all the models they need: nothing waits for a hub.
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"

# Checks that fail do not hide what the tests have to say.
checks=0
(($# > 0)) || "$CLONE/scripts/check.sh" || checks=$?
tests=0
python -m pytest "$@" || tests=$?

((checks == 0)) || say "the checks failed, see above the tests"
((tests != 0)) && exit "$tests"
exit "$checks"
