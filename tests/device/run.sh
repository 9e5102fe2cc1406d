#!/usr/bin/env bash
# The exporter beside nvidia-smi on a machine with NVIDIA GPUs:
#
#   tests/device/run.sh PATH/strandline-exporter [REPORT.md]
#
# Idle and under load, every field that both tell is compared; names, units, cardinality, the page's form, latency, memory,
# processor time and the end on SIGTERM are looked at. Writes a report (default: device-report.md) and ends with 1 where something
# differs, naming it. Two minutes, no network. Needs bash 5, coreutils, awk and nvidia-smi; curl, promtool and python3 are used
# where they are there. Changes nothing on the GPUs.
#
# THIS SCRIPT HAS NOT MET HARDWARE YET: it was tried on the simulator's library alone, with a stand-in for nvidia-smi that prints
# what the real one's documentation and public captures show. A first difference on a real machine may be the script's.
#
# A value of nvidia-smi's is taken between two pages and must lie between theirs, or as near as the table below says. `exact`
# fields must agree each time, those that `move` in at least half of the rounds.
#
# STRANDLINE_DEVICE_QUICK=1     short waits, budgets shown and not judged: for CI
# STRANDLINE_DEVICE_LOAD=CMD    what loads the GPUs; default: load.py beside this, where python3 and libcuda.so.1 are there
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here built_in=$here/../../exporter/src/counters.csv
readonly exporter=${1:?usage: tests/device/run.sh PATH/strandline-exporter [REPORT.md]} report=${2:-device-report.md}
readonly quick=${STRANDLINE_DEVICE_QUICK:-}
work=$(mktemp -d)
readonly work rows=$work/rows.md
running=()

