# shellcheck shell=bash
# Sourced by the scripts: prepare_environment installs what pyproject.toml asks for, once, and makes this clone importable.
#
#   The environment   A virtual environment outside the clone, named by a hash of what it holds, shared by all clones.
#                     A run that is interrupted leaves no ".complete" in it, and the next run starts it afresh.
#   This clone        PYTHONPATH: its sources, and its metadata (entry points) below .build/. Every process that is
#                     started from here inherits it, so SGLang's own processes find the plugin too.
#
# Variables: SGLANG_ENTROPIC_VENV_ROOT (where environments are kept; default ${XDG_CACHE_HOME:-~/.cache}/sgl_entropic/venvs)
#            SGLANG_ENTROPIC_PYTHON    (the Python to build with; default: the first usable of python3.11 .. python3)
# pip's own configuration and cache are used as they are.

CLONE="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
VENV_ROOT="${SGLANG_ENTROPIC_VENV_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/sgl_entropic/venvs}"
# Measured: 11 GB stay, nearly all of it CUDA libraries that torch brings. While pip works, its temporary files (the
# wheels, about 3 GB) come on top.
NEED_GB=15
PROGRESS_S=15

say() { printf 'sgl_entropic: %s\n' "$*" >&2; }

fail() {
  say "$@"
  exit 1
}

# step WHAT COMMAND...: run COMMAND, or stop and say which step it was.
step() {
  local what="$1"
  shift
  say "$what"
  "$@" || fail "this step failed: $what
  the command was: $*
  the reason is printed above; run the script again when it is mended, it starts this afresh"
}

# attempt NAME COMMAND...: run COMMAND; if it fails, NAME joins the list of those that failed, and the script goes on.
failed=()
attempt() {
  local name="$1"
  shift
  "$@" || failed+=("$name")
}

