//! Addresses to names of kernel functions.

use std::sync::Arc;

/// The symbols of a kernel, from the text of `/proc/kallsyms`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// By address.
    sorted: Vec<Symbol>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Where it begins.
    pub address: u64,
    pub name: Arc<str>,
    /// The module it lies in; `None` for the kernel itself.
    pub module: Option<Arc<str>>,
    /// The letter of its kind (`t`, `T`, `d`, ...).
    pub kind: char,
}

impl Symbols {
    /// Reads lines `ADDRESS KIND NAME [MODULE]`; lines of another form, and those whose address is hidden (zero), are left out.
    pub fn parse(kallsyms: &str) -> Symbols {
        Symbols::new(kallsyms.lines().filter_map(symbol).collect())
    }

    /// Of symbols in any order.
    pub fn new(mut symbols: Vec<Symbol>) -> Symbols {
        symbols.sort_by_key(|symbol| symbol.address);
        Symbols { sorted: symbols }
    }

    /// The last symbol at or before an address, of those at one place the first that was named.
    pub fn find(&self, address: u64) -> Option<&Symbol> {
        let after = self.sorted.partition_point(|symbol| symbol.address <= address);
        let last = self.sorted[..after].last()?.address;
        // Most places have one name.
        if after < 2 || self.sorted[after - 2].address != last {
            return self.sorted.get(after - 1);
        }
        let first = self.sorted.partition_point(|symbol| symbol.address < last);
        self.sorted.get(first)
    }

    /// All of them, by address.
    pub fn all(&self) -> &[Symbol] {
        &self.sorted
    }
}

fn symbol(line: &str) -> Option<Symbol> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
    let kind = words.next()?.chars().next()?;
    let name = words.next()?.into();
    let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']')).map(Arc::from);
    Some(Symbol { address, name, module, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_inside_a_function_is_that_function() {
        let symbols = Symbols::parse(
            "ffffffff81000010 T second\nffffffff81000000 t first\nffffffff81000000 T alias\n\
             ffffffffc0000000 t veth_xmit\t[veth]\n0000000000000000 T hidden\nnonsense\n",
        );
        assert_eq!(symbols.all().len(), 4);
        assert_eq!(&*symbols.find(0xffff_ffff_8100_000f).unwrap().name, "first");
        assert_eq!(&*symbols.find(0xffff_ffff_8100_0010).unwrap().name, "second");
        assert_eq!(symbols.find(0xffff_ffff_c000_0004).unwrap().module.as_deref(), Some("veth"));
        assert!(symbols.find(0x1000).is_none());
    }
}
