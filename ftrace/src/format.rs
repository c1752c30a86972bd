//! Formats of events and pages, from the text of tracefs' `format` and `header_page` files.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFormat {
    /// Subsystem, e.g. `sched`.
    pub system: String,
    /// Name, e.g. `sched_switch`.
    pub name: String,
    /// What a record begins with.
    pub id: u16,
    /// All fields in order: the common ones come first.
    pub fields: Vec<Field>,
    /// How the kernel prints it: what follows `print fmt: `.
    pub print: String,
    /// The whole text, as the kernel wrote it.
    pub text: String,
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// Its C declaration up to the name, e.g. `struct sockaddr *`.
    pub c_type: String,
    /// Bytes from the record's start.
    pub offset: usize,
    /// Bytes; 0 for what lasts to the record's end.
    pub size: usize,
    /// Signed rather than unsigned, of an array: its elements.
    pub signed: bool,
    /// How its bytes are read.
    pub shape: Shape,
    /// What stood in brackets after the name.
    pub array: Option<String>,
}

/// How the bytes of a field are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An integer, a pointer or a boolean of 1, 2, 4 or 8 bytes.
    Integer,
    /// Characters up to the first NUL.
    Text,
    /// Numbers of this many bytes each, side by side.
    Array(usize),
    /// A structure, or anything else without a form.
    Bytes,
    /// Offset (low 16 bits, from the record's start) and length in bytes (high 16 bits) of the contents.
    Located(Contents),
    /// The same, but the offset counts from the field's own end.
    RelativelyLocated(Contents),
}

/// What a located field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Characters up to the first NUL.
    Text,
    /// Numbers of this many bytes each.
    Array(usize),
}

/// Why a text is no event format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// What is missing or wrong.
    pub what: &'static str,
}

impl std::fmt::Display for FormatError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "not an event format: {}", self.what)
    }
}

impl std::error::Error for FormatError {}

impl EventFormat {
    /// Reads a `format` file. Fields whose line cannot be understood are left out.
    pub fn parse(system: &str, text: &str) -> Result<EventFormat, FormatError> {
        let after = |key: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(key)).map(str::trim);
        let name = after("name:").filter(|name| !name.is_empty()).ok_or(FormatError { what: "no `name:` line" })?;
        let id = after("ID:").ok_or(FormatError { what: "no `ID:` line" })?;
        let id = id.parse().map_err(|_| FormatError { what: "`ID:` is no number below 65536" })?;
        // A printed text may hold what looks like a field.
        let head = text.find("print fmt:").map_or(text, |end| &text[..end]);
        Ok(EventFormat {
            system: system.to_owned(),
            name: name.to_owned(),
            id,
            fields: fields(head),
            print: text.find("print fmt:").map_or("", |at| text[at + "print fmt:".len()..].trim()).to_owned(),
            text: text.to_owned(),
        })
    }

    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The fields that a text of `field:` lines declares, in order.
pub fn fields(text: &str) -> Vec<Field> {
    text.lines().filter_map(field).collect()
}

fn field(line: &str) -> Option<Field> {
    let rest = line.trim().strip_prefix("field:")?;
    let (declaration, rest) = rest.split_once(';')?;
    let number = |key: &str| -> Option<usize> {
        let value = rest.split(';').find_map(|part| part.trim().strip_prefix(key))?;
        value.strip_prefix(':')?.trim().parse().ok()
    };
    let declaration = declaration.trim();
    let (named, array) = match declaration.split_once('[') {
        // `__data_loc char[] name`: the brackets belong to the type.
        Some((_, rest)) if !rest.trim_end().ends_with(']') => (declaration, None),
        Some((named, length)) => (named.trim_end(), length.trim_end().strip_suffix(']')),
        None => (declaration, None),
    };
    let name = named.rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next()?;
    let c_type = named[..named.len() - name.len()].trim_end();
    if name.is_empty() || c_type.is_empty() {
        return None;
    }
    let (offset, size) = (number("offset")?, number("size")?);
    Some(Field {
        shape: shape(c_type, array, size),
        name: name.to_owned(),
        c_type: c_type.to_owned(),
        offset,
        size,
        signed: number("signed")? == 1,
        array: array.map(str::to_owned),
    })
}

