#!/bin/sh
# Run a command whose temporary files stay in memory, where there are 8 GB of it to spare: tests wait for disks half of
# their time. What is left of the files is removed when the command has ended.
set -eu
room=$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')
if [ "${room:-0}" -gt 8000 ] && mkdir "/dev/shm/t$$"; then
    export TMPDIR="/dev/shm/t$$"
    trap 'rm -rf "$TMPDIR"' EXIT
    trap 'exit 130' INT TERM
fi
"$@"
