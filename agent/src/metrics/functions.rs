//! Addresses in the kernel's code to the functions they lie in.

use kstrobe_ebpf::kernel_target::plain_name;
use std::time::{Duration, Instant};

/// How long the symbols of modules are believed: another one may come to lie where one was.
const MODULES_LIFE: Duration = Duration::from_secs(10);

/// What an address is called that lies in no function that the kernel tells of.
const UNKNOWN: &str = "[unknown]";

/// The kernel's functions, read when the first address is asked for.
pub struct Functions {
    /// The text of `/proc/kallsyms`; empty if it cannot be read.
    read: fn() -> String,
    table: Table,
    asked: Option<Instant>,
}

impl Functions {
    /// None read yet.
    pub fn new(read: fn() -> String) -> Self {
        Self { read, table: Table::default(), asked: None }
    }

    /// The function that an address lies in, without the suffix of a copy that the compiler made (`.isra.0`, `.cold`):
    /// which copies there are differs from build to build.
    pub fn name(&mut self, address: u64, now: Instant) -> String {
        let fresh = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < MODULES_LIFE);
        let mut found = self.table.find(address);
        if !fresh && !found.is_some_and(|(_, lasting)| lasting) {
            self.table = Table::parse(&(self.read)());
            self.asked = Some(now);
            found = self.table.find(address);
        }
        found.map_or(UNKNOWN, |(name, _)| plain_name(name)).to_owned()
    }
}

/// Functions by address. All names lie in one text: a kernel has some hundred thousand.
#[derive(Default)]
struct Table {
    functions: Vec<Function>,
    names: String,
}

struct Function {
    address: u64,
    /// Where the name begins and ends in the names.
    name: (u32, u32),
    module: bool,
}

impl Table {
    /// Lines are `ffffffff81000000 T name` and, for a module's, a tab and `[module]`. To whom the kernel does not tell
    /// addresses all are 0: such a table is empty.
    fn parse(text: &str) -> Table {
        let mut table = Table::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            // `_text` and `_stext` lie where the first function does.
            if address == 0 || !matches!(kind, "t" | "T" | "w" | "W") || matches!(name, "_text" | "_stext") {
                continue;
            }
            let begin = table.names.len() as u32;
            table.names.push_str(name);
            let name = (begin, table.names.len() as u32);
            table.functions.push(Function { address, name, module: words.next().is_some() });
        }
        // Stable: of several names for one address the first stands, as in the kernel's own traces.
        table.functions.sort_by_key(|function| function.address);
        table.functions.dedup_by_key(|function| function.address);
        table.functions.shrink_to_fit();
        table.names.shrink_to_fit();
        table
    }

    /// The name, and whether it will stay that of the address: the kernel's own functions lie one behind the other, but a
    /// module's may go.
    fn find(&self, address: u64) -> Option<(&str, bool)> {
        let after = self.functions.partition_point(|function| function.address <= address);
        let (found, next) = (self.functions.get(after.checked_sub(1)?)?, self.functions.get(after));
        // /proc/kallsyms has no sizes. Behind the last function of the kernel or of a module, an address more than a page away is
        // none of its code.
        let lasting = !found.module && next.is_some_and(|next| !next.module);
        let near = address - found.address < 4096;
        let name = self.names.get(found.name.0 as usize..found.name.1 as usize)?;
        (lasting || near || next.is_some_and(|next| next.module == found.module)).then_some((name, lasting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const TEXT: &str = "ffffffff81000000 T _stext\nffffffff81000000 T first\nffffffff81000100 t second.isra.0\n\
        ffffffff81000180 D data\nffffffff81000200 T third\nffffffff81000200 T alias\n\
        ffffffffc0002000 t late\t[b]\nffffffffc0001000 t early\t[a]\n";

    fn names(text: fn() -> String, addresses: &[u64]) -> Vec<String> {
        let mut functions = Functions::new(text);
        addresses.iter().map(|&address| functions.name(address, Instant::now())).collect()
    }

    #[test]
    fn an_address_is_of_the_function_before_it() {
        let addresses = [0xffff_ffff_8100_0000, 0xffff_ffff_8100_00ff, 0xffff_ffff_8100_01ff, 0xffff_ffff_8100_0200];
        assert_eq!(names(|| TEXT.to_owned(), &addresses), ["first", "first", "second", "third"]);
        let modules = [0xffff_ffff_c000_1fff, 0xffff_ffff_c000_2001];
        assert_eq!(names(|| TEXT.to_owned(), &modules), ["early", "late"]);
    }

    #[test]
    fn what_lies_in_no_function_is_unknown() {
        let outside = [0, 0xffff_ffff_80ff_ffff, 0xffff_ffff_8110_0000, 0xffff_ffff_c010_0000, u64::MAX];
        assert_eq!(names(|| TEXT.to_owned(), &outside), [UNKNOWN; 5]);
        assert_eq!(names(|| "0000000000000000 T hidden\n".to_owned(), &[5]), [UNKNOWN]);
        assert_eq!(names(|| "nonsense\n\nzz T x\n1 T\n".to_owned(), &[5]), [UNKNOWN]);
    }

    #[test]
    fn modules_are_read_again_and_the_kernel_is_not() {
        static READ: AtomicU32 = AtomicU32::new(0);
        let mut functions = Functions::new(|| {
            let times = READ.fetch_add(1, Ordering::Relaxed);
            format!("1000 T a\n2000 T b\n9000 t module{times}\t[m]\n")
        });
        let begin = Instant::now();
        let mut at = |address, seconds| functions.name(address, begin + Duration::from_secs(seconds));
        assert_eq!(
            (at(0x9001, 0), at(0x9001, 9), at(0x9001, 10)),
            ("module0".into(), "module0".into(), "module1".into())
        );
        assert_eq!((at(0x1001, 100), at(0x500, 100)), ("a".into(), UNKNOWN.into()));
        assert_eq!(READ.load(Ordering::Relaxed), 3, "only what no function of the kernel has is asked again");
    }
}
