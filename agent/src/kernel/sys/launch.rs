//! A command that has its process number before it runs, so that what it does can be recorded from its first instruction.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

/// A process that waits to become a command. Dropped before it is let go, it ends without having been it.
#[derive(Debug)]
pub struct Held {
    pid: i32,
    gate: OwnedFd,
    spawned: JoinHandle<io::Result<Child>>,
}

impl Held {
    /// Starts the process.
    pub fn start(mut command: Command) -> io::Result<Held> {
        let (gate_out, gate) = pipe()?;
        let (pid_out, pid_in) = pipe()?;
        let (mut pid_in, mut gate_out, other_end) = (File::from(pid_in), File::from(gate_out), gate.as_raw_fd());
        let hold = move || {
            // The agent may block signals in its threads; a command starts as from a shell.
            nix::sys::signal::SigSet::empty().thread_set_mask()?;
            // With its own copy of the other end it would wait for ever when the agent dies.
            // SAFETY: the new process has a copy of each of our descriptors, and nothing in it uses this one.
            unsafe { libc::close(other_end) };
            pid_in.write_all(&std::process::id().to_ne_bytes())?;
            gate_out.read_exact(&mut [0])
        };
        // SAFETY: between fork and exec only system calls are made: the closure neither allocates nor takes a lock.
        unsafe { command.pre_exec(hold) };
        // `spawn` returns when the command runs.
        let spawned = std::thread::Builder::new().name("launch".into()).spawn(move || command.spawn())?;
        let mut pid = [0; 4];
        if let Err(error) = File::from(pid_out).read_exact(&mut pid) {
            drop(gate);
            return Err(match spawned.join() {
                Ok(Err(reason)) => reason,
                _ => error,
            });
        }
        Ok(Held { pid: i32::from_ne_bytes(pid), gate, spawned })
    }

    /// Its process number: the command's.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets it become the command. The error is that of exec: there is no such program, or it may not be run.
    pub fn release(self) -> io::Result<Child> {
        File::from(self.gate).write_all(&[1])?;
        self.spawned.join().map_err(|_| io::Error::other("the launching thread panicked"))?
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?)
}
