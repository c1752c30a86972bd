//! `fd_file(fd)` and `fd_sock(fd)` as ordinary expressions over the kernel's own structures.

use super::Kernel;
use crate::diag::Place;
use crate::kernel_target::{Btf, btf};
use crate::typed::{Arith, Cmp, Expr, Kind, Trust, Ty};

/// No process has more open files: `sysctl fs.nr_open` defaults to 2^20 and a table is bounded by it.
const MAX_FDS: u32 = 1 << 20;
/// `S_IFMT` and `S_IFSOCK` of <linux/stat.h>.
const FILE_TYPE: u64 = 0o170_000;
const SOCKET: u64 = 0o140_000;

/// The steps behind a descriptor; `None` when the kernel's types do not have the members walked through.
pub(super) fn expand(e: &Expr, kernel: &Kernel<'_>) -> Option<Expr> {
    let trust = |direct| if direct { Trust::Btf } else { Trust::Probe };
    let walk = Walk { btf: kernel.btf?, current: trust(kernel.task_btf), trusted: trust(kernel.rdonly_cast) };
    match &e.kind {
        Kind::FdFile(fd) => walk.file(fd),
        Kind::FdSock(fd) => walk.sock(fd, e.ty),
        _ => None,
    }
}

struct Walk<'a> {
    btf: &'a Btf,
    /// How the current task and what its pointers lead to may be read.
    current: Trust,
    /// How pointers read from a BTF-typed object may be read in turn.
    trusted: Trust,
}

impl Walk<'_> {
    fn pointer(&self, name: &str, trust: Trust) -> Option<Ty> {
        Some(Ty::Ptr { to: self.btf.find(name, btf::Kind::Struct)?, trust })
    }

    fn member(&self, base: &Expr, structure: &str, member: &str, ty: Ty) -> Option<Expr> {
        let id = self.btf.find(structure, btf::Kind::Struct)?;
        let offset = self.btf.member(id, member)?.bit_offset / 8;
        Some(node(Kind::Load { base: Box::new(base.clone()), offset: offset as i32, bitfield: None }, ty))
    }

    /// `current->files->fdt->fd[fd]`, null when `fd` is not below `max_fds`.
    fn file(&self, fd: &Expr) -> Option<Expr> {
        let task = node(Kind::Task, self.pointer("task_struct", self.current)?);
        let files = self.member(&task, "task_struct", "files", self.pointer("files_struct", self.current)?)?;
        let table = self.member(&files, "files_struct", "fdt", self.pointer("fdtable", self.current)?)?;
        let open = self.member(&table, "fdtable", "max_fds", Ty::U32)?;
        // A pointer to pointers is only an address to the verifier.
        let array = self.member(&table, "fdtable", "fd", Ty::Ptr { to: 0, trust: Trust::Probe })?;
        // A negative descriptor becomes huge here and fails the test.
        let index = convert(fd.clone(), Ty::U64);
        let below = node(Kind::Cmp(Cmp::Lt, Box::new(index.clone()), Box::new(convert(open, Ty::U64))), Ty::Bool);
        let element = node(
            Kind::Element { base: Box::new(array), index: Box::new(index), scale: 8, count: MAX_FDS },
            Ty::Ptr { to: 0, trust: Trust::Probe },
        );
        let file = self.pointer("file", Trust::Probe)?;
        let found = node(Kind::Load { base: Box::new(element), offset: 0, bitfield: None }, file);
        Some(node(Kind::Cond(Box::new(below), Box::new(found), Box::new(node(Kind::Const(0), file))), file))
    }

    /// `((struct socket *)file->private_data)->sk`, null unless the file's inode is a socket.
    fn sock(&self, fd: &Expr, ty: Ty) -> Option<Expr> {
        let file = self.file(fd)?;
        let inode = self.member(&file, "file", "f_inode", self.pointer("inode", self.trusted)?)?;
        let mode = self.member(&inode, "inode", "i_mode", Ty::Int { bits: 16, signed: false })?;
        let kind = node(
            Kind::Arith(Arith::And, Box::new(convert(mode, Ty::U64)), Box::new(node(Kind::Const(FILE_TYPE), Ty::U64))),
            Ty::U64,
        );
        let is_socket =
            node(Kind::Cmp(Cmp::Eq, Box::new(kind), Box::new(node(Kind::Const(SOCKET), Ty::U64))), Ty::Bool);
        let socket = self.member(&file, "file", "private_data", self.pointer("socket", Trust::Probe)?)?;
        let sock = self.member(&socket, "socket", "sk", ty)?;
        Some(node(Kind::Cond(Box::new(is_socket), Box::new(sock), Box::new(node(Kind::Const(0), ty))), ty))
    }
}

fn node(kind: Kind, ty: Ty) -> Expr {
    Expr { kind, ty, duration: false, place: Place::default() }
}

fn convert(e: Expr, to: Ty) -> Expr {
    if e.ty == to { e } else { node(Kind::Convert(Box::new(e)), to) }
}
