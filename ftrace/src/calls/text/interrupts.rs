//! Which calls an interrupt began.
//!
//! The column of flags says what ran in an interrupt. Texts without it have the names of the kernel's handlers: they are called by code
//! that is not traced, on what is interrupted.

use crate::calls::Calls;

/// Marks the calls that an interrupt began; `hard` says of each call whether it ran in a hard interrupt, as far as the text says it.
pub fn mark(calls: &mut Calls, hard: &[Option<bool>]) {
    let name = |at: usize| calls.calls[at].function.map_or("", |function| &calls.names[function]);
    let in_one: Vec<bool> = (0..hard.len()).map(|at| hard[at].unwrap_or_else(|| is_handler(name(at)))).collect();
    let begun = |at: usize| {
        let caller = calls.calls[at].parent.map(|parent| parent.0 as usize);
        let caller_in_one = caller.is_some_and(|caller| in_one[caller]);
        in_one[at] && !caller_in_one || AROUND.contains(&name(at)) && !caller.is_some_and(|caller| begins(name(caller)))
    };
    let begun: Vec<bool> = (0..hard.len()).map(begun).collect();
    for (call, begun) in calls.calls.iter_mut().zip(begun) {
        call.interrupt |= begun;
    }
}

/// A call that code of an interrupt makes on what it interrupts, by the name.
pub fn begins(name: &str) -> bool {
    AROUND.contains(&name) || is_handler(name)
}

/// What the kernel calls before and after a handler, from code that is not traced either.
const AROUND: [&str; 8] = [
    "irq_enter",
    "irq_enter_rcu",
    "irq_exit",
    "irq_exit_rcu",
    "irqentry_exit_cond_resched",
    "raw_irqentry_exit_cond_resched",
    "preempt_schedule_irq",
    "__hrtimer_rearm_deferred",
];

/// Handlers by name: of x86 (`__sysvec_apic_timer_interrupt`, `smp_apic_timer_interrupt` before 5.8, `__common_interrupt`), of arm
/// (`gic_handle_irq`) and of others.
fn is_handler(name: &str) -> bool {
    let name = name.split('.').next().unwrap_or(name);
    name.starts_with("__sysvec_")
        || name.starts_with("sysvec_")
        || (name.starts_with("smp_") || name.starts_with("do_")) && name.ends_with("_interrupt")
        || matches!(
            name,
            "do_IRQ"
                | "common_interrupt"
                | "__common_interrupt"
                | "gic_handle_irq"
                | "do_interrupt_handler"
                | "generic_handle_arch_irq"
                | "handle_riscv_irq"
        )
}
