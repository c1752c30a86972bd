//! What is known of variables that are set once: that they are a constant, or a copy of another.
//!
//! Where every use comes after the one definition (the IR verifier's rule), such a variable can be replaced everywhere.

use crate::ir::{Block, CTX, Func, Op, Operand, Stmt, Var};

/// Replacements for variables.
pub struct Known {
    replacement: Vec<Option<Operand>>,
}

impl Known {
    /// Walks the function.
    pub fn of(func: &Func) -> Known {
        let mut sets = vec![0u32; func.vars as usize];
        if let Some(ctx) = sets.get_mut(CTX.0 as usize) {
            *ctx = 1;
        }
        count_sets(&func.body, &mut sets);
        let mut known = Known { replacement: vec![None; func.vars as usize] };
        known.collect(&func.body, &sets);
        known
    }

    /// What `var` is, followed to its end.
    pub fn resolve(&self, var: Var) -> Operand {
        // Copies were resolved as they were collected, in program order: one step is the whole way.
        self.replacement.get(var.0 as usize).copied().flatten().unwrap_or(Operand::Var(var))
    }

    /// Same for an operand.
    pub fn operand(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Var(var) => self.resolve(var),
            Operand::Imm(_) => operand,
        }
    }

    fn collect(&mut self, block: &Block, sets: &[u32]) {
        let once = |var: Var| sets.get(var.0 as usize) == Some(&1);
        for stmt in block {
            match stmt {
                Stmt::Set(var, Op::Copy(operand)) if once(*var) => {
                    let value = self.operand(*operand);
                    let stays = match value {
                        Operand::Imm(_) => true,
                        Operand::Var(source) => once(source) && source != *var,
                    };
                    if let (true, Some(entry)) = (stays, self.replacement.get_mut(var.0 as usize)) {
                        *entry = Some(value);
                    }
                }
                Stmt::If { then, otherwise, .. } => {
                    self.collect(then, sets);
                    self.collect(otherwise, sets);
                }
                _ => {}
            }
        }
    }
}

fn count_sets(block: &Block, sets: &mut [u32]) {
    for stmt in block {
        match stmt {
            Stmt::Set(var, _) => {
                if let Some(count) = sets.get_mut(var.0 as usize) {
                    *count += 1;
                }
            }
            Stmt::If { then, otherwise, .. } => {
                count_sets(then, sets);
                count_sets(otherwise, sets);
            }
            _ => {}
        }
    }
}
