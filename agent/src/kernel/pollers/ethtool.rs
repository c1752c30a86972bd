//! Statistics and drivers of network interfaces, as `ethtool -S` and `ethtool -i` show them.

use super::{Rows, Source, number, text};
use crate::kernel::sys::ethtool::Ethtool;
use std::{fs, io};

pub const STATISTICS: Source = Source {
    name: "ethtool_statistics",
    summary: "counters of network drivers by the drivers' own names, as `ethtool -S` shows them",
    columns: &[text("interface", 16), text("name", 32), number("value")],
    open: || Box::new(read_statistics),
};

pub const DRIVERS: Source = Source {
    name: "ethtool_drivers",
    summary: "drivers of network interfaces, as `ethtool -i` shows them",
    columns: &[text("interface", 16), text("driver", 32), text("version", 32), text("firmware", 32), text("bus", 32)],
    open: || Box::new(read_drivers),
};

fn read_statistics(rows: &mut Rows) -> io::Result<()> {
    let ethtool = Ethtool::open()?;
    for interface in interfaces()? {
        // Many interfaces of software have none.
        for (name, value) in optional(ethtool.statistics(&interface))?.unwrap_or_default() {
            rows.push(&[interface.as_str().into(), name.as_str().into(), value.into()]);
        }
    }
    Ok(())
}

fn read_drivers(rows: &mut Rows) -> io::Result<()> {
    let ethtool = Ethtool::open()?;
    for interface in interfaces()? {
        if let Some(driver) = optional(ethtool.driver(&interface))? {
            rows.push(&[
                interface.as_str().into(),
                driver.name.as_str().into(),
                driver.version.as_str().into(),
                driver.firmware.as_str().into(),
                driver.bus.as_str().into(),
            ]);
        }
    }
    Ok(())
}

fn interfaces() -> io::Result<Vec<String>> {
    let names = fs::read_dir("/sys/class/net")?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    Ok(names)
}

/// What an interface does not support, or one that has just gone, is absent.
fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL)) => Ok(None),
        Err(error) => Err(error),
    }
}
