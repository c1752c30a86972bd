//! IR to instructions: `linearise` -> `live` + `regs` (+ `spill`, until all fits) -> `emit` -> `peephole` -> `assemble`.
//!
//! The result is what the kernel's verifier wants to see: `r10` is never written, pointers are only copied, spilled
//! and moved by additions, all jumps go forward, and there is one exit, with `r0 = 0`.

mod arith;
mod emit;
mod known;
mod linearise;
mod live;
mod moves;
mod peephole;
mod regs;
mod spill;
mod vcode;

use crate::asm::{Code, Target, assemble};
use crate::diag::{Diagnostic, Fault};
use crate::ir::{Func, MAX_STACK_BYTES, Module};
use regs::Allocation;

/// What lowering has to know of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// BTF id of `bpf_rdonly_cast` in the kernel's own BTF, where it has it (6.2).
    pub rdonly_cast_btf_id: Option<u32>,
}

/// Lowers one program of `module`.
pub fn lower(func: &Func, module: &Module, options: &Options) -> Result<Code, Diagnostic> {
    let mut vcode = linearise::linearise(func)?;
    check_stack(func, vcode.slot_bytes)?;
    let mut facts = live::analyse(&mut vcode)?;
    let mut frame = spill::Frame::new(&vcode, &facts);
    let first_temp = vcode.vregs;
    // Each round sends at least one register to memory for good, so this ends.
    let colours = loop {
        match regs::allocate(&facts, first_temp)? {
            Allocation::Done(colours) => break colours,
            Allocation::Spill(spilled) => spill::spill(&mut vcode, &spilled, &mut frame),
        }
        facts = live::analyse(&mut vcode)?;
    };
    check_stack(func, frame.bytes())?;
    let items = peephole::tidy(emit::emit(&vcode.lines, &colours, options)?);
    let code = assemble(&items, frame.bytes())?;
    check_references(func, module, &code)?;
    Ok(code)
}

fn check_stack(func: &Func, bytes: u32) -> Result<(), Diagnostic> {
    if bytes <= MAX_STACK_BYTES {
        return Ok(());
    }
    Err(Diagnostic {
        fault: Fault::Limit,
        at: None,
        message: format!("program {} needs {bytes} bytes of stack, it may have {MAX_STACK_BYTES}", func.name),
        hint: Some("use fewer or shorter strings in labels, keys and saved values".into()),
        absent: false,
    })
}

fn check_references(func: &Func, module: &Module, code: &Code) -> Result<(), Diagnostic> {
    for reloc in &code.relocs {
        let known = match reloc.target {
            Target::Map(map) => (map.0 as usize) < module.layout.maps.len(),
            Target::Rodata(at) => (at as usize) < module.rodata.len(),
        };
        if !known {
            return Err(Diagnostic::bug(format!("{} refers to {:?}, which does not exist", func.name, reloc.target)));
        }
    }
    Ok(())
}
