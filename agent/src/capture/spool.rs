//! Pages of the ring buffer into files, a thread for each CPU. The files have names, so that they outlive a recorder that is killed.

use crate::kernel::instance::{Instance, PageReader};
use kstrobe_fleet::private;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a reader sleeps when it was woken and no page is full yet: kernels before 6.1 wake it for any record.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest time until a reader looks whether it is to end.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Returns the file, and the error of an incomplete one.
type Reader = JoinHandle<(File, io::Result<()>)>;

/// Files that pages go to.
#[derive(Debug)]
pub struct Spool {
    /// By CPU.
    readers: Vec<(u32, Reader)>,
    /// Removed at the end.
    files: Vec<PathBuf>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    instance: Arc<Instance>,
    page_bytes: usize,
    most_bytes: u64,
    /// Bytes that there is still room for.
    room: AtomicU64,
    /// Bytes so far.
    bytes: AtomicU64,
    full: AtomicBool,
    failed: AtomicBool,
    /// Tracing is off: the readers take the remaining pages and end.
    end: AtomicBool,
}

/// The pages of one CPU.
pub struct Taken {
    pub cpu: u32,
    /// Whole pages.
    pub pages: Vec<u8>,
    /// The error, if pages are missing.
    pub fault: Option<String>,
}

impl Spool {
    /// Starts a reader for each CPU. At the limit of bytes, a reader switches tracing off.
    pub fn start(instance: &Arc<Instance>, page_bytes: usize, folder: &Path, most_bytes: u64) -> io::Result<Spool> {
        let shared = Arc::new(Shared {
            instance: instance.clone(),
            page_bytes,
            most_bytes,
            room: most_bytes.into(),
            bytes: 0.into(),
            full: false.into(),
            failed: false.into(),
            end: false.into(),
        });
        let mut spool = Spool { readers: Vec::new(), files: Vec::new(), shared };
        for cpu in instance.cpus()? {
            let path = folder.join(format!("{PAGES}{cpu}"));
            let file = page_file(&path)?;
            spool.files.push(path);
            let reader = instance.reader(cpu, page_bytes)?;
            let shared = spool.shared.clone();
            let work = move || {
                let result = shared.pump(reader, &file);
                shared.failed.fetch_or(result.is_err(), Relaxed);
                (file, result)
            };
            let thread = std::thread::Builder::new().name(format!("pages-{cpu}")).spawn(work)?;
            spool.readers.push((cpu, thread));
        }
        Ok(spool)
    }

    /// Bytes of pages so far.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// Whether the limit of bytes is reached.
    pub fn is_full(&self) -> bool {
        self.shared.is_full()
    }

    /// Whether a reader has failed.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Relaxed)
    }

    /// Reads the remaining pages after tracing was switched off, and returns all files.
    pub fn finish(mut self) -> io::Result<Vec<Taken>> {
        self.shared.end.store(true, Relaxed);
        let mut all = Vec::new();
        for (cpu, reader) in std::mem::take(&mut self.readers) {
            let (mut file, result) = reader.join().map_err(|_| io::Error::other("a reader of pages panicked"))?;
            let mut pages = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut pages)?;
            // A file system that was full has taken a part of a page.
            pages.truncate(pages.len() - pages.len() % self.shared.page_bytes);
            all.push(Taken { cpu, pages, fault: result.err().map(|error| error.to_string()) });
        }
        Ok(all)
    }
}

impl Drop for Spool {
    /// Readers end soon.
    fn drop(&mut self) {
        self.shared.full.store(true, Relaxed);
        self.shared.end.store(true, Relaxed);
        for (_, reader) in std::mem::take(&mut self.readers) {
            let _ = reader.join();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Shared {
    fn pump(&self, mut reader: PageReader, mut file: &File) -> io::Result<()> {
        let mut page = vec![0; self.page_bytes];
        loop {
            let last = self.end.load(Relaxed);
            while self.take(|most| reader.splice_pages(file, most))? {}
            if last {
                // The page that is written to right now is never spliced.
                let mut read =
                    |_| Ok(if reader.read_page(&mut page)? { file.write_all(&page).map(|()| page.len())? } else { 0 });
                while self.take(&mut read)? {}
                return Ok(());
            }
            if self.is_full() {
                return Ok(());
            }
            if reader.wait(LONGEST_WAIT)? {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Moves at most as many pages as there is room for; false when there was nothing to move, or no room.
    fn take(&self, mut moved: impl FnMut(usize) -> io::Result<usize>) -> io::Result<bool> {
        /// Pages that a reader keeps room for at a time.
        const AT_ONCE: u64 = 16;
        let page = self.page_bytes as u64;
        let mut wanted = 0;
        while wanted == 0 {
            let _ = self.room.fetch_update(Relaxed, Relaxed, |room| {
                wanted = (room / page).min(AT_ONCE) * page;
                Some(room - wanted)
            });
            if wanted == 0 && self.bytes() + page > self.most_bytes {
                if !self.full.swap(true, Relaxed) {
                    self.instance.set_on(false)?;
                }
                return Ok(false);
            }
            if wanted == 0 {
                // Other readers keep it, and give back what they do not need.
                std::thread::yield_now();
            }
        }
        let result = moved((wanted / page) as usize);
        let bytes = result.as_ref().map_or(0, |bytes| *bytes as u64);
        self.bytes.fetch_add(bytes, Relaxed);
        self.room.fetch_add(wanted.saturating_sub(bytes), Relaxed);
        result.map(|bytes| bytes > 0)
    }
}

/// What the name of a file of pages begins with; the CPU's number follows.
const PAGES: &str = "pages-";

fn page_file(path: &Path) -> io::Result<File> {
    let opened = File::options().read(true).write(true).create_new(true).mode(private::MODE).open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Whole pages by CPU, of a recorder that was killed. Of a page that it was writing, the part is left out.
pub fn left_in(folder: &Path, page_bytes: usize) -> io::Result<BTreeMap<u32, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let cpu = name.to_str().and_then(|name| name.strip_prefix(PAGES)?.parse().ok());
        let Some(cpu) = cpu else { continue };
        let mut pages = std::fs::read(entry.path())?;
        pages.truncate(pages.len() - pages.len() % page_bytes.max(1));
        all.insert(cpu, pages);
    }
    Ok(all)
}