fn shape(c_type: &str, array: Option<&str>, size: usize) -> Shape {
    let located = |of: &str| match of.trim().trim_end_matches("[]").trim_end() {
        "char" | "const char" => Contents::Text,
        element => Contents::Array(bytes_of(element).unwrap_or(1)),
    };
    if let Some(of) = c_type.strip_prefix("__data_loc ") {
        return Shape::Located(located(of));
    }
    if let Some(of) = c_type.strip_prefix("__rel_loc ") {
        return Shape::RelativelyLocated(located(of));
    }
    let aggregate = c_type.starts_with("struct ") || c_type.starts_with("union ");
    match array {
        Some(_) if matches!(c_type, "char" | "const char") => Shape::Text,
        Some(count) => {
            let known = count.trim().parse().ok().filter(|count: &usize| *count > 0 && size.is_multiple_of(*count));
            match known.map(|count| size / count).or_else(|| bytes_of(c_type)) {
                Some(element @ (1 | 2 | 4 | 8)) => Shape::Array(element),
                _ => Shape::Bytes,
            }
        }
        None if matches!(size, 1 | 2 | 4 | 8) && (!aggregate || c_type.ends_with('*')) => Shape::Integer,
        None => Shape::Bytes,
    }
}

/// Size of a C type on the 64-bit kernels there are.
fn bytes_of(c_type: &str) -> Option<usize> {
    Some(match c_type.trim_start_matches("const ").trim() {
        "char" | "unsigned char" | "signed char" | "u8" | "s8" | "__u8" | "__s8" | "bool" | "uint8_t" | "int8_t" => 1,
        "short" | "unsigned short" | "u16" | "s16" | "__u16" | "__s16" | "__be16" | "__le16" => 2,
        "int" | "unsigned int" | "unsigned" | "u32" | "s32" | "__u32" | "__s32" | "__be32" | "__le32" | "pid_t" => 4,
        "long" | "unsigned long" | "long long" | "unsigned long long" | "u64" | "s64" | "__u64" | "__s64" => 8,
        pointer if pointer.ends_with('*') => 8,
        _ => return None,
    })
}

/// The formats of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Formats {
    all: Vec<EventFormat>,
    /// By id: one more than the place in `all`, 0 where there is none. Every event of a trace looks here.
    by_id: Vec<u32>,
}

impl Formats {
    /// Adds one; of two with the same id the later counts.
    pub fn add(&mut self, format: EventFormat) {
        let id = usize::from(format.id);
        self.by_id.resize(self.by_id.len().max(id + 1), 0);
        self.all.push(format);
        self.by_id[id] = self.all.len() as u32;
    }

    /// The format of records that begin with an id.
    pub fn by_id(&self, id: u16) -> Option<&EventFormat> {
        let after = *self.by_id.get(usize::from(id))?;
        self.all.get((after as usize).wrapping_sub(1))
    }

    /// The event of a subsystem and name.
    pub fn named(&self, system: &str, name: &str) -> Option<&EventFormat> {
        self.all.iter().find(|format| format.name == name && format.system == system)
    }

    /// All of them, in the order in which they were added.
    pub fn all(&self) -> &[EventFormat] {
        &self.all
    }
}

/// Where things stand in a page of the ring buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFormat {
    /// Bytes of the field that says how much of the page is filled: those of a `long` of the kernel.
    pub commit_bytes: usize,
    /// Where the records begin.
    pub data_offset: usize,
    /// Bytes that records can fill.
    pub data_bytes: usize,
    /// The whole text, as the kernel wrote it.
    pub text: String,
}

impl PageFormat {
    /// Reads `events/header_page`.
    pub fn parse(text: &str) -> Result<PageFormat, FormatError> {
        let fields = fields(text);
        let field = |name: &str| fields.iter().find(|field| field.name == name);
        let commit = field("commit").ok_or(FormatError { what: "no field `commit`" })?;
        let data = field("data").ok_or(FormatError { what: "no field `data`" })?;
        let stamp = field("timestamp").ok_or(FormatError { what: "no field `timestamp`" })?;
        let head = stamp.offset == 0 && stamp.size == 8 && commit.offset == 8;
        let usual = head && matches!(commit.size, 4 | 8) && data.offset == 8 + commit.size;
        // A page's own word counts up to 2^27 bytes.
        if !usual || !(1..1 << 27).contains(&data.size) {
            return Err(FormatError { what: "fields are not where the kernel has them" });
        }
        let (commit_bytes, data_offset) = (commit.size, data.offset);
        Ok(PageFormat { commit_bytes, data_offset, data_bytes: data.size, text: text.to_owned() })
    }

    pub fn page_bytes(&self) -> usize {
        self.data_offset + self.data_bytes
    }
}