# Which reading of nvidia-smi is which field: source and name (csv: --query-gpu; xml: a place in -q -x; dmon: a column), how it is
# compared, and how far apart the two may be: so much, or so many percent. Of names that drivers spell in two ways there are two rows.
export map='
DCGM_FI_DEV_GPU_TEMP csv temperature.gpu moves 2 0
DCGM_FI_DEV_GPU_TEMP xml temperature/gpu_temp moves 2 0
DCGM_FI_DEV_GPU_TEMP dmon gtemp moves 2 0
DCGM_FI_DEV_MEMORY_TEMP csv temperature.memory moves 2 0
DCGM_FI_DEV_MEMORY_TEMP xml temperature/memory_temp moves 2 0
DCGM_FI_DEV_MEMORY_TEMP dmon mtemp moves 2 0
DCGM_FI_DEV_POWER_USAGE csv power.draw moves 8 10
DCGM_FI_DEV_POWER_USAGE xml gpu_power_readings/power_draw moves 8 10
DCGM_FI_DEV_POWER_USAGE xml gpu_power_readings/average_power_draw moves 8 10
DCGM_FI_DEV_POWER_USAGE xml power_readings/power_draw moves 8 10
DCGM_FI_DEV_POWER_USAGE dmon pwr moves 8 10
DCGM_FI_DEV_SM_CLOCK csv clocks.sm moves 30 5
DCGM_FI_DEV_SM_CLOCK xml clocks/sm_clock moves 30 5
DCGM_FI_DEV_SM_CLOCK dmon pclk moves 30 5
DCGM_FI_DEV_MEM_CLOCK csv clocks.mem moves 30 5
DCGM_FI_DEV_MEM_CLOCK xml clocks/mem_clock moves 30 5
DCGM_FI_DEV_MEM_CLOCK dmon mclk moves 30 5
DCGM_FI_DEV_VIDEO_CLOCK csv clocks.video moves 30 5
DCGM_FI_DEV_MAX_SM_CLOCK csv clocks.max.sm exact 0 0
DCGM_FI_DEV_MAX_MEM_CLOCK csv clocks.max.memory exact 0 0
DCGM_FI_DEV_GPU_UTIL csv utilization.gpu moves 15 0
DCGM_FI_DEV_GPU_UTIL xml utilization/gpu_util moves 15 0
DCGM_FI_DEV_GPU_UTIL dmon sm moves 15 0
DCGM_FI_DEV_MEM_COPY_UTIL csv utilization.memory moves 15 0
DCGM_FI_DEV_MEM_COPY_UTIL xml utilization/memory_util moves 15 0
DCGM_FI_DEV_MEM_COPY_UTIL dmon mem moves 15 0
DCGM_FI_DEV_ENC_UTIL csv utilization.encoder moves 10 0
DCGM_FI_DEV_ENC_UTIL xml utilization/encoder_util moves 10 0
DCGM_FI_DEV_ENC_UTIL dmon enc moves 10 0
DCGM_FI_DEV_DEC_UTIL csv utilization.decoder moves 10 0
DCGM_FI_DEV_DEC_UTIL xml utilization/decoder_util moves 10 0
DCGM_FI_DEV_DEC_UTIL dmon dec moves 10 0
DCGM_FI_DEV_FB_TOTAL csv memory.total exact 1 0
DCGM_FI_DEV_FB_TOTAL xml fb_memory_usage/total exact 1 0
DCGM_FI_DEV_FB_FREE csv memory.free moves 2 0
DCGM_FI_DEV_FB_FREE xml fb_memory_usage/free moves 2 0
DCGM_FI_DEV_FB_USED csv memory.used moves 2 0
DCGM_FI_DEV_FB_USED xml fb_memory_usage/used moves 2 0
DCGM_FI_DEV_FB_RESERVED csv memory.reserved exact 1 0
DCGM_FI_DEV_FB_RESERVED xml fb_memory_usage/reserved exact 1 0
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL csv ecc.errors.corrected.volatile.total exact 0 0
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL csv ecc.errors.uncorrected.volatile.total exact 0 0
DCGM_FI_DEV_ECC_SBE_AGG_TOTAL csv ecc.errors.corrected.aggregate.total exact 0 0
DCGM_FI_DEV_ECC_DBE_AGG_TOTAL csv ecc.errors.uncorrected.aggregate.total exact 0 0
DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS xml remapped_rows/remapped_row_corr exact 0 0
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS xml remapped_rows/remapped_row_unc exact 0 0
DCGM_FI_DEV_ROW_REMAP_PENDING xml remapped_rows/remapped_row_pending exact 0 0
DCGM_FI_DEV_ROW_REMAP_FAILURE xml remapped_rows/remapped_row_failure exact 0 0
DCGM_FI_DEV_PCIE_REPLAY_COUNTER xml pci/replay_counter exact 0 0
DCGM_FI_DEV_PCIE_REPLAY_COUNTER dmon pci exact 0 0
DCGM_FI_DEV_PSTATE csv pstate moves 0 0
DCGM_FI_DEV_PSTATE xml performance_state moves 0 0
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS csv clocks_event_reasons.active moves 0 0
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS csv clocks_throttle_reasons.active moves 0 0
DCGM_FI_DEV_MIG_MODE csv mig.mode.current exact 0 0
DCGM_FI_DEV_MIG_MODE xml mig_mode/current_mig exact 0 0
DCGM_FI_DEV_POWER_MGMT_LIMIT csv power.limit exact 0.01 0
DCGM_FI_DEV_ENFORCED_POWER_LIMIT csv enforced.power.limit exact 0.01 0
DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF csv power.default_limit exact 0.01 0
DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN csv power.min_limit exact 0.01 0
DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX csv power.max_limit exact 0.01 0
DCGM_FI_DEV_PCIE_LINK_GEN csv pcie.link.gen.current moves 0 0
DCGM_FI_DEV_PCIE_LINK_WIDTH csv pcie.link.width.current moves 0 0
'
# What each field may be at all: a wrong unit would be off by thousands.
export plausible='
GPU_TEMP 1 130
MEMORY_TEMP 0 130
POWER_USAGE 1 2500
SM_CLOCK 50 5000
MEM_CLOCK 50 20000
GPU_UTIL 0 100
MEM_COPY_UTIL 0 100
ENC_UTIL 0 100
DEC_UTIL 0 100
FB_TOTAL 1000 1000000
FB_USED 0 1000000
FB_FREE 0 1000000
FB_RESERVED 0 100000
TOTAL_ENERGY_CONSUMPTION 1 1e16
PCIE_TX_BYTES 0 3e11
PCIE_RX_BYTES 0 3e11
NVLINK_TX_BYTES 0 4e12
NVLINK_RX_BYTES 0 4e12
ACTIVE 0 1
OCCUPANCY 0 1
'

