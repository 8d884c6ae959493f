# SPDX-License-Identifier: Apache-2.0 OR MIT
mkdir -p logs www && seq 1 1000000 > www/t
cat > n.conf <<EOF
daemon off; error_log stderr crit; pid $PWD/pid; worker_processes 2; user root;
events { worker_connections 64; }
http { access_log off; client_body_temp_path $PWD/a; proxy_temp_path $PWD/b; fastcgi_temp_path $PWD/c; uwsgi_temp_path $PWD/d; scgi_temp_path $PWD/e;
  gzip on; gzip_types *; server { listen unix:$PWD/s; root $PWD/www; } }
EOF
nginx -p "$PWD" -c "$PWD/n.conf" 2> log &
server=$!
trap 'kill $server 2>/dev/null' EXIT
for i in $(seq 600); do curl -s --unix-socket s -o /dev/null http://x/t && break; sleep 0.1; done
for i in 1 2 3 4; do curl -s --compressed --unix-socket s http://x/t | md5sum; done
