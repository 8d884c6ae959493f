# SPDX-License-Identifier: Apache-2.0 OR MIT
# PostgreSQL refuses root: as root it runs as nobody.
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME="$PWD" "$@"; else "$@"; fi; }
chmod 755 . && mkdir data && { [ "$(id -u)" != 0 ] || chown nobody:nogroup data; }
as "$programs/initdb" -D "$PWD/data" -U u -A trust -E UTF8 --locale=C > log 2>&1
as "$programs/postgres" -D "$PWD/data" -k "$PWD/data" -c listen_addresses= -c shared_buffers=32MB -c work_mem=128MB > log2 2>&1 &
server=$!
trap 'kill $server; wait $server 2> /dev/null' EXIT
for i in $(seq 600); do as psql -h "$PWD/data" -U u -d postgres -c 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
as psql -h "$PWD/data" -U u -d postgres -q -A -t <<'EOF'
create table t as select i as k, 'value ' || i as v, i % 1000 as w from generate_series(1, 800000) i;
select count(*), sum(length(v)) from t;
select w, count(distinct v) from t group by w order by w limit 3;
select md5(string_agg(v, ',' order by v desc)) from t where k % 3 = 0;
EOF
