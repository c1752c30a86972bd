//! Events that Perfetto has a message for, and how its fields come from those of the kernel.
//!
//! Only events whose message says all that matters: of `kfree_skb` Perfetto does not know the reason, for instance, so it stays generic.

use super::fields::Fields;

/// Declares messages whose fields have the kernel's names, the set of all of them, and the table of events they are made from.
macro_rules! events {
    (
        $($system:literal $event:literal => $name:ident = $tag:tt {
            $($field:ident: $kind:ident = $number:tt $(via $through:path)?,)*
        })*
        by hand
        $($hand_system:literal $hand_event:literal => $read:path;)*
        as
        $($hand:ident = $hand_tag:tt;)*
    ) => {
        $(
            #[derive(Clone, PartialEq, prost::Message)]
            pub(super) struct $name {
                $(#[prost($kind, optional, tag = $number)] pub $field: Option<rust!($kind)>,)*
            }

            impl $name {
                fn read(fields: &mut Fields<'_, '_>) -> Kind {
                    Kind::$name($name { $($field: fields.get(stringify!($field))$(.map($through))?,)* })
                }
            }
        )*

        /// One event, as the message that Perfetto has for it.
        #[derive(Clone, PartialEq, prost::Oneof)]
        pub(super) enum Kind {
            $(#[prost(message, tag = $tag)] $name($name),)*
            $(#[prost(message, tag = $hand_tag)] $hand($hand),)*
        }

        /// How the event of a subsystem and name is read; `None` when Perfetto has no message for it.
        pub(super) fn reader(system: &str, event: &str) -> Option<Reader> {
            Some(match (system, event) {
                $(($system, $event) => $name::read,)*
                $(($hand_system, $hand_event) => $read,)*
                _ => return None,
            })
        }

        /// Events made by the table: their names, their numbers, and of each field its name, type and number.
        #[cfg(test)]
        pub(super) const TABLE: &[(&str, u32, &[(&str, &str, u32)])] =
            &[$(($event, $tag, &[$((stringify!($field), stringify!($kind), $number),)*]),)*];

        #[cfg(test)]
        pub(super) const TAGS: &[u32] = &[$($tag,)* $($hand_tag,)*];
    };
}

/// The Rust type of a protobuf type.
macro_rules! rust {
    (string) => {
        String
    };
    (int32) => {
        i32
    };
    (uint32) => {
        u32
    };
    (int64) => {
        i64
    };
    (uint64) => {
        u64
    };
}

/// Makes the message of an event.
pub(super) type Reader = fn(&mut Fields<'_, '_>) -> Kind;

events! {
    "sched" "sched_switch" => SchedSwitch = 4 {
        prev_comm: string = 1, prev_pid: int32 = 2, prev_prio: int32 = 3, prev_state: int64 = 4,
        next_comm: string = 5, next_pid: int32 = 6, next_prio: int32 = 7,
    }
    "sched" "sched_waking" => SchedWaking = 20 {
        comm: string = 1, pid: int32 = 2, prio: int32 = 3, success: int32 = 4, target_cpu: int32 = 5,
    }
    "sched" "sched_wakeup" => SchedWakeup = 17 {
        comm: string = 1, pid: int32 = 2, prio: int32 = 3, success: int32 = 4, target_cpu: int32 = 5,
    }
    "sched" "sched_wakeup_new" => SchedWakeupNew = 114 {
        comm: string = 1, pid: int32 = 2, prio: int32 = 3, success: int32 = 4, target_cpu: int32 = 5,
    }
    "sched" "sched_migrate_task" => SchedMigrateTask = 491 {
        comm: string = 1, pid: int32 = 2, prio: int32 = 3, orig_cpu: int32 = 4, dest_cpu: int32 = 5,
    }
    "sched" "sched_pi_setprio" => SchedPiSetprio = 353 {
        comm: string = 1, newprio: int32 = 2, oldprio: int32 = 3, pid: int32 = 4,
    }
    "sched" "sched_process_exec" => SchedProcessExec = 237 {
        filename: string = 1, pid: int32 = 2, old_pid: int32 = 3,
    }
    "sched" "sched_process_exit" => SchedProcessExit = 238 {
        comm: string = 1, pid: int32 = 2, tgid: int32 = 3, prio: int32 = 4,
    }
    "sched" "sched_process_fork" => SchedProcessFork = 239 {
        parent_comm: string = 1, parent_pid: int32 = 2, child_comm: string = 3, child_pid: int32 = 4,
    }
    "sched" "sched_process_free" => SchedProcessFree = 240 {
        comm: string = 1, pid: int32 = 2, prio: int32 = 3,
    }
    "sched" "sched_process_wait" => SchedProcessWait = 242 {
        comm: string = 1, pid: int32 = 2, prio: int32 = 3,
    }
    "task" "task_newtask" => TaskNewtask = 235 {
        pid: int32 = 1, comm: string = 2, clone_flags: uint64 = 3, oom_score_adj: int32 = 4,
    }
    "task" "task_rename" => TaskRename = 236 {
        pid: int32 = 1, oldcomm: string = 2, newcomm: string = 3, oom_score_adj: int32 = 4,
    }
    "irq" "irq_handler_entry" => IrqHandlerEntry = 36 { irq: int32 = 1, name: string = 2, }
    "irq" "irq_handler_exit" => IrqHandlerExit = 37 { irq: int32 = 1, ret: int32 = 2, }
    "irq" "softirq_entry" => SoftirqEntry = 24 { vec: uint32 = 1, }
    "irq" "softirq_exit" => SoftirqExit = 25 { vec: uint32 = 1, }
    "irq" "softirq_raise" => SoftirqRaise = 26 { vec: uint32 = 1, }
    "power" "cpu_frequency" => CpuFrequency = 11 { state: uint32 = 1, cpu_id: uint32 = 2, }
    "power" "cpu_idle" => CpuIdle = 13 { state: uint32 = 1, cpu_id: uint32 = 2, }
    "block" "block_rq_issue" => BlockRqIssue = 45 {
        dev: uint64 = 1 via device, sector: uint64 = 2, nr_sector: uint32 = 3, bytes: uint32 = 4,
        rwbs: string = 5, comm: string = 6, cmd: string = 7,
    }
    "block" "block_rq_insert" => BlockRqInsert = 126 {
        dev: uint64 = 1 via device, sector: uint64 = 2, nr_sector: uint32 = 3, bytes: uint32 = 4,
        rwbs: string = 5, comm: string = 6, cmd: string = 7,
    }
    "block" "block_rq_complete" => BlockRqComplete = 125 {
        dev: uint64 = 1 via device, sector: uint64 = 2, nr_sector: uint32 = 3, errors: int32 = 4,
        rwbs: string = 5, cmd: string = 6, error: int32 = 7,
    }
    "block" "block_rq_requeue" => BlockRqRequeue = 129 {
        dev: uint64 = 1 via device, sector: uint64 = 2, nr_sector: uint32 = 3, errors: int32 = 4,
        rwbs: string = 5, cmd: string = 6,
    }
    "block" "block_io_start" => BlockIoStart = 546 {
        dev: uint64 = 1 via device, sector: uint64 = 2, nr_sector: uint32 = 3, bytes: uint32 = 4,
        ioprio: uint32 = 5, rwbs: string = 6, comm: string = 7, cmd: string = 8,
    }
    "block" "block_io_done" => BlockIoDone = 547 {
        dev: uint64 = 1 via device, sector: uint64 = 2, nr_sector: uint32 = 3, bytes: uint32 = 4,
        ioprio: uint32 = 5, rwbs: string = 6, comm: string = 7, cmd: string = 8,
    }
    "raw_syscalls" "sys_exit" => SysExit = 330 { id: int64 = 1, ret: int64 = 2, }
    by hand
    "raw_syscalls" "sys_enter" => SysEnter::read;
    "ftrace" "print" => Print::read;
    "ftrace" "bputs" => Print::read_constant;
    "ftrace" "funcgraph_entry" => FuncgraphEntry::read;
    // With the option `funcgraph-retaddr`.
    "ftrace" "fgraph_retaddr_entry" => FuncgraphEntry::read;
    "ftrace" "funcgraph_exit" => FuncgraphExit::read;
    as
    SysEnter = 329;
    Print = 3;
    FuncgraphEntry = 437;
    FuncgraphExit = 438;
    Generic = 327;
}

/// From the kernel's own form of a device number (20 bits of minor number) to that of `stat`, which is what Perfetto has.
fn device(number: u64) -> u64 {
    let (major, minor) = (number >> 20 & 0xfff, number & 0xf_ffff);
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SysEnter {
    #[prost(int64, optional, tag = "1")]
    pub id: Option<i64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub args: Vec<u64>,
}

impl SysEnter {
    fn read(fields: &mut Fields<'_, '_>) -> Kind {
        let args = fields.value("args").map(|value| value.elements().collect());
        Kind::SysEnter(SysEnter { id: fields.get("id"), args: args.unwrap_or_default() })
    }
}

/// `trace_printk` and what programs write to `trace_marker`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Print {
    #[prost(uint64, optional, tag = "1")]
    pub ip: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub buf: Option<String>,
}

impl Print {
    fn read(fields: &mut Fields<'_, '_>) -> Kind {
        Kind::Print(Print { ip: fields.get("ip"), buf: fields.get("buf") })
    }

    /// Of a text that lies in the kernel and not in the record.
    fn read_constant(fields: &mut Fields<'_, '_>) -> Kind {
        Kind::Print(Print { ip: fields.get("ip"), buf: fields.constant("str") })
    }
}

/// A call begins.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FuncgraphEntry {
    #[prost(int32, optional, tag = "1")]
    pub depth: Option<i32>,
    /// Id of an interned kernel symbol.
    #[prost(uint64, optional, tag = "2")]
    pub func: Option<u64>,
}

impl FuncgraphEntry {
    fn read(fields: &mut Fields<'_, '_>) -> Kind {
        Kind::FuncgraphEntry(FuncgraphEntry { depth: fields.get("depth"), func: fields.symbol("func") })
    }
}

/// A call ends.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FuncgraphExit {
    #[prost(uint64, optional, tag = "1")]
    pub calltime: Option<u64>,
    #[prost(int32, optional, tag = "2")]
    pub depth: Option<i32>,
    /// Id of an interned kernel symbol.
    #[prost(uint64, optional, tag = "3")]
    pub func: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub overrun: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub rettime: Option<u64>,
}

impl FuncgraphExit {
    fn read(fields: &mut Fields<'_, '_>) -> Kind {
        Kind::FuncgraphExit(FuncgraphExit {
            calltime: fields.get("calltime"),
            depth: fields.get("depth"),
            func: fields.symbol("func"),
            overrun: fields.get("overrun"),
            rettime: fields.get("rettime"),
        })
    }
}

/// Any event, with its fields by name.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Generic {
    #[prost(string, optional, tag = "1")]
    pub event_name: Option<String>,
    #[prost(message, repeated, tag = "2")]
    pub field: Vec<GenericField>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GenericField {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(oneof = "GenericValue", tags = "3, 4, 5")]
    pub value: Option<GenericValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum GenericValue {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(int64, tag = "4")]
    Signed(i64),
    #[prost(uint64, tag = "5")]
    Unsigned(u64),
}
