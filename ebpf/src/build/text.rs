//! Text and bytes, which live in stack areas.

use super::expr::Exprs;
use crate::ir::{AluOp, Arg, CTX, Call, CmpOp, Cond, Helper, Op, Operand, Size, Slot, Space, Stmt, Var};
use crate::typed::{Expr, Kind, Trust, Ty};

impl Exprs<'_> {
    /// Non-zero when the text does not begin with the literal: the words' differences, or-ed.
    pub(super) fn text_differs(&mut self, text: &Expr, literal: &[u8]) -> Var {
        let slot = match self.w.known_text(text) {
            Some(slot) => slot,
            None => {
                let slot = self.w.slot(text.ty.bytes());
                self.text(text, slot, 0);
                self.w.remember_text(text, slot);
                slot
            }
        };
        let differs = self.w.imm(0);
        for (i, chunk) in literal.chunks(8).enumerate() {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mut v = self.w.load_slot(slot, i as u32 * 8, Size::B8);
            if chunk.len() < 8 {
                let mask = (1u64 << (8 * chunk.len())) - 1;
                v = self.w.alu(AluOp::And, v, Operand::Imm(mask as i64));
            }
            let d = self.w.alu(AluOp::Xor, v, Operand::Imm(i64::from_le_bytes(word)));
            self.w.assign(differs, Op::Alu(AluOp::Or, differs, Operand::Var(d)));
        }
        differs
    }

    /// Writes text or bytes into a stack area whose size is a multiple of 8; all `ty.bytes()` rounded up to 8 are written.
    pub(super) fn text(&mut self, e: &Expr, slot: Slot, at: u32) {
        self.mark(e);
        let bytes = e.ty.bytes();
        let words = bytes.next_multiple_of(8);
        if let Some(from) = self.w.known_text(e) {
            for w in (0..words).step_by(8) {
                let v = self.w.load_slot(from, w, Size::B8);
                self.w.store_slot(slot, at + w, Size::B8, Operand::Var(v));
            }
            return;
        }
        // Not even bpf_get_current_comm writes all of them on every kernel: some leave what is behind the name's NUL.
        for w in (0..words).step_by(8) {
            self.w.store_slot(slot, at + w, Size::B8, Operand::Imm(0));
        }
        match &e.kind {
            Kind::Comm => {
                let args = vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes))];
                self.effect(Helper::GetCurrentComm, args);
            }
            Kind::Str(text) => {
                for (i, chunk) in text.chunks(8).enumerate() {
                    let mut word = [0u8; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    let value = Operand::Imm(i64::from_le_bytes(word));
                    self.w.store_slot(slot, at + i as u32 * 8, Size::B8, value);
                }
            }
            Kind::Load { base, offset, .. } => self.text_load(e.ty, base, *offset, slot, at),
            Kind::StrAt(address) => {
                let helper = match address.ty {
                    Ty::Ptr { trust: Trust::User, .. } => Helper::ProbeReadUserStr,
                    _ => Helper::ProbeReadKernelStr,
                };
                let address = self.var(address);
                self.effect(helper, vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes)), Arg::Var(address)]);
            }
            Kind::Field { offset } => self.copy(CTX, *offset as i32, Space::Ctx, bytes, slot, at),
            Kind::DataLoc { offset } => {
                let locator = self.w.load(CTX, *offset as i32, Size::B4, Space::Ctx);
                let from = self.w.alu(AluOp::And, locator, Operand::Imm(0xffff));
                let address = self.w.alu(AluOp::Add, CTX, Operand::Var(from));
                let args = vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes)), Arg::Var(address)];
                self.effect(Helper::ProbeReadKernelStr, args);
            }
            Kind::State(n) => {
                if let Some((copy, offsets)) = self.inputs.state {
                    let from = offsets[*n as usize];
                    for w in (0..words).step_by(8) {
                        let v = self.w.load_slot(copy, from + w, Size::B8);
                        self.w.store_slot(slot, at + w, Size::B8, Operand::Var(v));
                    }
                }
            }
            Kind::Saved(n) => {
                if let Some((state, offsets)) = self.inputs.saved {
                    self.copy(state, offsets[*n as usize] as i32, Space::Value, bytes, slot, at);
                }
            }
            _ => {}
        }
    }

    pub(super) fn effect(&mut self, helper: Helper, args: Vec<Arg>) {
        self.w.push(Stmt::Call(Call { helper, args }));
    }

    pub(super) fn text_load(&mut self, ty: Ty, base: &Expr, offset: i32, slot: Slot, at: u32) {
        let bytes = ty.bytes();
        let chunks = || chunks(bytes, offset as u32, at);
        if let Ty::Bytes(_) = ty
            && chunks().all(|(done, size)| self.loadable(base, offset + done as i32, size, false))
            && let Some(ptr) = self.direct(base)
        {
            let body = self.block(|s| s.copy(ptr, offset, Space::Kernel, bytes, slot, at));
            let cond = Cond { op: CmpOp::Ne, a: ptr, b: Operand::Imm(0) };
            self.w.push(Stmt::If { cond, then: body, otherwise: vec![] });
            return;
        }
        // For text the helper stops at the NUL, so that stale bytes after it never reach a key.
        let helper = match (ty, base.ty) {
            (Ty::Str(_), Ty::Ptr { trust: Trust::User, .. }) => Helper::ProbeReadUserStr,
            (Ty::Str(_), _) => Helper::ProbeReadKernelStr,
            (_, Ty::Ptr { trust: Trust::User, .. }) => Helper::ProbeReadUser,
            _ => Helper::ProbeReadKernel,
        };
        let address = self.address(base, offset);
        self.effect(helper, vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes)), Arg::Var(address)]);
    }

    pub(super) fn copy(&mut self, from: Var, offset: i32, space: Space, bytes: u32, slot: Slot, at: u32) {
        for (done, size) in chunks(bytes, offset as u32, at) {
            let v = self.w.load(from, offset + done as i32, size, space);
            self.w.store_slot(slot, at + done, size, Operand::Var(v));
        }
    }
}

/// The aligned accesses that copy so many bytes: how many come before each, and its size.
fn chunks(bytes: u32, from: u32, to: u32) -> impl Iterator<Item = (u32, Size)> {
    let fits = |at: u32, size: Size| at.is_multiple_of(size.bytes());
    let size = move |done: u32| {
        [Size::B8, Size::B4, Size::B2]
            .into_iter()
            .find(|s| s.bytes() <= bytes - done && fits(from.wrapping_add(done), *s) && fits(to + done, *s))
            .unwrap_or(Size::B1)
    };
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < bytes).then(|| {
            let next = (done, size(done));
            done += next.1.bytes();
            next
        })
    })
}
