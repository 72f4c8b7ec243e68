#!/bin/sh
# Scenarios for one step of an adoption plan. Run it on a copy of the data: it carries the step out and takes it back.
#
#   REDSTART_URL=redis://127.0.0.1:6379 sh this-file [success] [failure] [race]
#
# REDSTART names the program, if it is not `redstart`. Exits with 0 if all scenarios went as they should, and with 1 otherwise. A step
# that is blocked counts as a failed scenario: see to it that its conditions hold before.
#
# what:  @WHAT@
# check: @CHECK@
# back:  @BACK@
set -u
subject=@SUBJECT@
before='@BEFORE@'
step='@STEP@'
url=${REDSTART_URL:?set REDSTART_URL to the server with the copy of the data}
redstart=${REDSTART:-redstart}
told=$(mktemp -d) || exit 1
trap 'rm -rf "$told"' EXIT

fail() {
  echo "$scenario: $*" >&2
  exit 1
}

# Prints what `redstart adopt step` or `back` says about the subject, as one line of JSON.
walk() {
  action=$1
  shift
  "$redstart" adopt "$action" "$subject"@AS@ --yes --json "$@"
}

# Whether a line says that a step was done.
is_done() {
  case $1 in
  *'"outcome":"done"'*'"step":"'"$2"'"'*) return 0 ;;
  *) return 1 ;;
  esac
}

# Does the steps that come before.
prepare() {
  for one in $before; do
    line=$(walk step --url "$url")
    is_done "$line" "$one" || fail "the step $one before it was not done: $line"
  done
}

# Takes back everything that was done.
undo() {
  while :; do
    line=$(walk back --url "$url") || fail "the way back failed: $line"
    case $line in
    *'"outcome":"done"'*) ;;
    *) return 0 ;;
    esac
  done
}

success() {
  prepare
  line=$(walk step --url "$url")
  is_done "$line" "$step" || fail "it was not done: $line"
  line=$(walk back --url "$url")
  is_done "$line" "$step" || fail "it was not taken back: $line"
}

failure() {
  prepare
  # Nothing listens there.
  if line=$(walk step --url redis://127.0.0.1:1 2>/dev/null); then fail "it succeeded without a server: $line"; fi
  line=$(walk step --url "$url")
  is_done "$line" "$step" || fail "it was not the next step any more: $line"
}

race() {
  prepare
  for racer in 1 2; do
    walk step --url "$url" >"$told/$racer" 2>/dev/null &
  done
  wait
  won=0
  for racer in 1 2; do
    if is_done "$(cat "$told/$racer")" "$step"; then won=$((won + 1)); fi
  done
  [ "$won" -eq 1 ] || fail "it was done $won times: $(cat "$told/1" "$told/2")"
}

for scenario in ${*:-success failure race}; do
  case $scenario in
  success | failure | race) ;;
  *) fail "there is no such scenario" ;;
  esac
  "$scenario"
  undo
  echo "$scenario: ok"
done
