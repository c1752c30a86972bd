//! Moves that have to happen all at once, as a sequence.

use crate::isa::Reg;

/// An order of `(to, from)` copies in which nothing is overwritten before it is read. Cycles are broken through `scratch`,
/// which is not among the destinations; what it holds may be a source.
pub fn in_sequence(copies: &[(Reg, Reg)], scratch: Reg) -> Vec<(Reg, Reg)> {
    let mut waiting: Vec<(Reg, Reg)> = copies.iter().copied().filter(|(to, from)| to != from).collect();
    let mut sequence = Vec::new();
    while !waiting.is_empty() {
        let ready = waiting.iter().position(|(to, _)| waiting.iter().all(|(_, from)| from != to));
        match ready {
            Some(at) => sequence.push(waiting.remove(at)),
            None => {
                // Only cycles are left, so `scratch` is read by none: park one value there.
                let parked = waiting[0].1;
                sequence.push((scratch, parked));
                for (_, from) in waiting.iter_mut().filter(|(_, from)| *from == parked) {
                    *from = scratch;
                }
            }
        }
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reg::*;

    /// Registers after the sequence, each starting with its own number.
    fn run(copies: &[(Reg, Reg)]) -> [u8; 11] {
        let mut values: [u8; 11] = std::array::from_fn(|n| n as u8);
        for (to, from) in in_sequence(copies, R0) {
            values[to as usize] = values[from as usize];
        }
        values
    }

    #[test]
    fn every_permutation_and_fan_out_of_five_arguments_arrives() {
        let sources = [R0, R1, R2, R3, R4, R5, R6];
        for code in 0..7usize.pow(5) {
            let copies: Vec<(Reg, Reg)> =
                (0..5).map(|i| (Reg::ARGS[i], sources[code / 7usize.pow(i as u32) % 7])).collect();
            let after = run(&copies);
            for (to, from) in copies {
                assert_eq!(after[to as usize], from as u8, "{code}");
            }
        }
    }

    #[test]
    fn nothing_is_moved_in_vain() {
        assert_eq!(in_sequence(&[(R1, R1), (R2, R6)], R0), [(R2, R6)]);
        assert_eq!(in_sequence(&[(R1, R2), (R2, R1)], R0).len(), 3);
    }
}
