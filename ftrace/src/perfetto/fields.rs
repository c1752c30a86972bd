//! From the fields of a record to those of a message.

use super::events::{Generic, GenericField, GenericValue, Kind};
use super::proto::InternedString;
use crate::format::{EventFormat, Field};
use crate::symbols::Symbols;
use crate::trace::{Event, Trace};
use crate::value::Value;
use std::collections::HashMap;
use std::fmt::Write;

/// Fields of the kernel's own events that are addresses of its code.
const CODE: [&str; 4] = ["ip", "parent_ip", "caller", "func"];

/// Symbols by the ids that packets of one sequence know them by.
#[derive(Default)]
pub(super) struct Interned {
    ids: HashMap<u64, u64>,
    /// Those that no packet has yet.
    pub new: Vec<InternedString>,
}

impl Interned {
    fn id(&mut self, address: u64, symbols: &Symbols) -> u64 {
        // Zero is no id.
        let next = self.ids.len() as u64 + 1;
        *self.ids.entry(address).or_insert_with(|| {
            let name = name(address, symbols).into_bytes();
            self.new.push(InternedString { iid: Some(next), str: Some(name) });
            next
        })
    }
}

fn name(address: u64, symbols: &Symbols) -> String {
    symbols.find(address).map_or_else(|| format!("{address:#x}"), |symbol| symbol.name.to_string())
}

/// The fields of one event.
pub(super) struct Fields<'a, 's> {
    pub trace: &'a Trace,
    pub event: Event<'a>,
    pub format: &'a EventFormat,
    pub interned: &'s mut Interned,
    /// Counts fields that the record is too short for.
    pub unreadable: &'s mut u64,
}

impl<'a> Fields<'a, '_> {
    /// The value of a field, of whatever type the message wants.
    pub fn get<T: FromValue>(&mut self, name: &str) -> Option<T> {
        T::from_value(self.value(name)?)
    }

    /// The value of a field.
    pub fn value(&mut self, name: &str) -> Option<Value<'a>> {
        self.of(self.format.field(name)?)
    }

    fn of(&mut self, field: &'a Field) -> Option<Value<'a>> {
        let value = field.value(self.event.data);
        *self.unreadable += u64::from(value.is_none());
        value
    }

    /// The id of the kernel function in a field.
    pub fn symbol(&mut self, name: &str) -> Option<u64> {
        let address = self.value(name)?.bits()?;
        Some(self.interned.id(address, &self.trace.symbols))
    }

    /// The text whose address in the kernel is in a field.
    pub fn constant(&mut self, name: &str) -> Option<String> {
        let address = self.value(name)?.bits()?;
        Some(self.trace.printk.get(&address).cloned().unwrap_or_else(|| format!("{address:#x}")))
    }

    /// All fields by name.
    pub fn generic(&mut self) -> Kind {
        let format = self.format;
        let own = format.fields.iter().filter(|field| !field.name.starts_with("common_"));
        let field = own.filter_map(|field| {
            let value = self.generic_value(field)?;
            Some(GenericField { name: Some(field.name.clone()), value: Some(value) })
        });
        let field = field.collect();
        Kind::Generic(Generic { event_name: Some(format.name.clone()), field })
    }

    fn generic_value(&mut self, field: &'a Field) -> Option<GenericValue> {
        let value = self.of(field)?;
        let symbols = &self.trace.symbols;
        let code = self.format.system == "ftrace" && CODE.contains(&field.name.as_str());
        Some(match value {
            Value::Unsigned(address) if code => GenericValue::Text(name(address, symbols)),
            Value::Unsigned(address) if self.format.name == "bprint" && field.name == "fmt" => {
                let text = self.trace.printk.get(&address);
                text.map_or(GenericValue::Unsigned(address), |text| GenericValue::Text(text.clone()))
            }
            Value::Unsigned(number) => GenericValue::Unsigned(number),
            Value::Signed(number) => GenericValue::Signed(number),
            Value::Text(bytes) => GenericValue::Text(String::from_utf8_lossy(bytes).into_owned()),
            Value::Array { element: 8, .. } if code => {
                // A stack: `size` says how many there are, whatever the format says.
                let count = self.format.field("size").and_then(|size| size.value(self.event.data)?.bits());
                let count = count.map_or(usize::MAX, |count| count.try_into().unwrap_or(usize::MAX));
                let names: Vec<String> = value.elements().take(count).map(|address| name(address, symbols)).collect();
                GenericValue::Text(names.join(" < "))
            }
            Value::Array { .. } => GenericValue::Text(list(value)),
            Value::Bytes(bytes) => GenericValue::Text(hex(bytes)),
        })
    }
}

/// `{0xa,0x0}`, as the kernel prints arrays.
fn list(value: Value<'_>) -> String {
    let mut text = String::from("{");
    for (at, number) in value.elements().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{number:#x}", if at == 0 { "" } else { "," });
    }
    text.push('}');
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a message's field can be made from.
pub(super) trait FromValue: Sized {
    fn from_value(value: Value<'_>) -> Option<Self>;
}

impl FromValue for String {
    fn from_value(value: Value<'_>) -> Option<String> {
        value.text().map(std::borrow::Cow::into_owned)
    }
}

/// Messages have 32 bits where kernels have 32 or, for what never needs more, 64.
macro_rules! numbers {
    ($($number:ident)*) => {
        $(impl FromValue for $number {
            fn from_value(value: Value<'_>) -> Option<$number> {
                value.bits().map(|bits| bits as $number)
            }
        })*
    };
}

numbers! { i32 u32 i64 u64 }
