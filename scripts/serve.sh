#!/usr/bin/env bash
# Start the server: install what is missing, fetch the default model if no other is named, serve.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/serve.sh [launcher flags]

Installs SGLang and its tools on the first run (11 GB, outside the clone), then starts
  python -m sgl_entropic.launch_server [launcher flags]
With no flag it serves the default model, which it fetches on the first run. All flags of
python -m sglang.launch_server are accepted, and --entropic-* beside them.

  scripts/serve.sh --model-path DIR --port 8000
  scripts/serve.sh --entropic-trace-path trace.jsonl

Variables: SGLANG_ENTROPIC_VENV_ROOT (where the environment is kept), SGLANG_ENTROPIC_PYTHON (the Python to build it with),
SGLANG_ENTROPIC_CACHE (where models are kept), HF_HUB_OFFLINE (set to 1 for a local model unless it is set).
TEXT
}

# shellcheck source=scripts/lib/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"

for argument in "$@"; do
  if [[ "$argument" == -h || "$argument" == --help ]]; then
    usage
    printf '\nThe launcher flags follow; the first time, this installs the environment.\n\n'
    break
  fi
done

# Whether the model named among the arguments, if any, is a directory (or the default one, which becomes a directory).
model_is_local() {
  local path="" name=""
  while (($# > 0)); do
    name="${1%%=*}"
    case "$name" in
      --model-path | --model)
        if [[ "$1" == *=* ]]; then path="${1#*=}"; else path="${2:-}"; fi
        ;;
      --config) return 1 ;; # SGLang's YAML file may name the model
    esac
    shift
  done
  [[ -z "$path" || -d "$path" ]]
}

# With everything on disk, nothing should wait for a hub that may be out of reach. HF_HUB_OFFLINE=0 lets it.
if model_is_local "$@"; then
  export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
fi

prepare_environment
exec python -m sgl_entropic.launch_server "$@"
