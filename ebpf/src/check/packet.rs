//! Headers of a packet: `ip_header(skb)` and its like.

use super::access::convert;
use super::expr::{Env, Value};
use super::report::Checked;
use crate::ast::{Expr, ExprKind, Ident};
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::typed::{Arith, Ty};

/// A structure at the beginning of a header, and which member of a `struct sk_buff` says how many bytes behind `head` that is.
#[derive(Clone, Copy)]
pub(super) struct Header {
    function: &'static str,
    structure: &'static str,
    offset: &'static str,
}

const HEADERS: [Header; 4] = [
    Header { function: "ip_header", structure: "iphdr", offset: "network_header" },
    Header { function: "ipv6_header", structure: "ipv6hdr", offset: "network_header" },
    Header { function: "tcp_header", structure: "tcphdr", offset: "transport_header" },
    Header { function: "udp_header", structure: "udphdr", offset: "transport_header" },
];

impl Header {
    pub(super) fn of(function: &str) -> Option<Header> {
        HEADERS.into_iter().find(|header| header.function == function)
    }
}

impl Env<'_> {
    /// The pointer to a header: `cast(struct iphdr, u64(skb.head) + u64(skb.network_header))`.
    pub(super) fn header(&mut self, header: Header, packet: &Expr, span: Span) -> Checked<Value> {
        // The packet is read twice: each header within would double the code.
        if has_header(packet) {
            let message = format!("`{}` reads a header, which is no packet", self.quote(packet.span));
            return Err(self.fail(packet.span, message));
        }
        let value = self.value(packet)?;
        let value = self.typed(value)?;
        let btf = self.btf(span)?;
        if !matches!(value.ty, Ty::Ptr { to, .. } if btf.find("sk_buff", BtfKind::Struct) == Some(to)) {
            let message = format!("`{}` is {} and no packet", self.quote(packet.span), self.describe(value.ty));
            let hint = "give a `struct sk_buff *`, as `args.skb` is, or `cast(struct sk_buff, x)`";
            return Err(self.fail_hint(packet.span, message, hint));
        }
        let Some(structure) = btf.find(header.structure, BtfKind::Struct) else {
            let message = format!("this kernel has no `struct {}`", header.structure);
            return Err(self.report.add(Diagnostic::target(self.place(span), message)));
        };
        let mut member = |name: &str| {
            let member = self.member(Value::Typed(value.clone()), &Ident { name: name.to_owned(), span }, span)?;
            self.typed(member).map(|expr| Value::Typed(convert(expr, Ty::U64)))
        };
        let (head, offset) = (member("head")?, member(header.offset)?);
        let sum = self.arith(Arith::Add, head, offset, span)?;
        self.cast_to(structure, sum, span, span)
    }
}

fn has_header(expr: &Expr) -> bool {
    let is_header = matches!(&expr.kind, ExprKind::Call(name, _) if Header::of(&name.name).is_some());
    is_header || expr.kind.children().into_iter().any(has_header)
}
