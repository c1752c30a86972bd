//! Memory of the node: `/proc/meminfo`, `/proc/vmstat` and `/proc/slabinfo`.

use super::{Rows, Source, io_error, number, read_file, text};
use procfs::{Current, Meminfo};
use std::io;

pub const MEMORY: Source = Source {
    name: "memory",
    summary: "bytes by use, of /proc/meminfo, which `free` shows",
    columns: &[text("name", 32), number("bytes")],
    open: || Box::new(read_memory),
};

pub const VMSTAT: Source = Source {
    name: "vmstat",
    summary: "counters and sizes of /proc/vmstat, by the kernel's names; sizes are in pages",
    columns: &[text("name", 48), number("value")],
    open: || Box::new(read_vmstat),
};

pub const SLABS: Source = Source {
    name: "slabs",
    summary: "caches of kernel objects, of /proc/slabinfo, which `slabtop` shows",
    columns: &[text("cache", 32), number("active"), number("objects"), number("object_bytes"), number("bytes")],
    open: || Box::new(read_slabs),
};

fn read_memory(rows: &mut Rows) -> io::Result<()> {
    for (name, bytes) in uses(&Meminfo::current().map_err(io_error)?) {
        // What this kernel does not know is absent.
        if let Some(bytes) = bytes {
            rows.push(&[name.into(), bytes.into()]);
        }
    }
    Ok(())
}

fn uses(memory: &Meminfo) -> [(&'static str, Option<u64>); 26] {
    [
        ("total", Some(memory.mem_total)),
        ("free", Some(memory.mem_free)),
        ("available", memory.mem_available),
        ("buffers", Some(memory.buffers)),
        ("cached", Some(memory.cached)),
        ("swap_cached", Some(memory.swap_cached)),
        ("swap_total", Some(memory.swap_total)),
        ("swap_free", Some(memory.swap_free)),
        ("active", Some(memory.active)),
        ("inactive", Some(memory.inactive)),
        ("active_anon", memory.active_anon),
        ("inactive_anon", memory.inactive_anon),
        ("active_file", memory.active_file),
        ("inactive_file", memory.inactive_file),
        ("unevictable", memory.unevictable),
        ("locked", memory.mlocked),
        ("dirty", Some(memory.dirty)),
        ("writeback", Some(memory.writeback)),
        ("anonymous", memory.anon_pages),
        ("mapped", Some(memory.mapped)),
        ("shared", memory.shmem),
        ("slab_reclaimable", memory.s_reclaimable),
        ("slab_unreclaimable", memory.s_unreclaim),
        ("kernel_stacks", memory.kernel_stack),
        ("page_tables", memory.page_tables),
        ("committed", Some(memory.committed_as)),
    ]
}

fn read_vmstat(rows: &mut Rows) -> io::Result<()> {
    for (name, value) in procfs::vmstat().map_err(io_error)? {
        // A size that the kernel is just moving may be below 0 for a moment.
        rows.push(&[name.as_str().into(), u64::try_from(value).unwrap_or(0).into()]);
    }
    Ok(())
}

fn read_slabs(rows: &mut Rows) -> io::Result<()> {
    let page_bytes = procfs::page_size();
    for slab in read_file("/proc/slabinfo")?.lines().filter_map(Slab::parse) {
        let bytes = slab.slabs * slab.pages_per_slab * page_bytes;
        rows.push(&[
            slab.cache.into(),
            slab.active.into(),
            slab.objects.into(),
            slab.object_bytes.into(),
            bytes.into(),
        ]);
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Slab<'a> {
    cache: &'a str,
    active: u64,
    objects: u64,
    object_bytes: u64,
    slabs: u64,
    pages_per_slab: u64,
}

impl Slab<'_> {
    /// `name active_objs num_objs objsize objperslab pagesperslab : tunables limit batchcount sharedfactor : slabdata active_slabs
    /// num_slabs sharedavail`; none of the two lines above, which have words in place of numbers.
    fn parse(line: &str) -> Option<Slab<'_>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse().ok();
        Some(Slab {
            cache: words.first()?,
            active: number(1)?,
            objects: number(2)?,
            object_bytes: number(3)?,
            pages_per_slab: number(5)?,
            slabs: number(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_caches_are_told_from_headings() {
        let line = "dentry  21 42  192   21    2 : tunables    0    0    0 : slabdata      1      2      0";
        let slab = Slab { cache: "dentry", active: 21, objects: 42, object_bytes: 192, slabs: 2, pages_per_slab: 2 };
        assert_eq!(Slab::parse(line), Some(slab));
        assert_eq!(Slab::parse("slabinfo - version: 2.1"), None);
        let heading = "# name  <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit>";
        assert_eq!(Slab::parse(heading), None);
    }
}
