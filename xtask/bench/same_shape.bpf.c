// SPDX-License-Identifier: Apache-2.0 OR MIT
// What a careful author would write by hand, in the shape our compiler emits: the start in task storage, the whole
// histogram behind one array lookup, bucket by table, no atomics because each CPU writes its own shard.
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "buckets.h"

char LICENSE[] SEC("license") = "GPL";

struct start {
	__u64 at_ns; // 0: no call is open
	__u32 nr;
	__u32 pad;
};

struct record {
	__u64 sum_ns;
	__u64 bucket[RECORD_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct start);
} starts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CPUS * SLOTS);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");

SEC("tp_btf/sys_enter")
int BPF_PROG(on_enter, struct pt_regs *regs, long nr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct start *start = bpf_task_storage_get(&starts, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!start)
		return 0;
	start->nr = nr;
	start->at_ns = bpf_ktime_get_ns();
	return 0;
}

// Bucket of v: the table gives the first bucket that a value with this power of two and these mantissa bits can be in;
// at most COMPARES bounds lie inside such a cell.
static __always_inline __u32 bucket_of(__u64 v)
{
	__u64 x = v > LAST_UPPER ? LAST_UPPER + 1 : v | (1 << MANTISSA);
	__u32 log2, shift, cell, i;
	__u64 y = x;

	log2 = (y > 0xffffffff) << 5;
	y >>= log2;
	shift = (y > 0xffff) << 4;
	y >>= shift;
	log2 |= shift;
	shift = (y > 0xff) << 3;
	y >>= shift;
	log2 |= shift;
	shift = (y > 0xf) << 2;
	y >>= shift;
	log2 |= shift;
	shift = (y > 0x3) << 1;
	y >>= shift;
	log2 |= shift;
	log2 |= y >> 1;

	cell = (log2 << MANTISSA) | ((x >> (log2 - MANTISSA)) & ((1 << MANTISSA) - 1));
	i = first_bucket[cell & (CELLS - 1)];
#pragma unroll
	for (int n = 0; n < COMPARES; n++)
		i += v > upper[i];
	return i;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_exit, struct pt_regs *regs, long ret)
{
	__u64 now = bpf_ktime_get_ns();
	struct start *start = bpf_task_storage_get(&starts, bpf_get_current_task_btf(), 0, 0);
	struct record *record;
	__u64 elapsed;
	__u32 nr, index, bucket;

	if (!start || !start->at_ns)
		return 0;
	elapsed = now - start->at_ns;
	start->at_ns = 0;
	nr = start->nr;
	if (nr >= SLOTS - 1)
		nr = SLOTS - 1; // the overflow slot
	index = bpf_get_smp_processor_id() * SLOTS + nr;
	record = bpf_map_lookup_elem(&records, &index);
	if (!record)
		return 0;
	bucket = bucket_of(elapsed);
	if (bucket >= RECORD_BUCKETS)
		return 0;
	record->sum_ns += elapsed;
	record->bucket[bucket]++;
	return 0;
}
