// SPDX-License-Identifier: Apache-2.0 OR MIT
// The floor: programs that do nothing at the hooks the others use. What remains is the kernel's own slow path for a
// system call that is being traced.
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

SEC("tp_btf/sys_enter")
int BPF_PROG(on_enter, struct pt_regs *regs, long nr)
{
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_exit, struct pt_regs *regs, long ret)
{
	return 0;
}
