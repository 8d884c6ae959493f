// SPDX-License-Identifier: Apache-2.0 OR MIT
// A switch for walks, as an XDP program: packets to the service address are redirected to the node that has their cur_ptr;
// other packets to a host of this cluster are redirected to that host; all others are left to the kernel.
//
// Flow    Ethernet, IPv4, UDP ─▶ service address: walk's header ─▶ address ─▶ binary search in `ranges` ─▶ rewrite, redirect
//                             ─▶ a host of the cluster: `hosts` ─▶ rewrite, redirect
// Layout  spec/src/operand/packet.rs: magic at 0, address at 64, little-endian
// Order   `ranges` has two halves; one word of `config` holds the number of the half in use and of its entries. So a packet
//         sees either the old map or the new one
// Owner   the packet may be hostile: every access is checked against its end (the kernel's verifier requires that). A packet
//         with an address that no node has goes to the first node, which answers that the address is not its own
// Build   clang -O2 -g0 -target bpf -mcpu=v2 -ffreestanding -nostdinc -Wall -Werror -c switch.c -o switch.o
//
// The UDP checksum of redirected packets is set to 0, which means none (RFC 768): sockets of this machine leave the checksum
// to a network card, and here there is none. The build needs no system header.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

enum { XDP_PASS = 2 };
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6 };
enum { RANGES = 256, SEARCH_STEPS = 9, HOSTS = 1024 };
enum { COUNT_WALKS, COUNT_HOSTS, COUNT_STRAY, COUNT_PASSED, COUNTS };

// linux/bpf.h
struct xdp_md {
	u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const redirect)(u32 ifindex, u64 flags) = (void *)23;

struct map {
	u32 type, key_bytes, value_bytes, entries, flags;
};

struct port {
	u32 ifindex;
	u8 mac[6];
	u16 reserved;
};

struct range {
	u64 first;
	u64 end;
	u32 ip;	// network byte order
	struct port port;
};

// Word 0: half u32, entries u32. Word 1: service address u32, port u16 (both in network byte order), reserved u16.
struct config {
	u32 half, entries, service_ip;
	u16 service_port, reserved;
};

SECTION("maps") struct map config = {MAP_ARRAY, 4, sizeof(struct config), 1, 0};
SECTION("maps") struct map ranges = {MAP_ARRAY, 4, sizeof(struct range), 2 * RANGES, 0};
SECTION("maps") struct map hosts = {MAP_HASH, 4, sizeof(struct port), HOSTS, 0};
SECTION("maps") struct map counts = {MAP_PERCPU_ARRAY, 4, 8, COUNTS, 0};

struct frame {
	u8 to[6], from[6];
	u16 protocol;
	u8 version, tos;
	u16 bytes, id, fragment;
	u8 ttl, transport;
	u16 check;
	u32 source, target;
	u16 source_port, target_port, udp_bytes, udp_check;
} __attribute__((packed));

INLINE void count(u32 what)
{
	u64 *value = map_lookup(&counts, &what);
	if (value)
		*value += 1;
}

// Updates the header's checksum after one of its words was replaced (RFC 1624).
INLINE u16 replaced(u16 check, u32 old, u32 new)
{
	u32 sum = (u16)~check;
	sum += (u16)~old + (u16)~(old >> 16) + (u16)new + (u16)(new >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)~sum;
}

INLINE long send(struct frame *frame, u32 ip, const struct port *port)
{
	u8 mine[6];

	__builtin_memcpy(mine, frame->to, 6);
	__builtin_memcpy(frame->to, port->mac, 6);
	__builtin_memcpy(frame->from, mine, 6);
	frame->check = replaced(frame->check, frame->target, ip);
	frame->target = ip;
	frame->udp_check = 0;
	return redirect(port->ifindex, 0);
}

// Returns the entry whose range contains the address; if there is none, the first entry.
INLINE struct range *find(const struct config *now, u64 address, int *stray)
{
	u32 low = 0, high = now->entries;
	u32 base = now->half ? RANGES : 0;
	struct range *range;

	for (int step = 0; step < SEARCH_STEPS; step++) {
		if (low >= high)
			break;
		u32 middle = (low + high) / 2;
		u32 key = base + middle;
		range = map_lookup(&ranges, &key);
		if (!range)
			return 0;
		if (address >= range->end)
			low = middle + 1;
		else if (address < range->first)
			high = middle;
		else
			return range;
	}
	*stray = 1;
	return map_lookup(&ranges, &base);
}

SECTION("xdp") int memlift_switch(struct xdp_md *context)
{
	u8 *data = (u8 *)(u64)context->data;
	u8 *end = (u8 *)(u64)context->data_end;
	struct frame *frame = (struct frame *)data;
	u32 zero = 0;
	struct config *now = map_lookup(&config, &zero);

	// 0x0008 and 0xff3f are in network byte order, as read on a little-endian machine; others are not supported.
	if (!now || data + sizeof(*frame) > end || frame->protocol != 0x0008 || frame->version != 0x45 ||
	    (frame->fragment & 0xff3f) || frame->transport != 17)
		goto pass;

	if (frame->target == now->service_ip && frame->target_port == now->service_port && now->entries) {
		u8 *walk = data + sizeof(*frame);
		if (walk + 72 > end || walk[0] != 'M' || walk[1] != 'L' || walk[2] != 'P' || walk[3] != 'K')
			goto pass;
		u64 address = 0;
		for (int byte = 7; byte >= 0; byte--)
			address = address << 8 | walk[64 + byte];
		int stray = 0;
		struct range *range = find(now, address, &stray);
		if (!range)
			goto pass;
		count(stray ? COUNT_STRAY : COUNT_WALKS);
		return send(frame, range->ip, &range->port);
	}

	u32 target = frame->target;
	struct port *port = map_lookup(&hosts, &target);
	if (!port)
		goto pass;
	count(COUNT_HOSTS);
	return send(frame, target, port);

pass:
	count(COUNT_PASSED);
	return XDP_PASS;
}

// Lets every packet pass. The far end of a veth pair needs a program, or frames redirected to it are dropped.
SECTION("xdp") int memlift_pass(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}

SECTION("license") char license_of_this[] = "Dual MIT/GPL";
