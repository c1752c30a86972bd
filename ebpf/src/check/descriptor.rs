//! `fd_file(fd)` and `fd_sock(fd)`.

use super::expr::{Env, Value};
use super::report::Checked;
use super::scope::Role;
use crate::ast;
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::typed::{Expr, Kind, Trust, Ty};

/// Members on the way from the current task to the socket of a descriptor. `build` walks them, and would find nothing
/// where one is missing.
const BEHIND_DESCRIPTOR: [(&str, &str); 8] = [
    ("task_struct", "files"),
    ("files_struct", "fdt"),
    ("fdtable", "max_fds"),
    ("fdtable", "fd"),
    ("file", "f_inode"),
    ("file", "private_data"),
    ("inode", "i_mode"),
    ("socket", "sk"),
];

impl Env<'_> {
    /// The address of what is behind a descriptor of the current task: a struct of this name.
    pub(super) fn behind_descriptor(
        &mut self,
        arg: &ast::Expr,
        name: &str,
        kind: fn(Box<Expr>) -> Kind,
        span: Span,
    ) -> Checked<Value> {
        let value = self.value(arg)?;
        if self.scope.role == Role::Poll {
            return Err(self.fail(span, "a poll has no current task and so no descriptors"));
        }
        if self.scope.role == Role::Object {
            return Err(self.fail(span, "descriptors would be those of the agent, which runs this program"));
        }
        let descriptor = match value {
            Value::Literal(l) => self.adapt(l, Ty::S32)?,
            value => self.integer(value)?,
        };
        if let Ty::Int { bits: 64, .. } = descriptor.ty {
            let quote = self.quote(arg.span);
            let message = format!("a descriptor has 32 bits, `{quote}` is {}", self.describe(descriptor.ty));
            return Err(self.fail_hint(arg.span, message, &format!("convert it: `u32({quote})`")));
        }
        let btf = self.btf(span)?;
        let missing = BEHIND_DESCRIPTOR.iter().find(|(of, member)| {
            let id = btf.find(of, BtfKind::Struct);
            id.is_none_or(|id| btf.member(id, member).is_none())
        });
        if let Some((of, member)) = missing {
            let message = format!("what is behind a descriptor cannot be found: this kernel has no `{of}.{member}`");
            let diagnostic = Diagnostic::target(self.place(span), message);
            return Err(self.report.add(diagnostic.hint("this kernel is newer than kstrobe: please report it")));
        }
        let to = btf.find(name, BtfKind::Struct).unwrap_or(0);
        let kind = kind(Box::new(descriptor));
        // Found by steps of which some are helper calls: to the verifier it is only an address.
        let ty = Ty::Ptr { to, trust: Trust::Probe };
        Ok(Value::Typed(Expr { kind, ty, duration: false, place: self.place(span) }))
    }
}
