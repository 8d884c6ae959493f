# SPDX-License-Identifier: Apache-2.0 OR MIT
# A server, keys, a save in the background while keys change, and what is there in the end.
redis-server --port 0 --unixsocket "$PWD/s" --dir "$PWD" --save '' --daemonize no > log 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
ask() { redis-cli -s "$PWD/s" "$@"; }
for i in $(seq 600); do [ "$(ask ping 2>/dev/null)" = PONG ] && break; sleep 0.1; done
ask debug populate 400000 key 100 > /dev/null
ask bgsave > /dev/null
seq 1 20000 | sed 's/.*/SET key:& changed&/' | ask > /dev/null
for i in $(seq 600); do ask info persistence | grep -q 'rdb_bgsave_in_progress:0' && break; sleep 0.1; done
ask info persistence | grep -o 'rdb_last_bgsave_status:ok'
ask dbsize
ask get key:777
ask debug digest
