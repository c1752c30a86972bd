//! When two nodes are the same: where they are written, and whether they count nanoseconds, matters to the check alone.

use super::Expr;
use std::hash::{Hash, Hasher};

impl PartialEq for Expr {
    fn eq(&self, other: &Expr) -> bool {
        self.kind == other.kind && self.ty == other.ty
    }
}

impl Eq for Expr {}

impl Hash for Expr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.ty.hash(state);
    }
}
