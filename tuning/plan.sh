#!/usr/bin/env bash
# Which CPU is for what: shards next to the network, housekeeping (control plane, store threads, interrupts, all
# other threads) on whole cores of its own. Sourced by the concerns that need it, after lib.sh; `make_plan` fills
# what is below.
#
# The numbers of a list are separated by spaces inside, and written as 0-3,8 outside.

SHARDS=""       # CPUs with a shard, those of a node together
HOUSEKEEPING="" # every other CPU that is online; empty on a host too small to set any apart
NICS=""         # network devices with hardware behind them that are not down
declare -A NODE_OF=() NIC_NODE=()

# Below this many CPUs there is nothing to set apart.
APART_MIN=4
# One core of this many in a node is for housekeeping, and at least one.
HOUSEKEEPING_SHARE=8

make_plan() {
    local online cpu
    read_value sys/devices/system/cpu/online || refuse "$ROOT/sys/devices/system/cpu/online cannot be read"
    online=$(from_list "$REPLY") || refuse "$ROOT/sys/devices/system/cpu/online is no list of CPUs"
    find_nodes "$online"
    find_nics
    if [ -n "$CORES" ]; then
        SHARDS=$(from_list "$CORES") || refuse "--cores takes CPU numbers as 2-15,20, none twice, not $CORES"
        for cpu in $SHARDS; do
            has "$cpu" "$online" || refuse "--cores: there is no CPU $cpu online here; there are $(to_list "$online")"
        done
    else
        choose_shards "$online"
    fi
    HOUSEKEEPING=$(without "$online" "$SHARDS")
}

find_nodes() {
    local path cpu node
    for cpu in $1; do NODE_OF[$cpu]=0; done
    for path in "$ROOT"/sys/devices/system/node/node[0-9]*/cpulist; do
        [ -r "$path" ] || continue
        node=${path%/cpulist} node=${node##*node}
        for cpu in $(from_list "$(<"$path")"); do NODE_OF[$cpu]=$node; done
    done
}

find_nics() {
    local path nic
    for path in "$ROOT"/sys/class/net/*/device; do
        nic=${path%/device} nic=${nic##*/}
        read_value "sys/class/net/$nic/operstate"
        if [ ! -d "$path" ] || [ "$REPLY" = down ]; then continue; fi
        NICS+="${NICS:+ }$nic"
        # A virtio device hangs below the PCI device that knows. -1 is how the kernel says that no node is nearer.
        read_value "sys/class/net/$nic/device/numa_node" ||
            read_value "sys/class/net/$nic/device/../numa_node" || REPLY=-1
        NIC_NODE[$nic]=$REPLY
    done
}

# Nodes with a device get shards, whole cores but the first few; a packet that crosses to another socket costs more
# than the cores over there bring. Which node a device is on is often unknown in a guest: then all nodes are near.
choose_shards() {
    local online=$1 node near cpu cores threads left
    SHARDS=""
    if [ "$(wc -w <<<"$online")" -lt $APART_MIN ]; then
        SHARDS=$online
        return
    fi
    near=$(for node in "${NIC_NODE[@]}"; do echo "$node"; done | sort -nu)
    if [ -z "$near" ] || has -1 "$near"; then near=$(printf '%s\n' "${NODE_OF[@]}" | sort -nu); fi
    for node in $near; do
        # Threads of one core are one word, as the kernel lists them.
        cores=$(for cpu in $(on_node "$node" "$online"); do siblings "$cpu"; done | awk '!seen[$0]++')
        left=$(($(wc -l <<<"$cores") / HOUSEKEEPING_SHARE))
        if [ "$left" -lt 1 ]; then left=1; fi
        threads=""
        while read -r cpu; do threads+=" $(from_list "$cpu")"; done < <(tail -n +$((left + 1)) <<<"$cores")
        SHARDS+="${SHARDS:+ }$(sorted "$threads")"
    done
    SHARDS=$(xargs <<<"$SHARDS")
    if [ -z "$SHARDS" ]; then SHARDS=$online; fi
}

