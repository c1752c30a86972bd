//! Numbers and names of the kernel's helpers (`enum bpf_func_id` in `include/uapi/linux/bpf.h`: stable ABI).

use crate::ir::Helper;

/// One helper.
struct Row {
    helper: Helper,
    id: u32,
    name: &'static str,
}

const fn row(helper: Helper, id: u32, name: &'static str) -> Row {
    Row { helper, id, name }
}

const TABLE: &[Row] = &[
    row(Helper::MapLookup, 1, "map_lookup_elem"),
    row(Helper::MapUpdate, 2, "map_update_elem"),
    row(Helper::MapDelete, 3, "map_delete_elem"),
    row(Helper::KtimeGetNs, 5, "ktime_get_ns"),
    row(Helper::GetPrandomU32, 7, "get_prandom_u32"),
    row(Helper::GetSmpProcessorId, 8, "get_smp_processor_id"),
    row(Helper::GetCurrentPidTgid, 14, "get_current_pid_tgid"),
    row(Helper::GetCurrentUidGid, 15, "get_current_uid_gid"),
    row(Helper::GetCurrentComm, 16, "get_current_comm"),
    row(Helper::PerfEventOutput, 25, "perf_event_output"),
    row(Helper::GetStackId, 27, "get_stackid"),
    row(Helper::GetCurrentTask, 35, "get_current_task"),
    row(Helper::GetCurrentCgroupId, 80, "get_current_cgroup_id"),
    row(Helper::MapPush, 87, "map_push_elem"),
    row(Helper::MapPop, 88, "map_pop_elem"),
    row(Helper::ProbeReadUser, 112, "probe_read_user"),
    row(Helper::ProbeReadKernel, 113, "probe_read_kernel"),
    row(Helper::ProbeReadUserStr, 114, "probe_read_user_str"),
    row(Helper::ProbeReadKernelStr, 115, "probe_read_kernel_str"),
    row(Helper::RingbufOutput, 130, "ringbuf_output"),
    row(Helper::TaskStorageGet, 156, "task_storage_get"),
    row(Helper::GetCurrentTaskBtf, 158, "get_current_task_btf"),
    row(Helper::GetFuncIp, 173, "get_func_ip"),
    row(Helper::GetAttachCookie, 174, "get_attach_cookie"),
];

/// `bpf_tail_call(ctx, map, index)`. No probe calls it.
pub const TAIL_CALL: u32 = 12;

/// The helper's number; `None` for what is a kernel function, called by BTF id ([`Helper::RdonlyCast`]).
pub fn id(helper: Helper) -> Option<u32> {
    TABLE.iter().find(|row| row.helper == helper).map(|row| row.id)
}

/// The name of the helper with this number, without `bpf_`.
pub fn name(id: i64) -> Option<&'static str> {
    TABLE.iter().find(|row| i64::from(row.id) == id).map(|row| row.name)
}

/// Whether a call with an unused result may be left out.
pub fn only_gives_a_value(helper: Helper) -> bool {
    matches!(
        helper,
        Helper::MapLookup
            | Helper::KtimeGetNs
            | Helper::GetPrandomU32
            | Helper::GetCurrentPidTgid
            | Helper::GetCurrentUidGid
            | Helper::GetCurrentCgroupId
            | Helper::GetSmpProcessorId
            | Helper::GetCurrentTask
            | Helper::GetCurrentTaskBtf
            | Helper::GetFuncIp
            | Helper::GetAttachCookie
            | Helper::RdonlyCast
    )
}
