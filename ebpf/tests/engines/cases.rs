//! The corpus, in every way that memory is read.

use crate::corpus::{Case, Placed, cases, judge};
use crate::{agreed, compiled};
use kstrobe_ebpf::ir::interp::Memory;

/// Regions in this process: plain loads of rbpf read them where they are.
fn place(case: &Case) -> (Vec<Vec<u64>>, Placed) {
    let mut placed = Placed::default();
    let mut areas = Vec::new();
    for (name, _) in case.regions() {
        let area = vec![0u64; crate::corpus::REGION_BYTES / 8];
        placed.put(name, area.as_ptr() as u64);
        areas.push(area);
    }
    for ((name, _), area) in case.regions().zip(&mut areas) {
        let bytes = case.bytes(name, &placed);
        for (word, chunk) in area.iter_mut().zip(bytes.chunks(8)) {
            *word = u64::from_le_bytes(chunk.try_into().unwrap());
        }
    }
    (areas, placed)
}

fn run(case: &Case, tp_btf: bool, rdonly_cast: bool) -> Result<(), String> {
    let mut compiled = compiled(&case.program, &case.target(tp_btf, rdonly_cast))?;
    compiled.selected.clone_from(&case.selected);
    let (areas, placed) = place(case);
    let (mut kernel, mut user) = (Memory::default(), Memory::default());
    for ((name, is_user), area) in case.regions().zip(&areas) {
        let memory = if is_user { &mut user } else { &mut kernel };
        memory.map(area.as_ptr() as u64, case.bytes(name, &placed));
    }
    for row in &case.rows {
        let ctx = case.context(row, &placed);
        let left = agreed(&compiled, &ctx, &kernel, &user).map_err(|e| format!("`{}`: {e}", row.line))?;
        judge(row, &compiled.module.layout, &left)?;
    }
    Ok(())
}

#[test]
fn every_case_gives_what_was_worked_out() {
    let cases = cases();
    let rows: usize = cases.iter().map(|case| case.rows.len()).sum();
    assert!(cases.len() > 200 && rows > 450, "{} cases with {rows} runs", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        for (tp_btf, rdonly_cast) in [(false, false), (true, false), (true, true)] {
            if case.raw_only && (tp_btf || rdonly_cast) {
                continue;
            }
            if let Err(error) = run(case, tp_btf, rdonly_cast) {
                wrong.push(format!("{} (tp_btf {tp_btf}, rdonly_cast {rdonly_cast}): {error}", case.place));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
