//! What tracefs `format` files mean to programs.

use kstrobe_ebpf::kernel_target::{Field, FieldType, SyscallArg, TracepointFormat};
use kstrobe_ftrace::format::{self, fields};

/// The fields of a tracepoint, in order. The common fields at its start are left out, but offsets count from the record's
/// start, as in the program's context. Fields of a form that [`FieldType`] does not have are left out as well.
pub fn tracepoint(format: &str) -> TracepointFormat {
    let known = |field: format::Field| {
        Some(Field { ty: field_type(&field)?, offset: u32::try_from(field.offset).ok()?, name: field.name })
    };
    let own = fields(format).into_iter().filter(|field| !field.name.starts_with("common_"));
    TracepointFormat { fields: own.filter_map(known).collect() }
}

/// The arguments of a system call, from the format of its `sys_enter_` event.
pub fn syscall_args(format: &str) -> Vec<SyscallArg> {
    // The kernel's own fields (`__syscall_nr`, and `__filename_val` with the string on new kernels) begin with `__`.
    let own =
        fields(format).into_iter().filter(|field| !field.name.starts_with("common_") && !field.name.starts_with("__"));
    own.map(|field| SyscallArg { name: field.name, ctype: field.c_type }).collect()
}

fn field_type(field: &format::Field) -> Option<FieldType> {
    let (c_type, size) = (field.c_type.as_str(), field.size);
    let is_char = |c_type: &str| matches!(c_type, "char" | "const char");
    if let Some(target) = c_type.strip_prefix("__data_loc ") {
        // Only strings: an offset and length are of no use for `u64[]` or a CPU mask.
        return (size == 4 && is_char(target.trim_end_matches("[]").trim_end())).then_some(FieldType::DataLoc);
    }
    // `__rel_loc` counts from the field's own end; arrays without a length have no size.
    if c_type.starts_with("__rel_loc ") || size == 0 {
        return None;
    }
    let bytes = u16::try_from(size).ok();
    if field.array.is_some() {
        return bytes.map(|bytes| if is_char(c_type) { FieldType::Str(bytes) } else { FieldType::Bytes(bytes) });
    }
    if c_type.ends_with('*') {
        return (size == 8).then_some(FieldType::Pointer);
    }
    let aggregate = c_type.starts_with("struct ") || c_type.starts_with("union ");
    match size {
        1 | 2 | 4 | 8 if !aggregate => Some(FieldType::Int { size: size as u8, signed: field.signed }),
        _ => bytes.map(FieldType::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = "\
name: made_up
ID: 372
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

";

    fn fields(body: &str) -> Vec<(String, u32, FieldType)> {
        let text = format!("{HEAD}{body}\nprint fmt: \"field:int x;\toffset:1;\", REC->x\n");
        tracepoint(&text).fields.into_iter().map(|f| (f.name, f.offset, f.ty)).collect()
    }

    #[test]
    fn sched_switch() {
        let int = |size, signed| FieldType::Int { size, signed };
        let got = fields(
            "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
	field:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
	field:long prev_state;\toffset:32;\tsize:8;\tsigned:1;",
        );
        let want =
            [("prev_comm", 8, FieldType::Str(16)), ("prev_pid", 24, int(4, true)), ("prev_state", 32, int(8, true))];
        assert_eq!(got, want.map(|(n, o, t)| (n.to_string(), o, t)));
    }

    #[test]
    fn every_form_seen_on_real_kernels() {
        let int = |size, signed| Some(FieldType::Int { size, signed });
        let cases = [
            ("__data_loc char[] name", 4, 0, Some(FieldType::DataLoc)),
            ("__data_loc u64[] values", 4, 0, None),
            ("__data_loc cpumask_t mask", 4, 0, None),
            ("__rel_loc char[] text", 4, 0, None),
            ("const void * skaddr", 8, 0, Some(FieldType::Pointer)),
            ("const void* frame", 8, 0, Some(FieldType::Pointer)),
            ("void __seg_gs * place", 8, 0, Some(FieldType::Pointer)),
            ("struct napi_struct * napi", 8, 0, Some(FieldType::Pointer)),
            ("__u8 saddr[28]", 28, 0, Some(FieldType::Bytes(28))),
            ("unsigned long args[6]", 48, 0, Some(FieldType::Bytes(48))),
            ("char name[]", 0, 0, None),
            ("struct sockaddr_in addr", 8, 0, Some(FieldType::Bytes(8))),
            ("enum skb_drop_reason reason", 4, 0, int(4, false)),
            ("bool early", 1, 0, int(1, false)),
            ("char c", 1, 1, int(1, true)),
            ("unsigned long long huge", 8, 0, int(8, false)),
            ("short s", 2, 1, int(2, true)),
        ];
        for (declaration, size, signed, want) in cases {
            let got = fields(&format!("\tfield:{declaration};\toffset:8;\tsize:{size};\tsigned:{signed};"));
            assert_eq!(got.first().map(|f| f.2), want, "{declaration}");
            if want.is_some() {
                assert!(declaration.contains(&got[0].0) && !got[0].0.is_empty(), "{declaration}: {}", got[0].0);
            }
        }
    }

    #[test]
    fn system_call_arguments_without_the_kernels_own_fields() {
        let text = format!(
            "{HEAD}\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
	field:int fd;\toffset:16;\tsize:8;\tsigned:0;
	field:unsigned int flags;\toffset:24;\tsize:8;\tsigned:0;
	field:struct sockaddr * addr;\toffset:32;\tsize:8;\tsigned:0;
	field:const char * filename;\toffset:40;\tsize:8;\tsigned:0;
	field:__data_loc char[] __filename_val;\toffset:48;\tsize:4;\tsigned:0;\n"
        );
        let got: Vec<(String, String)> = syscall_args(&text).into_iter().map(|a| (a.name, a.ctype)).collect();
        let want =
            [("fd", "int"), ("flags", "unsigned int"), ("addr", "struct sockaddr *"), ("filename", "const char *")];
        assert_eq!(got, want.map(|(n, t)| (n.to_string(), t.to_string())));
    }

    proptest! {
        #[test]
        fn never_panics(text in "(field:|[ \t;:a-z\\[\\]*0-9é\n]){0,80}") {
            tracepoint(&text);
            syscall_args(&text);
        }
    }
}
