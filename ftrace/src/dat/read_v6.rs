//! Version 6: everything in one fixed order.

use super::error::{ContentError, DatError};
use super::input::Input;
use super::read::{Dat, Reading, clock, long_text};
use super::{Compression, FLYRECORD_V6, LATENCY_V6, OPTIONS_V6, Version, id};
use crate::trace::{Buffer, CpuPages};

pub(super) fn read(mut file: Reading<'_>, mut input: Input<'_>) -> Result<Dat, DatError> {
    for section in id::HEADER_INFO..=id::CMDLINES {
        file.text_section(section, &mut input)?;
    }
    file.about.cpus = input.u32("number of CPUs")?;
    let mut instances = Vec::new();
    let mut has_clock = options(&mut file, &mut input, Some(&mut instances))?;
    // A table comes at once: an option may have set another number of CPUs.
    buffer(&mut file, input, String::new(), has_clock)?;
    for (at, contents) in instances {
        let mut option = Input::unpacked(contents, at);
        let offset = option.u64("offset of a buffer")?;
        let name = String::from_utf8_lossy(option.text("name of a buffer")?).into_owned();
        let Some(bytes) = usize::try_from(offset).ok().and_then(|offset| file.bytes.get(offset..)) else {
            return Err(DatError { at, error: ContentError::Outside { what: format!("buffer `{name}`"), offset } });
        };
        let mut input = Input::new(bytes, offset);
        has_clock |= options(&mut file, &mut input, None)?;
        buffer(&mut file, input, name, has_clock)?;
    }
    file.finish(Version::V6, Compression::None)
}

/// Reads options where there are any. Returns whether a clock stands behind the table of CPUs.
fn options<'a>(
    file: &mut Reading<'_>,
    input: &mut Input<'a>,
    mut instances: Option<&mut Vec<(u64, &'a [u8])>>,
) -> Result<bool, DatError> {
    let start = *input;
    if input.expect(OPTIONS_V6, "options").is_err() {
        *input = start;
        return Ok(false);
    }
    let mut has_clock = false;
    loop {
        let at = input.at();
        let option = input.u16("id of an option")?;
        if option == id::DONE {
            return Ok(has_clock);
        }
        let length = input.u32("size of an option")?;
        let contents = input.take(length.into(), "option")?;
        file.count_text(at, length.into())?;
        match (option, instances.as_mut()) {
            (id::BUFFER, Some(instances)) => instances.push((at, contents)),
            (id::TRACECLOCK, _) => has_clock = true,
            _ => file.option(option, at, contents),
        }
    }
}

/// Reads a table of CPUs, and the pages it names.
fn buffer(file: &mut Reading<'_>, mut input: Input<'_>, name: String, has_clock: bool) -> Result<(), DatError> {
    let start = input;
    if input.expect(LATENCY_V6, "").is_ok() {
        file.skip(start.at(), "the text of a latency tracer");
        return Ok(());
    }
    input = start;
    input.expect(FLYRECORD_V6, "`flyrecord`")?;
    // Tables may overlap.
    file.count_text(input.at(), 16 * u64::from(file.about.cpus))?;
    let mut cpus = Vec::new();
    for cpu in 0..file.about.cpus {
        let at = input.at();
        let offset = input.u64("offset of a CPU's pages")?;
        let size = input.u64("size of a CPU's pages")?;
        if size == 0 {
            continue;
        }
        let Some(bytes) = usize::try_from(offset).ok().and_then(|offset| file.bytes.get(offset..)) else {
            return Err(DatError { at, error: ContentError::Outside { what: format!("pages of CPU {cpu}"), offset } });
        };
        let pages = Input::new(bytes, offset).take(size, "pages of a CPU")?;
        file.count_pages(at, size)?;
        cpus.push(CpuPages { cpu, pages: pages.to_vec(), stats: None });
    }
    let clock = match has_clock {
        true => clock(long_text(&mut input, "clock")?.as_bytes()),
        false => "local".to_owned(),
    };
    file.add_buffer(Buffer { name, clock, cpus });
    Ok(())
}
