//! Members of structs by name: through anonymous parts, as bitfields, and by the kernel's own macros.

use crate::kernel_target::Btf;
use crate::kernel_target::btf::Type;
use crate::typed::Bitfield;

/// A member found by name.
pub(super) struct Found {
    pub(super) ty: u32,
    /// Bits from the start of the aggregate that was asked.
    pub(super) bit_offset: u32,
    pub(super) bit_size: u32,
    /// The innermost aggregate that holds it: first byte and size.
    holder: (u32, u32),
}

/// A member by name, anonymous structs and unions opened.
pub(super) fn find(btf: &Btf, aggregate: Type, name: &str, depth: u32) -> Option<Found> {
    for m in btf.members(aggregate) {
        if m.name == name {
            let holder = (0, aggregate.size_or_type);
            return Some(Found { ty: m.ty, bit_offset: m.bit_offset, bit_size: m.bit_size, holder });
        }
        if m.name.is_empty()
            && depth < 16
            && let Some(inner) = find(btf, btf.strip(m.ty), name, depth + 1)
        {
            return Some(Found {
                bit_offset: inner.bit_offset + m.bit_offset,
                holder: (inner.holder.0 + m.bit_offset / 8, inner.holder.1),
                ..inner
            });
        }
    }
    None
}

/// Names of `inet_request_sock` macros whose `skc_` member is called otherwise.
const IR_MACROS: [(&str, &str); 6] = [
    ("loc_addr", "rcv_saddr"),
    ("rmt_addr", "daddr"),
    ("rmt_port", "dport"),
    ("v6_loc_addr", "v6_rcv_saddr"),
    ("v6_rmt_addr", "v6_daddr"),
    ("iif", "bound_dev_if"),
];

/// The kernel reaches the head that all sockets share through macros, which BTF does not know: on a struct with a member
/// `__sk_common`, `sk_X` is `__sk_common.skc_X`; with `__req_common`, `sk_X` and `rsk_X` are `__req_common.skc_X`; with
/// `__tw_common`, `tw_X` is `__tw_common.skc_X`; and `ir_X` is the same behind `req.__req_common`, some under other names.
pub(super) fn field_macro(btf: &Btf, aggregate: u32, name: &str) -> Option<Vec<String>> {
    let has = |path: &[&str]| {
        path.iter().try_fold(aggregate, |at, name| btf.member(at, name).map(|m| btf.strip(m.ty).id)).is_some()
    };
    let tries: &[(&str, &[&str])] = &[
        ("sk_", &["__sk_common"]),
        ("sk_", &["__req_common"]),
        ("sk_", &[]),
        ("rsk_", &["__req_common"]),
        ("tw_", &["__tw_common"]),
        ("ir_", &["__req_common"]),
        ("ir_", &["req", "__req_common"]),
    ];
    tries.iter().find_map(|(prefix, path)| {
        let rest = name.strip_prefix(prefix)?;
        let renamed = IR_MACROS.iter().find(|(from, _)| *prefix == "ir_" && *from == rest).map_or(rest, |(_, to)| to);
        let last = format!("skc_{renamed}");
        let full: Vec<&str> = path.iter().copied().chain([last.as_str()]).collect();
        has(&full).then(|| full.iter().map(|s| s.to_string()).collect())
    })
}

/// Member names a person may have meant, macros included.
pub(super) fn member_candidates(btf: &Btf, aggregate: u32) -> Vec<String> {
    let mut names: Vec<String> = btf.member_names(aggregate).into_iter().map(str::to_string).collect();
    for (common, prefix) in [("__sk_common", "sk_"), ("__req_common", "sk_"), ("__tw_common", "tw_")] {
        if let Some(m) = btf.member(aggregate, common) {
            let inner = btf.member_names(m.ty);
            names.extend(inner.iter().filter_map(|n| n.strip_prefix("skc_")).map(|n| format!("{prefix}{n}")));
        }
    }
    names
}

/// The read that holds a bitfield: it begins at the field's first byte, or as little before it as the struct's end demands.
pub(super) fn bitfield_read(found: &Found) -> Option<(u32, Bitfield)> {
    let (start, end) = (found.bit_offset / 8, (found.bit_offset + found.bit_size).div_ceil(8));
    let (first, limit) = (found.holder.0, found.holder.0 + found.holder.1);
    [1u32, 2, 4, 8].into_iter().filter(|size| *size >= end - start).find_map(|size| {
        let at = start.min(limit.checked_sub(size)?);
        let shift = found.bit_offset - 8 * at;
        let fits = at >= first && shift + found.bit_size <= 8 * size;
        fits.then_some((at, Bitfield { size: size as u8, shift: shift as u8, width: found.bit_size as u8 }))
    })
}
