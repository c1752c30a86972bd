//! YAML text to a tree of nodes with their places, exactly the file's shape.
//!
//! It is made from the parser's events rather than through serde, because serde's visitors stop at the first mistake and
//! lose the text of a scalar (`value: 0x10`), both of which are needed: all mistakes are reported in one run, and an
//! expression is the text the user wrote.

use crate::diag::Diagnostic;
use crate::model::{Location, SourceFile, Spanned};
use crate::report::Report;
use serde_saphyr::granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a file; a ConfigMap holds no more.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Nodes of a file with its aliases expanded. The largest probe file we ship has about 150.
pub(crate) const MAX_NODES: usize = 50_000;
/// Levels of nesting with aliases expanded: bounds the recursion of every function over nodes.
pub(crate) const MAX_DEPTH: usize = 32;

/// A value in the file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: Location,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `key:` without a value, `~` or `null`.
    Nothing,
    /// Text. Only plain (unquoted) text can be a boolean.
    Scalar { text: String, plain: bool },
    /// `[a, b]`
    Sequence(Vec<Node>),
    /// `{ a: b }`, in file order, no key twice.
    Mapping(Vec<Entry>),
    /// A mistake that has been reported already.
    Broken,
}

/// A key of a mapping and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: Spanned<String>,
    pub value: Node,
}

impl Node {
    fn children(&self) -> Box<dyn Iterator<Item = &Node> + '_> {
        match &self.kind {
            Kind::Sequence(items) => Box::new(items.iter()),
            Kind::Mapping(entries) => Box::new(entries.iter().map(|e| &e.value)),
            Kind::Nothing | Kind::Scalar { .. } | Kind::Broken => Box::new(std::iter::empty()),
        }
    }

    fn count(&self) -> usize {
        1 + self.children().map(Node::count).sum::<usize>()
    }

    fn height(&self) -> usize {
        1 + self.children().map(Node::height).max().unwrap_or(0)
    }
}

pub(crate) struct Document {
    pub node: Node,
    /// Whether nothing in it was reported. Otherwise a part of it is missing or [`Kind::Broken`], and it must not be used
    /// even if what is left makes sense: a probe without its `where` counts what it should not.
    pub sound: bool,
}

/// The documents of a file. One that is not YAML is reported and left out, those after it are read.
pub(crate) fn documents(file: &Arc<SourceFile>, report: &mut Report) -> Vec<Document> {
    documents_of(&file.text, file, report)
}