# no_failures WHAT: stop if any attempt failed, saying WHAT and which.
no_failures() { ((${#failed[@]} == 0)) || fail "$1: ${failed[*]}"; }

prepare_environment() {
  check_machine
  local python key
  python="$(find_python)"
  key="$("$python" "$CLONE/scripts/lib/requirements.py" key)"
  VENV="$VENV_ROOT/$key"
  is_complete || install_locked "$python"
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
  build_kernels
  attach_clone
}

check_machine() {
  [[ "$(uname -s)" == Linux ]] || fail "SGLang runs on Linux only; this is $(uname -s)"
  [[ "$(uname -m)" == x86_64 ]] || say "note: only x86_64 has been tried; this is $(uname -m)"
  local glibc tool
  glibc="$(getconf GNU_LIBC_VERSION 2>/dev/null || true)"
  glibc="${glibc#glibc }"
  if [[ -z "$glibc" || "$(printf '%s\n' 2.34 "$glibc" | sort -V | head -n 1)" != 2.34 ]]; then
    fail "SGLang's wheels need glibc 2.34 or newer (Debian 12, Ubuntu 22.04, Fedora 35); found: ${glibc:-none}"
  fi
  for tool in df flock mktemp; do
    command -v "$tool" >/dev/null || fail "the program '$tool' is missing (packages coreutils and util-linux)"
  done
}

# Prints the Python to build with: 3.11 (the one that is tested), else 3.12 or 3.13.
find_python() {
  local candidate without_venv=""
  for candidate in ${SGLANG_ENTROPIC_PYTHON:+"$SGLANG_ENTROPIC_PYTHON"} python3.11 python3.12 python3.13 python3 python; do
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
    without_venv="$without_venv $candidate"
  done
  [[ -z "$without_venv" ]] || fail "found$without_venv, but without the module venv or ensurepip
  on Debian and Ubuntu: apt-get install python3.11-venv (or python3-venv)"
  fail "Python 3.11, 3.12 or 3.13 is needed and none was found
  Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv; Fedora: dnf install python3.11
  or name one: SGLANG_ENTROPIC_PYTHON=/path/to/python3.11 ${0}"
}

is_complete() { [[ -f "$VENV/.complete" ]] && "$VENV/bin/python" -c 'pass' 2>/dev/null; }

# One installation at a time; the runs that waited use what the first one built.
install_locked() {
  mkdir -p "$VENV_ROOT" || fail "cannot create $VENV_ROOT; choose another place with SGLANG_ENTROPIC_VENV_ROOT"
  (
    if ! flock --nonblock 9; then
      say "another run is installing into $VENV; waiting for it"
      flock 9
    fi
    is_complete || install_environment "$1"
  ) 9>"$VENV.lock"
}

install_environment() {
  if [[ -e "$VENV" ]]; then
    say "removing the unfinished or broken environment $VENV"
    rm -rf "$VENV"
  fi
  check_disk
  step "creating the environment $VENV" "$1" -m venv "$VENV"
  mkdir "$VENV/tmp"
  "$1" "$CLONE/scripts/lib/requirements.py" list >"$VENV/requirements.txt"
  pip_step "upgrading pip" install --upgrade pip
  pip_step "installing SGLang and the tools (11 GB; 5 minutes or more)" install -r "$VENV/requirements.txt"
  rm -rf "$VENV/tmp"
  touch "$VENV/.complete"
  say "installed $VENV; other directories in $VENV_ROOT are of older versions and may be deleted"
}

# pip_step WHAT ARGUMENTS...: run pip with its output in a log file, and tell now and then how far it is; stop if it
# fails.
pip_step() {
  local what="$1" log="$VENV/install.log" ticker status=0
  shift
  say "$what; details in $log"
  # The progress lines come from the background, pip runs in front: so an interrupt reaches pip. Without 9>&- the
  # background would hold the lock for longer than the installation.
  tell_progress "$BASHPID" 9>&- &
  ticker=$!
  # pip unpacks gigabytes in the temporary directory: keep that on the disk that was checked. It asks nothing, as no one
  # would see the question.
  env "TMPDIR=$VENV/tmp" "$VENV/bin/python" -m pip --no-input "$@" --progress-bar off >>"$log" 2>&1 || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ((status == 0)) && return
  say "the last lines of $log:"
  tail -n 20 "$log" | sed 's/^/  | /' >&2
  fail "this step failed: $what
  the command was: pip $*
  pip's whole output: $log (until the next run, which starts this afresh)"
}

# tell_progress PID: a line every PROGRESS_S seconds for as long as process PID lives.
tell_progress() {
  local start="$SECONDS"
  # The sleep may outlast this function, and must not keep a reader of the script's output waiting.
  while sleep "$PROGRESS_S" >/dev/null 2>&1 && kill -0 "$1" 2>/dev/null; do
    say "  $((SECONDS - start)) s: $(size_of "$VENV/lib") installed, $(size_of "$VENV/tmp") in pip's temporary files"
  done
}

# pip moves and removes files while they are being counted.
size_of() { { du -sh "$1" 2>/dev/null || true; } | cut -f 1; }

check_disk() {
  local free_kb
  free_kb="$(df -Pk "$VENV_ROOT" | awk 'NR == 2 { print $4 }')"
  ((free_kb >= NEED_GB * 1000 * 1000)) || fail "not enough disk: $NEED_GB GB are needed in $VENV_ROOT, $((free_kb / 1000 / 1000)) GB are free
  choose another place with SGLANG_ENTROPIC_VENV_ROOT"
}

# The compiled kernels of this clone, beside their Python modules; built anew when their sources or tools change.
build_kernels() {
  local package="$CLONE/kernels/sgl_entropic_kernels" stamp="$CLONE/.build/kernels.stamp" sources build built
  sources="$({
    "$VENV/bin/python" -VV
    "${CXX:-c++}" --version 2>/dev/null || true
    cat "$CLONE/kernels/CMakeLists.txt" "$CLONE"/kernels/src/*
  } | sha256sum | cut -c 1-16)"
  if compgen -G "$package/_native.*.so" >/dev/null && [[ "$(cat "$stamp" 2>/dev/null)" == "$sources" ]]; then
    return
  fi
  command -v "${CXX:-c++}" >/dev/null || fail "a C++17 compiler is needed to build the CPU kernels
  on Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; or name one with CXX"
  mkdir -p "$CLONE/.build"
  (
    flock 9
    [[ "$(cat "$stamp" 2>/dev/null)" == "$sources" ]] && exit 0
    say "building the CPU kernels (about half a minute); details in $CLONE/.build/kernels.log"
    build="$CLONE/.build/kernels-$("$VENV/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')"
    compile_kernels "the CPU kernels" "$build" "$CLONE/.build/kernels.log" all -DPython_EXECUTABLE="$VENV/bin/python"
    for built in "$build"/_native.*.so; do
      # Renamed into place: a process that has the old one loaded keeps it.
      cp "$built" "$package/.new-$$" && mv "$package/.new-$$" "$package/$(basename "$built")"
    done
    printf '%s\n' "$sources" >"$stamp"
  ) 9>"$CLONE/.build/kernels.lock" || exit 1
}

# compile_kernels WHAT BUILD LOG TARGET OPTION...: TARGET of kernels/CMakeLists.txt in folder BUILD, told in file LOG.
compile_kernels() {
  local what="$1" build="$2" log="$3" target="$4"
  shift 4
  {
    cmake -S "$CLONE/kernels" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" && ninja -C "$build" "$target"
  } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    fail "$what could not be built, see above and $log"
  }
}

# Puts this clone before everything else on PYTHONPATH, with its metadata, so that its entry points are found.
attach_clone() {
  local metadata temporary
  metadata="$CLONE/.build/metadata-$("$VENV/bin/python" "$CLONE/scripts/lib/requirements.py" text)"
  if [[ ! -d "$metadata" ]]; then
    mkdir -p "$CLONE/.build"
    temporary="$(mktemp -d "$CLONE/.build/new-XXXXXX")"
    "$VENV/bin/python" "$CLONE/scripts/lib/metadata.py" "$temporary" >"$temporary/log" 2>&1 ||
      fail "the metadata of this clone could not be made: $(cat "$temporary/log")"
    # Fails when a run beside this one was faster, which is as good.
    mv -T "$temporary" "$metadata" 2>/dev/null || rm -rf "$temporary"
  fi
  export PYTHONPATH="$metadata:$CLONE/python:$CLONE/kernels${PYTHONPATH:+:$PYTHONPATH}"
}