say() { printf 'device: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

cleanup() {
    local pid
    for pid in "${running[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT

# A line of the report: phase, what, here, nvidia-smi, verdict.
row() { printf '| %s | %s | %s | %s | %s |\n' "$@" >> "$rows"; }
# A line that is judged by a condition of awk's: phase, what, here, limit, condition.
judge() {
    if awk "BEGIN { exit !($5) }"; then row "$1" "$2" "$3" "$4" agrees; else row "$1" "$2" "$3" "$4" "DIFFERS"; fi
}
# The same of a budget, which a short run or a debug build says nothing about.
budget() {
    if awk "BEGIN { exit !($5) }"; then row "$1" "$2" "$3" "$4" met; return; fi
    if [ -n "$quick" ]; then row "$1" "$2" "$3" "$4" "not judged"; else row "$1" "$2" "$3" "$4" "DIFFERS: missed"; fi
}

# Seconds to wait: the second where time is short.
pause() { sleep "$(if [ -n "$quick" ]; then echo "$2"; else echo "$1"; fi)"; }

get() { # PATH FILE: status 200 or fail
    if command -v curl >/dev/null; then
        curl -sf --max-time 10 -o "$2" "http://127.0.0.1:$port$1"
    else
        local line status=
        exec 9<>"/dev/tcp/127.0.0.1/$port"
        printf 'GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$1" >&9
        read -r -t 10 -u 9 status
        while read -r -t 10 -u 9 line && [ "${line%$'\r'}" != "" ]; do :; done
        cat <&9 > "$2"
        exec 9>&-
        [[ $status == *" 200 "* ]]
    fi
}

# Starts the exporter with these arguments: $pid, $port.
start() {
    : > "$work/log" # it is looked into before the program has begun
    "$exporter" -a 127.0.0.1:0 "$@" > "$work/out" 2> "$work/log" &
    pid=$! port=
    running+=("$pid")
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        port=$(sed -nE 's/.*the exporter listens.* address=127\.0\.0\.1:([0-9]+).*/\1/p' "$work/log" | head -n 1)
        if [ -n "$port" ] && get /-/ready "$work/ready" 2>/dev/null; then return; fi
        kill -0 "$pid" 2>/dev/null || { cat "$work/log" >&2; die "the exporter has ended; see above"; }
        sleep 0.1
    done
    cat "$work/log" >&2
    die "the exporter is not ready after 30 s; see above"
}

# Ends it by SIGTERM, which is to take less than 2 s and to give status 0.
stop() {
    local from=$EPOCHREALTIME status=0
    kill -TERM "$pid"
    wait "$pid" || status=$?
    running=("${running[@]/$pid/}")
    local took
    took=$(awk "BEGIN { printf \"%.2f\", $EPOCHREALTIME - $from }")
    judge "$1" "end on SIGTERM" "status $status after $took s" "0, below 2 s" "$status == 0 && $took < 2"
}

# A page as lines `field gpu value`, of whole GPUs.
flat() {
    awk '/^DCGM_FI_/ && !/GPU_I_ID="/ {
        name = gpu = $0; sub(/[{].*/, "", name); sub(/^[^{]*[{]gpu="/, "", gpu); sub(/".*/, "", gpu); print name, gpu, $NF
    }' "$1"
}

# The value of a line without labels.
single() { awk -v name="$2" '$1 == name { print $2 }' "$1"; }

# nvidia-smi's words as numbers; nothing where it does not tell.
readonly plain='
function hex(text,    n, value) {
    for (n = 3; n <= length(text); n++) value = value * 16 + index("0123456789abcdef", tolower(substr(text, n, 1))) - 1
    return value + 0
}
function plain(text) {
    gsub(/^[ \t]+|[ \t\r]+$/, "", text)
    if (text == "Enabled" || text == "Yes") return 1
    if (text == "Disabled" || text == "No") return 0
    if (text ~ /^P[0-9]+$/) return substr(text, 2)
    if (text ~ /^0x[0-9a-fA-F]+$/) return sprintf("%.0f", hex(text))
    return text ~ /^-?[0-9]+([.][0-9]+)?( [^ ]+)?$/ ? text + 0 : ""
}
'

# Lines `csv key gpu value` of every name in $keys that this nvidia-smi knows.
csv() {
    nvidia-smi --query-gpu="index,$keys" --format=csv,noheader,nounits | awk -F ', *' -v keys="$keys" "$plain"'
        BEGIN { count = split(keys, key, ",") }
        { for (n = 1; n <= count; n++) if (plain($(n + 1)) != "") print "csv", key[n], $1 + 0, plain($(n + 1)) }'
}

# Lines `xml place gpu value`; GPUs come in order of their index.
xml() {
    awk "$plain"'
        BEGIN { gpu = -1 }
        { sub(/^[ \t]+/, ""); sub(/[ \t\r]+$/, "") }
        /^<gpu id=/ { gpu++; depth = 0; next }
        gpu < 0 || /^<[?!]/ || /^<[^>]*\/>$/ { next }
        /^<\/[^>]*>$/ { if (depth > 0) depth--; next }
        /^<[^\/>]*>$/ { tag = $1; gsub(/[<>]/, "", tag); at[++depth] = tag; next }
        /^<[^>]*>[^<]*<\// {
            place = ""; for (n = 1; n <= depth; n++) place = place at[n] "/"
            tag = $0; sub(/>.*/, "", tag); sub(/^</, "", tag)
            value = $0; sub(/^<[^>]*>/, "", value); sub(/<\/.*/, "", value)
            if (plain(value) != "") print "xml", place tag, gpu, plain(value)
        }' "$1"
}

# Lines `dmon column gpu value` of `nvidia-smi dmon`, a line for each second.
dmon() {
    awk "$plain"'
        $1 == "#" && $2 == "gpu" { for (n = 2; n <= NF; n++) column[n - 1] = $n; next }
        /^#/ || !(1 in column) { next }
        { for (n = 2; n <= NF; n++) if (plain($n) != "") print "dmon", column[n], $1, plain($n) }' "$1"
}

# Compares pages (files of `field gpu value`, in $pages) with readings that were taken while they were: lines
# `field source:key gpu low high value agrees?`. Of several readings their range must touch that of the pages.
compare() { # READINGS PAGES...
    awk '
        BEGIN {
            count = split(ENVIRON["map"], lines, "\n")
            for (n = 1; n <= count; n++) if (split(lines[n], part, " ") == 6) { of[part[2] " " part[3]] = part[1]; near[part[2] " " part[3]] = part[5] " " part[6] }
        }
        function abs(x) { return x < 0 ? -x : x }
        FNR == 1 { file++ }
        file == 1 {
            key = $1 " " $2
            if (!(key in of)) next
            id = key SUBSEP $3
            if (!(id in least) || $4 < least[id]) least[id] = $4
            if (!(id in most) || $4 > most[id]) most[id] = $4
            next
        }
        { id = $1 SUBSEP $2; if (!(id in low) || $3 < low[id]) low[id] = $3; if (!(id in high) || $3 > high[id]) high[id] = $3 }
        END {
            for (id in least) {
                split(id, part, SUBSEP); key = part[1]; gpu = part[2]; field = of[key]
                name = key; sub(/ /, ":", name)
                if (!((field SUBSEP gpu) in low)) { print field, name, gpu, "-", "-", least[id], high["DCGM_FI_DEV_MIG_MODE", gpu] == 1 ? "cut" : "absent"; continue }
                from = low[field, gpu]; to = high[field, gpu]
                split(near[key], by, " "); margin = by[1]; share = by[2] / 100 * (abs(to) > abs(most[id]) ? abs(to) : abs(most[id]))
                if (share > margin) margin = share
                fits = most[id] >= from - margin && least[id] <= to + margin
                print field, name, gpu, from, to, (least[id] == most[id] ? least[id] : least[id] ".." most[id]), fits ? "yes" : "no"
            }
        }' "$@"
}

# What the rounds of a phase came to, a row for each field and source.
verdicts() { # PHASE FILE
    awk -v phase="$1" -v built_in="$(cut -d, -f1 "$built_in" | grep '^DCGM' | tr '\n' ' ')" '
        BEGIN {
            count = split(ENVIRON["map"], lines, "\n")
            for (n = 1; n <= count; n++) if (split(lines[n], part, " ") == 6) { exact[part[2] ":" part[3]] = part[4] == "exact"; order[++rows] = part[1] " " part[2] ":" part[3] }
            count = split(built_in, lines, " "); for (n = 1; n <= count; n++) ours[lines[n]] = 1
        }
        {
            row = $1 " " $2; id = row SUBSEP $3
            total[id]++; if ($7 == "yes") agreed[id]++; if ($7 == "absent") absent[id]++; if ($7 == "cut") cut[id]++
            if (!(id in gpu)) { gpu[id] = $3; ids[row] = ids[row] id "\n" }
            if ($7 != "yes" || !(id in here)) { here[id] = $4 == $5 ? $4 : $4 ".." $5; there[id] = $6 }
        }
        END {
            for (n = 1; n <= rows; n++) {
                row = order[n]; if (!(row in ids)) continue
                split(row, name, " "); many = split(ids[row], each, "\n") - 1
                verdict = ""; shown = each[1]; missing = parts = 0
                for (k = 1; k <= many; k++) {
                    id = each[k]
                    if (cut[id]) { if (shown == id && k < many) shown = each[k + 1]; parts++; continue }
                    if (absent[id]) { missing++; continue }
                    enough = exact[name[2]] ? agreed[id] == total[id] : agreed[id] * 2 >= total[id]
                    if (!enough) { if (verdict == "") shown = id; verdict = verdict (verdict == "" ? "DIFFERS on GPU " : ", ") gpu[id] }
                }
                if (verdict == "" && missing) verdict = (name[1] in ours ? "DIFFERS: not on the page of " : "not compared: not read of ") missing " GPUs"
                if (verdict == "" && parts == many) verdict = "not compared: GPUs cut by MIG tell it of instances"
                if (verdict == "") verdict = many > 1 ? "agrees, " many - parts " GPUs" : "agrees"
                printf "| %s | %s | %s | %s (%s) | %s |\n", phase, name[1], here[shown], there[shown], name[2], verdict
            }
        }' "$2" >> "$rows"
}

# Rounds of comparison, a stretch beside dmon, energy, profiling metrics.
phase() { # NAME
    local name=$1 round rounds=3 n seconds=6
    [ -z "$quick" ] || { rounds=2 seconds=2; }
    : > "$work/compared"
    for ((round = 0; round < rounds; round++)); do
        get /metrics "$work/before" && flat "$work/before" > "$work/before.flat"
        csv > "$work/readings"
        nvidia-smi -q -x > "$work/smi.xml"
        xml "$work/smi.xml" >> "$work/readings"
        sleep 1.2 # the next page's readings are younger than nvidia-smi's
        get /metrics "$work/after" && flat "$work/after" > "$work/after.flat"
        compare "$work/readings" "$work/before.flat" "$work/after.flat" | sort -k3,3n >> "$work/compared"
        cat "$work/readings" >> "$work/all.$name"
    done
    rm -f "$work"/page.*
    get /metrics "$work/page.0"
    nvidia-smi dmon -c "$seconds" -s pucvmet > "$work/dmon" &
    local watching=$!
    running+=("$watching")
    : > "$work/energy"
    for ((n = 1; n <= seconds + 2; n++)); do
        sleep 1.05
        get /metrics "$work/page.$n"
        # When the readings of this page were taken.
        awk -v now="$EPOCHREALTIME" '
            function gpu(line) { sub(/^[^{]*[{]gpu="/, "", line); sub(/".*/, "", line); return line }
            /^DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[{]/ && !/GPU_I_ID/ { energy[gpu($0)] = $NF }
            /^DCGM_FI_DEV_POWER_USAGE[{]/ && !/GPU_I_ID/ { power[gpu($0)] = $NF }
            /^strandline_reading_age_seconds[{]/ && /group="device"/ { age[gpu($0)] = $NF }
            END { for (g in energy) printf "%s %.3f %s %s\n", g, now - age[g], energy[g], power[g] }' "$work/page.$n" >> "$work/energy"
    done
    wait "$watching" || row "$name" "nvidia-smi dmon" - "it failed" "not compared"
    running=("${running[@]/$watching/}")
    dmon "$work/dmon" > "$work/readings"
    cat "$work/readings" >> "$work/all.$name"
    for n in "$work"/page.*; do flat "$n"; done > "$work/pages.flat"
    compare "$work/readings" "$work/pages.flat" | sort -k3,3n >> "$work/compared"
    verdicts "$name" "$work/compared"
    energy "$name"
    profiling "$name"
    units "$name" "$work/pages.flat"
}

# Energy never falls, and grows by the power that is told.
energy() {
    sort -k1,1n -k2,2n -s "$work/energy" | awk -v phase="$1" '
        function done() {
            if (gpu == "") return
            told = joules > 0 ? joules / (t - first) : power; grown = (energy - begun) / 1000 / (t - first)
            off = grown - told; if (off < 0) off = -off
            bad = fell ? "it falls" : (off > 8 && off > told * 0.15 ? "apart" : "")
            if (bad != "") verdict = verdict (verdict == "" ? "DIFFERS on GPU " : ", ") gpu " (" bad ")"
            if (shown == "" || bad != "") shown = sprintf("grows by %.1f W | %.1f W of power told", grown, told)
        }
        $1 != gpu { done(); gpu = $1; first = t = $2; begun = energy = $3; power = $4; joules = fell = 0; next }
        $2 > t { joules += ($2 - t) * ($4 + power) / 2; if ($3 < energy) fell = 1; t = $2; energy = $3; power = $4 }
        END {
            done()
            if (shown != "") printf "| %s | DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION | %s | %s |\n", phase, shown, verdict == "" ? "agrees" : verdict
        }' >> "$rows"
}

# Profiling metrics are shares; 0 where nothing runs, above 0 under load.
profiling() {
    local name=$1
    awk -v phase="$name" -v own="${STRANDLINE_DEVICE_LOAD:-}" '
        FNR == 1 { file++ }
        file == 1 { if ($2 ~ /^(utilization.gpu|sm)$/) { if (!($3 in busy) || $4 > busy[$3]) busy[$3] = $4 } next }
        $1 == "DCGM_FI_DEV_MIG_MODE" && $3 == 1 { cut = 1 }
        /_(SM_ACTIVE|GR_ENGINE_ACTIVE) / {
            id = $1 SUBSEP $2; if (!(id in most) || $3 > most[id]) most[id] = $3; if (!(id in least) || $3 < least[id]) least[id] = $3
        }
        END {
            for (id in most) {
                split(id, part, SUBSEP); field = part[1]; gpu = part[2]; all[field]++
                if (least[id] < 0 || most[id] > 1.001) wrong[field] = wrong[field] " " gpu
                else if (phase == "load" && most[id] > 0.05) good[field]++
                else if (phase == "idle" && busy[gpu] > 0) { taken[field]++ }
                else if (phase == "idle" && most[id] > 0.02) wrong[field] = wrong[field] " " gpu
                else if (phase == "idle") good[field]++
                if (most[id] > highest[field]) highest[field] = most[id]
            }
            for (field in all) {
                verdict = "agrees"
                if (wrong[field] != "") verdict = "DIFFERS on GPU" wrong[field]
                else if (phase == "load" && cut && good[field] == 0) verdict = "not judged: CUDA may have loaded instances alone"
                else if (phase == "load" && !cut && (own == "" ? good[field] < all[field] : good[field] == 0)) verdict = "DIFFERS: 0 under load"
                else if (phase == "idle" && taken[field] == all[field]) verdict = "not judged: other programs use the GPUs"
                printf "| %s | %s | at most %s on %d GPUs | %s | %s |\n", phase, field, highest[field] + 0, all[field], phase == "idle" ? "about 0 where utilization is 0" : "above 0, at most 1", verdict
            }
            if (!length_of(all)) printf "| %s | DCGM_FI_PROF_SM_ACTIVE | not on the page | | %s |\n", phase, "not compared: GPUs before Hopper, or cut by MIG, have none of the whole board"
        }
        function length_of(array,    key, count) { for (key in array) count++; return count + 0 }' "$work/all.$name" "$work/pages.flat" >> "$rows"
}

units() {
    awk -v phase="$1" '
        BEGIN { count = split(ENVIRON["plausible"], lines, "\n"); for (n = 1; n <= count; n++) if (split(lines[n], part, " ") == 3) { from[part[1]] = part[2]; to[part[1]] = part[3] } }
        {
            name = $1; sub(/^DCGM_FI_(DEV|PROF)_/, "", name)
            if (!(name in from)) { if (name ~ /ACTIVE$/) name = "ACTIVE"; else if (name ~ /OCCUPANCY$/) name = "OCCUPANCY"; else next }
            looked[$1] = 1; if ($3 < from[name] || $3 > to[name]) wrong[$1] = wrong[$1] " GPU " $2 ": " $3
            if ($1 ~ /_FB_/) fb[$1, $2] = $3
            gpus[$2] = 1
        }
        END {
            for (name in looked) fields++
            for (name in wrong) { printf "| %s | %s | %s | | DIFFERS: no such value with this unit |\n", phase, name, wrong[name]; bad = 1 }
            if (!bad) printf "| %s | units | %d fields within what their units allow | | agrees |\n", phase, fields
            for (gpu in gpus) {
                if (!(("DCGM_FI_DEV_FB_RESERVED", gpu) in fb)) continue
                left = fb["DCGM_FI_DEV_FB_TOTAL", gpu] - fb["DCGM_FI_DEV_FB_USED", gpu] - fb["DCGM_FI_DEV_FB_FREE", gpu] - fb["DCGM_FI_DEV_FB_RESERVED", gpu]
                if (left < -3 || left > 3) off = off " " gpu; summed++
            }
            if (summed) printf "| %s | memory | used, free and reserved add up to the total on %d GPUs | | %s |\n", phase, summed, off == "" ? "agrees" : "DIFFERS on GPU" off
        }' "$2" >> "$rows"
}

# Names, cardinality and form of the page that is printed by default.
page_form() {
    awk '
        /^# (HELP|TYPE) / { if (!($3 in seen)) last = $3; next }
        /^#/ || /^$/ { next }
        {
            name = $0; sub(/[{ ].*/, "", name)
            series = $0; sub(/ [^ ]*$/, "", series)
            if (series in twice) bad = bad " twice: " series ";"; twice[series] = 1
            if ($0 !~ /^[a-zA-Z_:][a-zA-Z0-9_:]*([{][a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\.)*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\.)*")*[}])? -?[0-9][0-9.e+-]*$/) bad = bad " malformed: " $0 ";"
            if (name != last) bad = bad " not below its head: " name ";"
        }
        END { print bad == "" ? "well formed, no series twice" : substr(bad, 1, 300) }' "$work/page" > "$work/form"
    judge page form "$(tr '|' '/' < "$work/form")" "" "$(if [ "$(cat "$work/form")" = "well formed, no series twice" ]; then echo 1; else echo 0; fi)"
    if command -v promtool >/dev/null; then
        local status=0
        promtool check metrics < "$work/page" > "$work/promtool" 2>&1 || status=$? # 3: opinions on names, which are DCGM's
        judge page promtool "status $status" "0, or 3: opinions on names" "$status == 0 || $status == 3"
    fi
    cut -d, -f1 "$built_in" | grep '^DCGM' | sort > "$work/known"
    awk '/^# TYPE DCGM/ { print $3 }' "$work/page" | sort > "$work/named"
    local unknown
    unknown=$(comm -13 "$work/known" "$work/named" | tr '\n' ' ')
    judge page names "$(wc -l < "$work/named") DCGM families${unknown:+; unknown: $unknown}" "$(wc -l < "$work/known") in the built-in list, labels counted" "\"$unknown\" == \"\""
    row page "families that are absent" "$(comm -23 "$work/known" "$work/named" | grep -v DRIVER_VERSION | tr '\n' ' ')" "the reason is in the check below" "told"
    local gpus most
    gpus=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | sort | tr '\n' ' ')
    judge page "GPUs by UUID" "$(grep -o 'UUID="[^"]*"' "$work/page" | cut -d'"' -f2 | sort -u | wc -l) GPUs" "$(wc -w <<< "$gpus")" \
        "\"$(grep -o 'UUID="[^"]*"' "$work/page" | cut -d'"' -f2 | sort -u | tr '\n' ' ')\" == \"$gpus\""
    most=$(flat "$work/page" | awk '{ count[$2]++ } END { for (g in count) if (count[g] > most) most = count[g]; print most + 0 }')
    judge page "DCGM series of a GPU" "$most" "at most one a row of the list" "$most <= $(wc -l < "$work/known")"
    row page "series in all" "$(grep -c '^[^#]' "$work/page")" "$(wc -c < "$work/page") bytes" "told"
}

# Processor time of the process so far, ns: of its threads where the kernel tells, else in ticks of 10 ms.
cpu_ns() {
    if [ -r "/proc/$pid/task/$pid/schedstat" ]; then
        awk '{ sum += $1 } END { printf "%.0f\n", sum }' /proc/"$pid"/task/*/schedstat
    else
        awk '{ sub(/^.*[)] /, ""); printf "%.0f\n", ($12 + $13) * 1e7 }' "/proc/$pid/stat"
    fi
}

cost() {
    local n
    if command -v curl >/dev/null; then
        curl -sf -o /dev/null -w '%{time_total}\n' "http://127.0.0.1:$port/metrics?[1-200]" > "$work/times"
    else
        for ((n = 0; n < 200; n++)); do
            local from=$EPOCHREALTIME
            get /metrics "$work/page"
            awk "BEGIN { print $EPOCHREALTIME - $from }"
        done > "$work/times"
    fi
    local p50 p99
    read -r p50 p99 <<< "$(sort -g "$work/times" | awk '{ t[NR] = $1 * 1000 } END { printf "%.2f %.2f", t[int(NR * 0.5) + 1], t[int(NR * 0.99)] }')"
    if command -v curl >/dev/null; then
        budget cost "latency of 200 scrapes" "p50 $p50 ms, p99 $p99 ms" "p99 below 2 ms" "$p99 < 2"
    else
        row cost "latency of 200 scrapes" "p50 $p50 ms, p99 $p99 ms, with what this shell takes" "p99 below 2 ms" "not judged without curl"
    fi
    local seconds=20
    [ -z "$quick" ] || seconds=3
    get /metrics "$work/page"
    local cpu library from=$EPOCHREALTIME ran all theirs
    cpu=$(cpu_ns) library=$(single "$work/page" strandline_library_cpu_seconds_total)
    for ((n = 0; n < seconds; n++)); do sleep 1; get /metrics "$work/page"; done
    ran=$(awk "BEGIN { print $EPOCHREALTIME - $from }")
    all=$(awk "BEGIN { printf \"%.4f\", ($(cpu_ns) - $cpu) / 1e7 / $ran }")
    theirs=$(awk "BEGIN { printf \"%.4f\", ($(single "$work/page" strandline_library_cpu_seconds_total) - $library) * 100 / $ran }")
    budget cost "processor, a reading and a scrape a second, for $seconds s" "$(awk "BEGIN { printf \"%.3f\", $all - $theirs }") % of a core ours, $theirs % the driver library's" "ours below 0.2 %" "$all - $theirs < 0.2"
    local resident mapped
    read -r resident mapped <<< "$(awk '/^[0-9a-f]+-/ { lib = /libnvidia|libcuda/ } /^Rss:/ { all += $2; if (lib) of += $2 } END { printf "%.1f %.1f", all / 1024, of / 1024 }' "/proc/$pid/smaps")"
    budget cost "resident memory" "$resident MiB, $mapped of them pages of the driver library's files" "the rest below 20 MiB" "$resident - $mapped < 20"
    row cost "threads, open files" "$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l), $(find "/proc/$pid/fd" -mindepth 1 -maxdepth 1 | wc -l)" "" told
    library_path=$(awk '/libnvidia/ { print $NF; exit }' "/proc/$pid/maps")
}

# Starts what loads the GPUs: $loading; fails where there is no way to.
load() {
    if [ -n "${STRANDLINE_DEVICE_LOAD:-}" ]; then
        bash -c "exec $STRANDLINE_DEVICE_LOAD" > "$work/load" 2>&1 &
    elif command -v python3 >/dev/null; then
        python3 "$here/load.py" 120 > "$work/load" 2>&1 &
    else
        echo "no python3" > "$work/load"
        return 1
    fi
    loading=$!
    running+=("$loading")
    pause 8 2 # profiling metrics are means over their interval
    kill -0 "$loading" 2>/dev/null
}

[ -x "$exporter" ] || die "$exporter is no program"
command -v nvidia-smi >/dev/null || die "there is no nvidia-smi; this needs a machine with an NVIDIA GPU and its driver"
: > "$rows"
keys=$(awk '$2 == "csv" { print $3 }' <<< "$map" | sort -u)
nvidia-smi --help-query-gpu > "$work/help"
asked=
for key in $keys; do
    if grep -qF "\"$key\"" "$work/help"; then asked+=${asked:+,}$key; fi
done
keys=$asked
[ -n "$keys" ] || die "nvidia-smi --help-query-gpu names no field that is known here"

say "the check, and what is printed by default"
"$exporter" --strandline-check > "$work/check" 2>&1 || die "--strandline-check fails: $(tail -n 3 "$work/check")"
DCGM_EXPORTER_COLLECTORS=$built_in start
pause 12 3
get /metrics "$work/page"
page_form
say "latency, memory and processor time"
cost
stop "end"

# All that can be compared, and profiling metrics at shorter means, so that a load shows soon.
cp "$built_in" "$work/counters.csv"
awk 'NF == 6 { print $1 }' <<< "$map" | sort -u | while read -r field; do
    grep -q "^$field," "$work/counters.csv" || printf '%s, gauge, compared by this script\n' "$field" >> "$work/counters.csv"
done
start -f "$work/counters.csv" --strandline-profiling-interval 2s
pause 5 3
say "idle"
phase idle
say "under load"
if load; then
    phase load
    # Its own profiling metrics, where this nvidia-smi has them; their columns are not known well enough to compare.
    timeout 10 nvidia-smi dmon -c 2 -s p --gpm-metrics=1,2,3,5,10,20,21 > "$work/gpm" 2>&1 || true
    kill -0 "$loading" 2>/dev/null || row load "the load" "ended before its time: $(tail -n 1 "$work/load" | cut -c1-200 | tr '|' '/')" "" "DIFFERS"
    kill -TERM "$loading" 2>/dev/null || true
    wait "$loading" 2>/dev/null || true
    running=("${running[@]/$loading/}")
else
    row load "no load could be made" "$(tail -n 1 "$work/load" | cut -c1-200 | tr '|' '/')" "" "not compared"
fi
stop "end, after load"
if grep -E 'WARN|ERROR' "$work/log" > "$work/warnings"; then
    row log "warnings" "$(head -n 1 "$work/warnings" | cut -c1-200 | tr '|' '/')" "" "told"
fi

failures=$(grep -c '| DIFFERS' "$rows" || true)
{
    printf '# The exporter beside nvidia-smi\n\n'
    printf 'By tests/device/run.sh, which had not met hardware when it was written, only the simulator: a difference may be the script'"'"'s.\n\n'
    printf -- '- %s\n' "$("$exporter" --version), $(date -u +%Y-%m-%dT%H:%M:%SZ), $(uname -sr), $(nproc) cores"
    if [ -n "${STRANDLINE_SIM_SPEC:-}" ]; then
        printf -- '- **No hardware**: the library is the simulator'"'"'s, nvidia-smi a stand-in\n'
    fi
    printf -- '- driver library: %s\n' "$library_path"
    nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader | sed 's/^/- GPU /'
    printf '\n%s\n\n' "$(if [ "$failures" = 0 ]; then echo "All that was compared agrees."; else echo "**$failures of $(wc -l < "$rows") differ.**"; fi)"
    printf '| phase | field | exporter | nvidia-smi, or the limit | verdict |\n|---|---|---|---|---|\n'
    cat "$rows"
    # shellcheck disable=SC2016  # Markdown
    block() { printf '\n## %s\n\n```\n%s\n```\n' "$1" "$(cat "$2")"; }
    block '`--strandline-check`' "$work/check"
    block '`nvidia-smi dmon`, the last stretch' "$work/dmon"
    [ ! -s "$work/gpm" ] || block '`nvidia-smi dmon --gpm-metrics`, under load, not compared' "$work/gpm"
} > "$report"
say "the report is $report"
if [ "$failures" != 0 ]; then
    grep '| DIFFERS' "$rows" >&2
    exit 1
fi
