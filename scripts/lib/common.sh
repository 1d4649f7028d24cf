# Messages, timing and the log. Sourced by scripts/setup.

log=build/setup.log

say() { printf 'setup: %s\n' "$*"; }

# fail WHAT [WHAT TO DO]...
fail() {
  printf 'setup: error: %s\n' "$1" >&2
  shift
  if (($# > 0)); then printf '  %s\n' "$@" >&2; fi
  exit 1
}

# A path relative to the repository root, if it is inside.
short_path() { printf '%s' "${1#"$root"/}"; }

have() { command -v "$1" >/dev/null 2>&1; }

# at_least 12.2 12  succeeds if the first version is not older than the second.
at_least() {
  local -a a b
  IFS=. read -ra a <<<"${1%%[!0-9.]*}"
  IFS=. read -ra b <<<"$2"
  local i
  for i in "${!b[@]}"; do
    if ((10#${a[i]:-0} != 10#${b[i]})); then
      ((10#${a[i]:-0} > 10#${b[i]}))
      return
    fi
  done
}

# Creates build/ and takes a lock, so that two runs do not use pip at the same time.
prepare_folders() {
  local folder
  for folder in . build .venv; do
    if [[ -e $folder && ! -w $folder ]]; then
      fail "no permission to write to $(realpath "$folder")" \
        "Change its owner (chown), or use a copy of your own, and run the same command again."
    fi
  done
  mkdir -p build
  if have flock; then
    exec 9>build/setup.lock
    if ! flock -n 9; then
      say "waiting for another setup in this folder"
      flock 9
    fi
  fi
}

# logged COMMAND...  runs it and appends its output to the log. The log holds one run.
logged() {
  if [[ -z ${log_started:-} ]]; then
    : >"$log"
    log_started=1
  fi
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 9>&-
}

# step TEXT COMMAND...  says what is being done, does it, says how long it took.
step() {
  local text=$1 start=$SECONDS status=0
  shift
  say "$text ..."
  "$@" || status=$?
  if ((status == 0)); then say "  done in $((SECONDS - start)) s"; fi
  return "$status"
}

# Starts a new part of the log: log_says ignores everything before it.
begin_log_part() {
  log_part=0
  if [[ -n ${log_started:-} ]]; then log_part=$(stat -c %s "$log"); fi
}

log_says() { tail -c +"$((log_part + 1))" "$log" | grep -iE "$1" >/dev/null; }

# Explains why pip or apt-get failed, based on the log, and exits.
fail_from_log() {
  local what=$1
  local again="Then run the same command again: it continues where it stopped."
  {
    printf 'setup: the last lines of %s:\n' "$log"
    grep -v 'WARNING: Retrying' "$log" | tail -n 8 | cut -c1-200 | sed 's/^/  | /'
  } >&2
  if (($(free_megabytes) < 20)) ||
    log_says 'no space left on device|not enough free space|disk quota exceeded'; then
    fail "$what: the disk is full" "Free some space ($(free_space))." "$again"
  elif log_says 'operation cancelled by user'; then
    fail "interrupted" "Run the same command again: it continues where it stopped."
  elif log_says 'could not get lock|dpkg was interrupted|unmet dependencies'; then
    fail "$what: apt-get is busy or was interrupted earlier" \
      "Wait until it has finished, or run: sudo dpkg --configure -a" "$again"
  elif log_says "$network_trouble"; then
    fail "$what: the network is not reachable" \
      "Check the network, and the proxy settings if you need any (https_proxy, PIP_INDEX_URL)." \
      "$again"
  elif log_says 'unable to locate package|no installation candidate'; then
    fail "$what: not in this system's package lists" \
      "On Ubuntu enable 'universe' (sudo add-apt-repository universe)." "$again"
  elif log_says 'no matching distribution'; then
    fail "$what: the package index has no version for this Python ($python_version)" \
      "Name another Python with PYTHON=python3.12, or another index with PIP_INDEX_URL." "$again"
  fi
  fail "$what" "Find the reason in $log and fix it." "$again"
}

network_trouble='connection (refused|reset|timed out|broken)|newconnectionerror|max retries'
network_trouble+='|temporary failure|could not resolve|could not connect|failed to fetch'
network_trouble+='|network is unreachable|read timed out|proxyerror|sslerror|some index files failed'

free_megabytes() { df -Pm . | awk 'NR == 2 { print $4 }'; }
free_space() { printf '%s MB are free in %s' "$(free_megabytes)" "$root"; }
