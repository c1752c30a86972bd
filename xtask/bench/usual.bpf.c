// SPDX-License-Identifier: Apache-2.0 OR MIT
// The usual way, as in many published tools: perf tracepoints, a hash of starts that is filled and emptied for every
// call, a hash with one key per histogram bucket, atomic adds.
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct bucket_key {
	__u32 nr;
	__u32 log2;
};

struct start {
	__u64 at_ns;
	__u64 nr;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, __u32);
	__type(value, struct start);
} starts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, struct bucket_key);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline __u32 log2_u32(__u32 v)
{
	__u32 shift, r;

	r = (v > 0xffff) << 4;
	v >>= r;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	return r | (v >> 1);
}

static __always_inline __u32 log2_u64(__u64 v)
{
	__u32 high = v >> 32;

	return high ? log2_u32(high) + 32 : log2_u32(v);
}

SEC("tracepoint/raw_syscalls/sys_enter")
int on_enter(struct trace_event_raw_sys_enter *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct start start = { .at_ns = bpf_ktime_get_ns(), .nr = ctx->id };

	bpf_map_update_elem(&starts, &tid, &start, BPF_ANY);
	return 0;
}

SEC("tracepoint/raw_syscalls/sys_exit")
int on_exit(struct trace_event_raw_sys_exit *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct start *start = bpf_map_lookup_elem(&starts, &tid);
	struct bucket_key key = {};
	__u64 zero = 0, *count;

	if (!start)
		return 0;
	key.nr = start->nr;
	key.log2 = log2_u64(bpf_ktime_get_ns() - start->at_ns);
	bpf_map_delete_elem(&starts, &tid);
	count = bpf_map_lookup_elem(&counts, &key);
	if (!count) {
		bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&counts, &key);
		if (!count)
			return 0;
	}
	__sync_fetch_and_add(count, 1);
	return 0;
}
