#!/usr/bin/env bash
# The vocabulary of the tuning scripts: what is, what is wanted, change it, remember what was, put it back.
# Sourced, never run. A concern defines `look`, which calls `want` once for each item, and ends with `tune NAME "$@"`.
#
# An item has a kind, which says how it is read and written, and a rule, which says when it is as wanted:
#   kinds  value (a file of one setting), choice (one word of several in brackets), file (a configuration file of ours),
#          nic (a parameter of ethtool), service (runs or not), thread (the CPUs a thread may run on)
#   rules  is, least, most; a script may add its own `fits_RULE`, and `wish_RULE` to say it in words
#
# Functions that are called for every item answer in REPLY: a process for each answer would add up to seconds.
# Nothing stops at the first error: one setting that this kernel refuses must not hide the next.
#
# shellcheck disable=SC2034 # plan.sh reads CORES and IRQS, the concerns read TUNING
set -uo pipefail

ROOT="" MODE=check MAX_CONNECTIONS=1000000 BACKLOG=4096 CORES="" IRQS=apart
STATUS=0 RELOAD=no
TUNING=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<TEXT
usage: $(basename "$0") [--check|--apply|--revert] [OPTION...]$1

  --check              say what is not as wanted and change nothing (the default; needs no root)
  --apply              change it; what was before is recorded first
  --revert             put back what was recorded
  --root DIR           proc, sys, etc, run and var/lib are below DIR, commands in DIR/bin: a recorded host
  --max-connections N  what limits are judged by, as of \`murre doctor\` (default $MAX_CONNECTIONS)
  --backlog N          shards.backlog of the configuration (default $BACKLOG)
  --cores LIST         the shards' CPUs, as of \`murre serve --cores\` (default: see murre-tune --plan)
  --irqs apart|shards  who takes interrupts of the network: CPUs without shards (default), or the shards' own

The variable MURRE is the path of the murre that judges kernel settings (default: murre on PATH).
Exit status: 0 as wanted (or changed, or put back), 1 drift (or something could not be changed), 2 wrong usage or
unreadable.
TEXT
}

# Ends with the status of wrong usage.
refuse() {
    echo "$(basename "$0"): $*" >&2
    exit 2
}

# Takes the option that "$@" begins with; TAKEN is the number of words it had, 0 when it is none.
take_option() {
    TAKEN=2
    # An empty value is a variable that somebody forgot to set; an empty --root would be this host.
    case $1 in
        --root | --max-connections | --backlog | --cores | --irqs)
            [ -n "${2:-}" ] || refuse "$1 needs a value; --help says which"
            ;;
    esac
    case $1 in
        --check | --apply | --revert) MODE=${1#--} TAKEN=1 ;;
        --root) ROOT=$2 ;;
        --max-connections) MAX_CONNECTIONS=$2 ;;
        --backlog) BACKLOG=$2 ;;
        --cores) CORES=$2 ;;
        --irqs) IRQS=$2 ;;
        *) TAKEN=0 ;;
    esac
}

# Refuses values of options that make no sense, before anything is looked at.
check_options() {
    [[ $MAX_CONNECTIONS =~ ^[1-9][0-9]{0,7}$ ]] ||
        refuse "--max-connections takes a number from 1 to 99999999, not $MAX_CONNECTIONS"
    if ! [[ $BACKLOG =~ ^[1-9][0-9]{1,4}$ ]] || [ "$BACKLOG" -lt 16 ] || [ "$BACKLOG" -gt 65535 ]; then
        refuse "--backlog takes a number from 16 to 65535, not $BACKLOG"
    fi
    [[ $IRQS == apart || $IRQS == shards ]] || refuse "--irqs takes apart or shards, not $IRQS"
    ROOT=${ROOT%/}
    [ -d "$ROOT/proc" ] ||
        refuse "there is no directory $ROOT/proc: --root takes a directory with proc and sys of a host"
}

# The whole life of a concern: tune NAME "$@".
tune() {
    local concern=$1
    shift
    while [ $# -gt 0 ]; do
        if [ "$1" = --help ]; then
            usage ""
            exit 0
        fi
        take_option "$@"
        [ "$TAKEN" -gt 0 ] || refuse "no option $1; --help says what there is"
        shift "$TAKEN"
    done
    check_options
    # What the kernel holds is gone with the next boot, and so is its record; files stay, and so does theirs.
    BOOT_STATE=$ROOT/run/murre-tune/$concern
    FILE_STATE=$ROOT/var/lib/murre-tune/$concern
    load_records
    if [ "$MODE" = revert ]; then revert; else look; fi
    if [ "$RELOAD" = yes ]; then tool systemctl daemon-reload >/dev/null 2>&1; fi
    exit "$STATUS"
}

# want NAME KIND TARGET RULE VALUE WHY
want() {
    local name=$1 kind=$2 target=$3 rule=$4 value=$5 why=$6 status is wish
    "read_$kind" "$target"
    status=$? is=$REPLY
    wish "$rule" "$value"
    wish=$REPLY
    if [ $status = 1 ]; then
        say absent "$name: is not on this host, want $wish ($why)"
    elif [ $status = 2 ]; then
        say unreadable "$name: cannot be read by this user, want $wish ($why)"
        raise 2
    elif "fits_$rule" "$is" "$value"; then
        shown "$is"
        say ok "$name: is $REPLY, want $wish ($why)"
    elif [ "$MODE" = check ]; then
        shown "$is"
        say drift "$name: is $REPLY, want $wish ($why)"
        raise 1
    else
        change "$is" "$wish" "$@"
    fi
}

# change WAS WISH NAME KIND TARGET RULE VALUE WHY: records, writes, reads back.
change() {
    local was=$1 wish=$2 name=$3 kind=$4 target=$5 rule=$6 value=$7 why=$8 error kernel now before fresh=no
    shown "$was"
    before=$REPLY
    if [ -z "${RECORDED[$kind $target]:-}" ]; then
        if ! record "$kind" "$target" 2>/dev/null; then
            say failed "$name: is $before, want $wish: left, because no record can be made below $REPLY"
            raise 1
            return
        fi
        fresh=yes
    fi
    error=$("write_$kind" "$target" "$value" 2>&1)
    "read_$kind" "$target"
    now=$REPLY
    shown "$now"
    if "fits_$rule" "$now" "$value"; then
        [[ $target != etc/systemd/* ]] || RELOAD=yes
        say set "$name: was $before, is $REPLY ($why)"
        return
    fi
    error=${error##*: } kernel="the kernel made it $REPLY"
    # What was not changed needs no record; a record made before this run is of an older value and stays.
    if [ "$fresh" = yes ] && [ "$now" = "$was" ]; then forget "$kind" "$target"; fi
    say failed "$name: is $before, want $wish: ${error:-$kernel}"
    raise 1
}

# --- rules --------------------------------------------------------------------------------------------------------

fits_is() { [ "$1" = "$2" ]; }
fits_least() { [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -ge "$2" ]; }
fits_most() { [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -le "$2" ]; }

wish() { if declare -F "wish_$1" >/dev/null; then "wish_$1" "$2"; else shown "$2"; fi; }
wish_least() { REPLY=">= $1"; }
wish_most() { REPLY="<= $1"; }

# A text on one line, without its comments.
shown() {
    REPLY=$1
    if [[ $REPLY == *$'\n'* ]]; then REPLY=$(grep -v '^#' <<<"$REPLY"); fi
    REPLY=${REPLY//$'\n'/; }
    REPLY=${REPLY:-nothing}
}

# --- kinds: read_KIND says 1 when there is no such thing and 2 when it may not be read --------------------------------

read_value() {
    local path=$ROOT/$1
    REPLY=""
    [ -e "$path" ] || return 1
    read -r -d '' REPLY 2>/dev/null <"$path"
    if [ -z "$REPLY" ]; then
        # Empty, or an error that the shell keeps to itself. Some drivers show files that they then do not serve.
        case $(LC_ALL=C cat "$path" 2>&1 >/dev/null) in
            "") ;;
            *"ermission denied"* | *"not permitted"*) return 2 ;;
            *) return 1 ;;
        esac
    fi
    REPLY=${REPLY//$'\t'/ }
}
write_value() { printf '%s\n' "$2" >"$ROOT/$1"; }
save_value() { cat "$ROOT/$1"; }
restore_value() { cat "$2" >"$ROOT/$1"; }

# `always [madvise] never` is madvise.
read_choice() {
    read_value "$1" || return
    [[ $REPLY =~ \[([^]]*)\] ]] || return 1
    REPLY=${BASH_REMATCH[1]}
}
# The kernel takes the word and moves the brackets; in a recorded tree nobody does.
write_choice() {
    local each moved=""
    if [ -z "$ROOT" ]; then
        write_value "$1" "$2"
        return
    fi
    read_value "$1"
    for each in $REPLY; do
        each=${each//[\[\]]/}
        if [ "$each" = "$2" ]; then each="[$each]"; fi
        moved+="${moved:+ }$each"
    done
    write_value "$1" "$moved"
}
save_choice() { read_choice "$1" && echo "$REPLY"; }
restore_choice() { write_choice "$1" "$(<"$2")"; }

# A file that is missing is one that is empty, until it is written.
read_file() {
    REPLY=""
    [ -e "$ROOT/$1" ] || return 0
    [ -r "$ROOT/$1" ] || return 2
    REPLY=$(<"$ROOT/$1")
}
write_file() { write_value "$1" "$2"; }
save_file() {
    if [ -e "$ROOT/$1" ]; then cat "$ROOT/$1"; else return 3; fi
}
restore_file() {
    if [ -e "$2" ]; then cat "$2" >"$ROOT/$1"; else rm -f "$ROOT/$1"; fi
}

# --- commands of the host, or of the recorded tree; never of this host for another's tree -----------------------------

tool() {
    local name=$1
    shift
    if [ -z "$ROOT" ]; then
        command -v "$name" >/dev/null && "$name" "$@"
    else
        [ -x "$ROOT/bin/$name" ] && "$ROOT/bin/$name" "$@"
    fi
}
has_tool() {
    if [ -z "$ROOT" ]; then command -v "$1" >/dev/null; else [ -x "$ROOT/bin/$1" ]; fi
}

# processes NAME: their numbers.
processes() {
    local path name found=()
    for path in "$ROOT"/proc/[0-9]*/comm; do
        # Some end while this looks.
        { read -r name <"$path"; } 2>/dev/null || continue
        if [ "$name" = "$1" ]; then path=${path%/comm} && found+=("${path##*/}"); fi
    done
    REPLY=${found[*]}
}

# --- records: one line `NUMBER KIND TARGET` in `index`, the old content in a file of that number ----------------------

# Directories of records to the last number in each, and `KIND TARGET` to yes.
declare -A LAST=() RECORDED=()

# state_of KIND: the directory of its records.
state_of() { if [ "$1" = file ]; then REPLY=$FILE_STATE; else REPLY=$BOOT_STATE; fi; }

load_records() {
    local state number kind target
    for state in "$BOOT_STATE" "$FILE_STATE"; do
        LAST[$state]=0
        [ -r "$state/index" ] || continue
        while read -r number kind target; do LAST[$state]=$number RECORDED[$kind $target]=yes; done <"$state/index"
    done
}

# record KIND TARGET: the content first, the index last, so that a line of the index always has its content.
record() {
    local state number
    state_of "$1"
    state=$REPLY
    [ -d "$state" ] || mkdir -p "$state" || return
    if [ "$1" = file ]; then make_directories "$(dirname "$2")" || return; fi
    number=$((LAST[$state] + 1))
    "save_$1" "$2" >"$state/$number"
    case $? in
        0) ;;
        3) rm -f "$state/$number" ;; # There was none.
        *) return 1 ;;
    esac
    echo "$number $1 $2" >>"$state/index" || return
    LAST[$state]=$number RECORDED[$1 $2]=yes
}

# forget KIND TARGET, which was recorded last.
forget() {
    local state key="$1 $2"
    state_of "$1"
    state=$REPLY
    sed -i '$d' "$state/index"
    rm -f "$state/${LAST[$state]}"
    LAST[$state]=$((LAST[$state] - 1))
    unset "RECORDED[$key]"
    if [ ! -s "$state/index" ]; then drop_state "$state"; fi
}

drop_state() {
    rm -rf "$1"
    rmdir "$(dirname "$1")" 2>/dev/null || true
}

# Directories that were made for files: concerns share them, so they are one list for all.
make_directories() {
    [ -d "$ROOT/$1" ] && return
    make_directories "$(dirname "$1")"
    mkdir "$ROOT/$1" && echo "$1" >>"$(dirname "$FILE_STATE")/directories"
}

# Those go that are empty, the innermost first.
drop_directories() {
    local list directory kept=""
    list=$(dirname "$FILE_STATE")/directories
    [ -r "$list" ] || return 0
    while read -r directory; do
        if [ -d "$ROOT/$directory" ] && ! rmdir "$ROOT/$directory" 2>/dev/null; then kept="$directory"$'\n'"$kept"; fi
    done < <(tac "$list")
    if [ -n "$kept" ]; then printf %s "$kept" >"$list"; else drop_state "$list"; fi
}

# Puts back what was recorded, the last change first. What could not be put back stays recorded.
revert() {
    local state line number kind target is error kept
    for state in "$BOOT_STATE" "$FILE_STATE"; do
        [ -r "$state/index" ] || continue
        kept=""
        while read -r line; do
            read -r number kind target <<<"$line"
            if ! "read_$kind" "$target"; then
                say gone "$target: is not on this host any more"
                continue
            fi
            shown "$REPLY"
            is=$REPLY
            if error=$("restore_$kind" "$target" "$state/$number" 2>&1); then
                [[ $target != etc/systemd/* ]] || RELOAD=yes
                "read_$kind" "$target"
                shown "$REPLY"
                say restored "$target: was $is, is $REPLY"
            else
                say failed "$target: is $is, could not be put back: ${error##*: }"
                kept="$line"$'\n'"$kept"
                raise 1
            fi
        done < <(tac "$state/index")
        if [ -n "$kept" ]; then printf %s "$kept" >"$state/index"; else drop_state "$state"; fi
    done
    drop_directories
}

# --- the judge of kernel settings -----------------------------------------------------------------------------------

# One line for each setting: verdict, name, value, wish and reason, separated by tabs. Options say what a host is for,
# and no variable of the environment does.
doctor() {
    env -i "$(command -v "${MURRE:-murre}")" doctor --sysctls --root "${ROOT:-/}" \
        --max-connections "$MAX_CONNECTIONS" --set "shards.backlog=$BACKLOG"
}
no_doctor() { refuse "\`murre doctor\` gave no answer; run it by hand to see why"; }
# Refuses before anything is looked at where there is no judge.
need_murre() {
    command -v "${MURRE:-murre}" >/dev/null ||
        refuse "cannot judge kernel settings and limits: there is no program ${MURRE:-murre}; install murre, or set" \
            "MURRE to the path of its binary"
}

# --- output ---------------------------------------------------------------------------------------------------------

say() { echo "$1 $2"; }
raise() { if [ "$1" -gt "$STATUS" ]; then STATUS=$1; fi; }
