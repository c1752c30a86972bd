//! `socket_cookie(sk)`.

use super::expr::{Env, Value};
use super::report::Checked;
use crate::ast;
use crate::kernel_target::btf::Kind as BtfKind;
use crate::typed::{Expr, Ty};

/// Where the kernel keeps it. `bpf_get_socket_cookie` would make one where there is none yet, but programs of most hooks may not call
/// it.
const OF_SOCKET: [&str; 3] = ["__sk_common", "skc_cookie", "counter"];
const OF_COMMON: [&str; 2] = ["skc_cookie", "counter"];

impl Env<'_> {
    /// The number that the kernel gives a socket once somebody asks for it.
    pub(super) fn socket_cookie(&mut self, ast: &ast::Expr) -> Checked<Expr> {
        let value = self.value(ast)?;
        let expr = self.typed(value)?;
        let known = |name: &str| self.target.btf.as_ref().and_then(|btf| btf.find(name, BtfKind::Struct));
        let points_to = |name: &str| matches!(expr.ty, Ty::Ptr { to, .. } if known(name) == Some(to));
        if points_to("sock") {
            self.walk(Value::Typed(expr), &OF_SOCKET, ast.span)
        } else if points_to("sock_common") {
            self.walk(Value::Typed(expr), &OF_COMMON, ast.span)
        } else {
            let message = format!("`{}` is {} and no socket", self.quote(ast.span), self.describe(expr.ty));
            let hint = "give a `struct sock *`, as `args.sk` and `fd_sock(fd)` are, or `cast(struct sock, x)`";
            Err(self.fail_hint(ast.span, message, hint))
        }
    }
}
