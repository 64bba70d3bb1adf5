# Shared by install, build and lc: where things are, progress, waiting, processes. Sourced, never run.
# Progress and errors go to stderr; stdout carries only results (a path, a status).

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${HELLO_CACHE:-$HOME/.cache/hello-operator}
# Where Go installs itself, and what a root shell of `su` lacks.
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin

# Several clusters can run side by side, each with a number; everything of theirs follows from it.
CLUSTER=${HELLO_CLUSTER:-0}
RUN=${HELLO_RUN:-/tmp/hello-operator-cluster$([ "$CLUSTER" = 0 ] || echo "-$CLUSTER")}
readonly here CACHE CLUSTER RUN

started_at=$EPOCHREALTIME
say() { # "  3.2s  text": seconds since this command began
  local now=$EPOCHREALTIME tenths
  tenths=$(((${now/[.,]/} - ${started_at/[.,]/}) / 100000))
  printf '%3d.%ds  %s\n' $((tenths / 10)) $((tenths % 10)) "$*" >&2
}
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
[[ $CLUSTER =~ ^[0-9]$ ]] || die "HELLO_CLUSTER is a number from 0 to 9, not '$CLUSTER'"
case $RUN in
  /run/* | /var/lib/* | /var/log/* | /proc/* | /sys/*) die "HELLO_RUN cannot be $RUN: nodes have a /run, /var/lib and /var/log of their own" ;;
  /*) ;;
  *) die "HELLO_RUN is an absolute path, not '$RUN'" ;;
esac

# Waits until a command succeeds; gives up after so many seconds and says what was missing.
await() { # seconds what command...
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { printf 'error: waited %ss in vain: %s\n' "$seconds" "$what" >&2; return 1; }
    sleep 0.05
  done
}

# Waits for background jobs and fails when one of them failed.
join() { # pid...
  local pid failed=0
  for pid in "$@"; do wait "$pid" || failed=1; done
  return $failed
}

# One command at a time, over all checkouts of this user. The descriptor closes with this shell; children that outlive it must not inherit it (9>&-).
lock() { # name
  mkdir -p "$CACHE"
  exec 9>"$CACHE/$1.lock"
  flock -w 1800 9 || die "another command has held $CACHE/$1.lock for 30 minutes"
}

# A process is known by its id and its start time, so that an id used again by a stranger is never signalled.
start_time() { # pid
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  set -- ${stat##*) }
  # Zombies have ended; their parent just has not noticed.
  [ "$1" != Z ] && echo "${20}"
}
remember_process() { # name pid
  mkdir -p "$RUN/process"
  echo "$2 $(start_time "$2")" >"$RUN/process/$1"
}
# Prints the id of a process that still runs, else fails.
process_id() { # name
  local pid started
  { read -r pid started <"$RUN/process/$1"; } 2>/dev/null || return 1
  [ "$(start_time "$pid")" = "$started" ] && echo "$pid"
}
ended() { # name
  ! process_id "$1"
}
start_process() { # name command...
  local name=$1
  shift
  mkdir -p "$RUN/log"
  setsid "$@" </dev/null >>"$RUN/log/$name.log" 2>&1 9>&- &
  remember_process "$name" $!
}
signal_process() { # name signal
  local pid
  pid=$(process_id "$1") || die "$1 is not running"
  kill -s "$2" "$pid"
}