siblings() {
    read_value "sys/devices/system/cpu/cpu$1/topology/thread_siblings_list" || REPLY=$1
    echo "$REPLY"
}

# on_node NODE CPUS
on_node() {
    local cpu found=()
    for cpu in $2; do if [ "${NODE_OF[$cpu]:-0}" = "$1" ]; then found+=("$cpu"); fi; done
    echo "${found[*]}"
}

# The shards' CPUs on the node of a device; all of them when none is there.
near_shards() {
    local near
    near=$(on_node "${NIC_NODE[$1]}" "$SHARDS")
    echo "${near:-$SHARDS}"
}

# The CPUs that take the interrupts of a device.
interrupt_cpus() {
    local near
    if [ "$IRQS" = shards ] || [ -z "$HOUSEKEEPING" ]; then
        near_shards "$1"
        return
    fi
    near=$(on_node "${NIC_NODE[$1]}" "$HOUSEKEEPING")
    echo "${near:-$HOUSEKEEPING}"
}

# share INDEX COUNT CPUS: which of the CPUs belong to queue INDEX of COUNT, so that each queue has one and each CPU too.
share() {
    local index=$1 count=$2 at cpus found=()
    read -ra cpus <<<"$3"
    if [ "${#cpus[@]}" -le "$count" ]; then
        one_of "$index" "$3"
        return
    fi
    for ((at = index; at < ${#cpus[@]}; at += count)); do found+=("${cpus[at]}"); done
    echo "${found[*]}"
}

# one_of INDEX CPUS: all of them in turn.
one_of() {
    local cpus
    read -ra cpus <<<"$2"
    echo "${cpus[$1 % ${#cpus[@]}]}"
}

# --- lists and masks --------------------------------------------------------------------------------------------------

has() { [[ " ${2//$'\n'/ } " == *" $1 "* ]]; }

# without CPUS OTHERS
without() {
    local cpu left=()
    for cpu in $1; do has "$cpu" "$2" || left+=("$cpu"); done
    echo "${left[*]}"
}

sorted() { tr ' ' '\n' <<<"$1" | sort -n | xargs; }

# `0-2,8` -> `0 1 2 8`; refuses what is no list, runs backwards or says a number twice.
from_list() {
    local part parts cpu last numbers=()
    local -A seen=()
    [[ $1 =~ ^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$ ]] || return 1
    IFS=, read -ra parts <<<"$1"
    for part in "${parts[@]}"; do
        cpu=$((10#${part%-*})) last=$((10#${part#*-}))
        [ $cpu -le $last ] || return 1
        for ((; cpu <= last; cpu++)); do
            [ -z "${seen[$cpu]:-}" ] || return 1
            seen[$cpu]=yes numbers+=("$cpu")
        done
    done
    echo "${numbers[*]}"
}

# `0 1 2 8` -> `0-2,8`
to_list() {
    tr ' ' '\n' <<<"$1" | sort -n | awk '
        NF == 0 { next }
        started && $1 == last + 1 { last = $1; next }
        started { printf "%s%s", text(), ","; }
        { first = last = $1; started = 1 }
        END { if (started) print text() }
        function text() { return first == last ? first : first "-" last }'
}

# `0 33` -> `2,00000001`, as the kernel writes masks.
to_mask() {
    local cpu at top=0 text
    local -a groups=()
    for cpu in $1; do
        groups[cpu / 32]=$((${groups[cpu / 32]:-0} | 1 << cpu % 32))
        if [ $((cpu / 32)) -gt $top ]; then top=$((cpu / 32)); fi
    done
    printf -v text %x "${groups[top]:-0}"
    for ((at = top - 1; at >= 0; at--)); do printf -v text %s,%08x "$text" "${groups[at]:-0}"; done
    echo "$text"
}

# Two masks of the same CPUs, however many leading zeros they have.
fits_mask() {
    local one=${1//,/} other=${2//,/}
    [ "${one#"${one%%[!0]*}"}" = "${other#"${other%%[!0]*}"}" ]
}