/// The same of a text whose diagnostics show a file of the same length.
pub(crate) fn documents_of(text: &str, file: &Arc<SourceFile>, report: &mut Report) -> Vec<Document> {
    if file.text.len() > MAX_BYTES {
        let message = format!("the file has {} bytes, and at most {MAX_BYTES} are read", file.text.len());
        report.push(Diagnostic::error(&Location::new(file, 0..0), message).hint("split it into several files"));
        return Vec::new();
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.emit_unresolved_aliases = true;
    let parser = Parser::new_from_str_with_options(text, options);
    let anchors = HashMap::new();
    let mut reader = Reader { parser, file, report, anchors, nodes: 0, depth: 0, unknown_alias_line: None };
    let mut documents = Vec::new();
    loop {
        let before = reader.report.errors();
        match reader.document() {
            Ok(Some(node)) => documents.push(Document { node, sound: reader.report.errors() == before }),
            Ok(None) | Err(Stop::File) => return documents,
            Err(Stop::Document) => match reader.parser.proceed_next_document() {
                Ok(true) => {}
                Ok(false) | Err(_) => return documents,
            },
        }
    }
}

/// How much is left out after a mistake that has been reported.
enum Stop {
    Document,
    File,
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    file: &'a Arc<SourceFile>,
    report: &'a mut Report,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    depth: usize,
    unknown_alias_line: Option<u32>,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Option<Node>, Stop> {
        self.depth = 0;
        self.anchors.clear();
        while let Some(event) = self.parser.next() {
            match event {
                Err(error) => return Err(self.syntax(&error)),
                Ok((event, span)) if event.is_node() => return self.node(event, span).map(Some),
                Ok(_) => {}
            }
        }
        Ok(None)
    }

    /// The next event inside a document.
    fn next(&mut self) -> Result<(Event<'a>, Span), Stop> {
        match self.parser.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => {
                let end = self.file.text.len();
                self.report.push(Diagnostic::error(&Location::new(self.file, end..end), "the file ends too early"));
                Err(Stop::File)
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span) -> Result<Node, Stop> {
        let at = self.location(span);
        self.spend(1, &at)?;
        if self.depth >= MAX_DEPTH {
            return Err(self.too_deep(&at));
        }
        self.depth += 1;
        let tagged = self.tag(span);
        let (anchor, mut node) = match event {
            Event::Scalar(text, style, anchor, _) => (anchor, Node { at, kind: scalar(&text, style) }),
            Event::SequenceStart(_, anchor, _) => (anchor, self.sequence(at)?),
            Event::MappingStart(_, anchor, _) => (anchor, self.mapping(at)?),
            Event::Alias(anchor) => (0, self.alias(anchor, at)?),
            _ => (0, self.unknown_alias(at)),
        };
        self.depth -= 1;
        if tagged {
            node.kind = Kind::Broken;
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn sequence(&mut self, at: Location) -> Result<Node, Stop> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => break,
                (event, span) => items.push(self.node(event, span)?),
            }
        }
        let at = if at.start == at.end { items.first().map_or(at, |n| n.at.clone()) } else { at };
        Ok(Node { at, kind: Kind::Sequence(items) })
    }

    fn mapping(&mut self, at: Location) -> Result<Node, Stop> {
        let mut entries = Vec::new();
        let mut merges = Vec::new();
        let mut lines = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let key = self.node(event, span)?;
            let (event, span) = self.next()?;
            let mut value = self.node(event, span)?;
            let Some((key, plain)) = self.key(key) else { continue };
            if value.at.start == value.at.end {
                value.at = key.at.clone();
            }
            if plain && key.value == "<<" {
                merges.push(value);
            } else if let Some(line) = lines.get(&key.value) {
                let message = format!("`{}` is written twice", key.value);
                self.report.push(Diagnostic::error(&key.at, message).hint(format!("the first is in line {line}")));
            } else {
                lines.insert(key.value.clone(), key.at.line);
                entries.push(Entry { key, value });
            }
        }
        for merged in merges {
            self.merge(&mut entries, &mut lines, merged);
        }
        let at = if at.start == at.end { entries.first().map_or(at, |e| e.key.at.clone()) } else { at };
        Ok(Node { at, kind: Kind::Mapping(entries) })
    }

    /// `<<: *defaults`: entries that the mapping does not have itself.
    fn merge(&mut self, entries: &mut Vec<Entry>, lines: &mut HashMap<String, u32>, merged: Node) {
        match merged.kind {
            Kind::Mapping(more) => {
                let new = |e: &Entry| lines.insert(e.key.value.clone(), e.key.at.line).is_none();
                entries.extend(more.into_iter().filter(new));
            }
            Kind::Sequence(items) => items.into_iter().for_each(|item| match &item.kind {
                Kind::Mapping(_) | Kind::Broken => self.merge(entries, lines, item),
                _ => self.report.push(Diagnostic::error(&item.at, "`<<` merges mappings only")),
            }),
            Kind::Broken => {}
            Kind::Nothing | Kind::Scalar { .. } => {
                self.report.push(Diagnostic::error(&merged.at, "`<<` merges mappings only"));
            }
        }
    }

    fn key(&mut self, node: Node) -> Option<(Spanned<String>, bool)> {
        match node.kind {
            Kind::Scalar { text, plain } => Some((Spanned::new(text, node.at), plain)),
            Kind::Broken => None,
            Kind::Nothing | Kind::Sequence(_) | Kind::Mapping(_) => {
                let diagnostic = Diagnostic::error(&node.at, "a key must be text");
                self.report.push(diagnostic.hint("put an expression that has brackets or `: ` in it in quotes"));
                None
            }
        }
    }

    fn alias(&mut self, anchor: usize, at: Location) -> Result<Node, Stop> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            self.report.push(Diagnostic::error(&at, "an alias inside its own anchor has no end"));
            return Ok(Node { at, kind: Kind::Broken });
        };
        self.spend(node.count(), &at)?;
        if self.depth + node.height() > MAX_DEPTH {
            return Err(self.too_deep(&at));
        }
        Ok(node)
    }

    fn unknown_alias(&mut self, at: Location) -> Node {
        let name = &self.file.text[at.start..at.end];
        let diagnostic = Diagnostic::error(&at, format!("no anchor before this has the name of alias `{name}`"));
        self.report.push(diagnostic.hint("put an expression that begins with `*` in quotes"));
        self.unknown_alias_line = Some(at.line);
        Node { at, kind: Kind::Broken }
    }

    /// Reports the tag of a node, if it has one.
    fn tag(&mut self, span: Span) -> bool {
        let Some(tag) = span.tag_span() else { return false };
        let at = self.location(tag);
        let message = format!("YAML reads `{}` as a tag, which has no meaning here", &self.file.text[at.start..at.end]);
        self.report.push(Diagnostic::error(&at, message).hint("put an expression that begins with `!` in quotes"));
        true
    }

    fn spend(&mut self, nodes: usize, at: &Location) -> Result<(), Stop> {
        self.nodes += nodes;
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!("the file has more than {MAX_NODES} values, those that aliases repeat included");
        self.report.push(Diagnostic::error(at, message).hint("split it into several files, or use fewer aliases"));
        Err(Stop::File)
    }

    fn too_deep(&mut self, at: &Location) -> Stop {
        self.report.push(Diagnostic::error(at, format!("values are nested more than {MAX_DEPTH} deep")));
        Stop::File
    }

    fn syntax(&mut self, error: &ScanError) -> Stop {
        let start = error.marker().byte_offset().unwrap_or(0);
        let width = self.file.text.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        let at = Location::new(self.file, start..start + width);
        if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
            return self.too_deep(&at);
        }
        if self.unknown_alias_line == Some(at.line) {
            // The rest of an expression such as `*p == 1`: it has been explained.
            return Stop::Document;
        }
        let mut diagnostic = Diagnostic::error(&at, format!("this is not YAML: {}", error.kind()));
        diagnostic.hint = syntax_hint(error.kind()).map(str::to_owned);
        self.report.push(diagnostic);
        Stop::Document
    }

    /// Takes line and column from the parser: counting them for each node again would be quadratic.
    fn location(&self, span: Span) -> Location {
        let range = span.byte_range().unwrap_or(0..0);
        let (line, column) = (span.start.line() as u32, span.start.col() as u32 + 1);
        Location { file: self.file.clone(), start: range.start, end: range.end.max(range.start), line, column }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Kind {
    let plain = style == ScalarStyle::Plain;
    match text {
        "" | "~" | "null" | "Null" | "NULL" if plain => Kind::Nothing,
        _ => Kind::Scalar { text: text.to_owned(), plain },
    }
}

/// What expressions and hooks in YAML are likely to trip over.
fn syntax_hint(kind: &ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::MappingValueNotAllowed => "put a text that has `: ` in it in quotes",
        ErrorKind::MappingKeyNotAllowed => "put a text that begins with `? ` in quotes",
        ErrorKind::InvalidTrailingDoubleQuotedScalar => {
            "put the whole text in single quotes: a text that begins with `\"` ends at the next one"
        }
        ErrorKind::InvalidTrailingSingleQuotedScalar => {
            "put the whole text in double quotes: a text that begins with `'` ends at the next one"
        }
        ErrorKind::UnknownQuotedScalarEscape => "use single quotes, in which `\\` has no special meaning",
        ErrorKind::UnexpectedCharacter { .. } => "put a text that begins with this character in quotes",
        ErrorKind::FlowMappingValueAdjacentCollection => {
            "inside `[ ]` and `{ }`, put a text that has brackets in it in quotes"
        }
        ErrorKind::ExpectedBlockMappingKey | ErrorKind::ExpectedBlockSequenceEntry | ErrorKind::InvalidIndentation => {
            "check the indentation: this line stands under no key or item above it"
        }
        ErrorKind::ExpectedFlowMappingSeparator | ErrorKind::ExpectedFlowSequenceSeparator => {
            "a bracket above may not be closed"
        }
        ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation => {
            "indent with spaces"
        }
        _ => return None,
    })
}
