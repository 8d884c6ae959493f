# SPDX-License-Identifier: Apache-2.0 OR MIT
mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db --user=root > log 2>&1
mariadbd --no-defaults --user=root --datadir="$PWD/data" --socket="$PWD/s" --skip-networking --innodb-buffer-pool-size=128M --pid-file="$PWD/pid" > log2 2>&1 &
server=$!
trap 'kill $server; wait $server 2> /dev/null' EXIT
for i in $(seq 600); do mariadb --no-defaults -S s -u root -e 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
mariadb --no-defaults -S s -u root <<'EOF'
create database d; use d;
create table t (k int primary key, v varchar(100), w int) engine=innodb;
insert into t select seq, concat('value ', seq), seq % 100 from seq_1_to_300000;
select count(*), sum(length(v)) from t;
select w, count(*) from t group by w order by w limit 3;
EOF
