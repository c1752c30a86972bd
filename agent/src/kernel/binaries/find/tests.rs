use super::*;
use std::os::unix::fs::symlink;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kstrobe-find-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn file(&self, name: &str) -> &Folder {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("\x7fELF{name}")).unwrap();
        self
    }
    /// A process with a root folder of its own below `roots`, as /proc shows it.
    fn process(&self, pid: u32, namespace: &str, root: &str, exe: &str, maps: &str) {
        let folder = self.0.join("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(namespace, folder.join("ns/mnt")).unwrap();
        symlink(self.0.join(root), folder.join("root")).unwrap();
        symlink(exe, folder.join("exe")).unwrap();
        fs::write(folder.join("maps"), maps).unwrap();
    }
    /// The agent's process, whose root is the machine's.
    fn ours(&self) {
        self.process(1, "mnt:[1]", "/", "/sbin/init", "");
        symlink(self.0.join("proc/1"), self.0.join("proc/self")).unwrap();
    }
    fn processes(&self) -> ProcessSnapshot {
        ProcessSnapshot::look_at(&self.0.join("proc"))
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn find(processes: &ProcessSnapshot, path: &str, pid: Option<u32>) -> Result<Vec<String>, String> {
    let files = processes.find(&Binary { path: path.into(), pid }).map_err(|error| error.to_string())?;
    Ok(files.into_iter().map(|f| f.shown).collect())
}

#[test]
fn a_path_a_link_and_a_pattern() {
    let folder = Folder::new("paths");
    folder.file("opt/15/bin/db").file("opt/16/bin/db").file("opt/.hidden/bin/db").file("opt/16/lib/x");
    symlink(folder.path("opt/15/bin/db"), folder.path("link")).unwrap();
    fs::write(folder.path("opt/15/bin/dx"), "#!/bin/sh").unwrap();
    let processes = ProcessSnapshot::default();
    assert_eq!(find(&processes, &folder.path("opt/15/bin/db"), None).unwrap(), [folder.path("opt/15/bin/db")]);
    assert_eq!(find(&processes, &folder.path("link"), None).unwrap(), [folder.path("link")]);
    assert_eq!(
        find(&processes, &folder.path("opt/*/bin/d?"), None).unwrap(),
        [folder.path("opt/15/bin/db"), folder.path("opt/16/bin/db")]
    );
    let none = folder.path("opt/17/bin/db");
    assert_eq!(find(&processes, &none, None).unwrap_err(), format!("there is no file {none}"));
    let dir = folder.path("opt");
    assert_eq!(find(&processes, &dir, None).unwrap_err(), format!("{dir} is no regular file"));
    assert_eq!(
        find(&processes, "no-such-program", None).unwrap_err(),
        "no program or library `no-such-program` is found or running"
    );
}

#[test]
fn a_pattern_that_fits_too_much_is_refused() {
    let folder = Folder::new("many");
    for i in 0..=MAX_FILES {
        folder.file(&format!("f{i}"));
    }
    let pattern = folder.path("f*");
    let why = find(&ProcessSnapshot::default(), &pattern, None).unwrap_err();
    assert_eq!(why, format!("`{pattern}` fits more than 64 files and folders"));
}

#[test]
fn containers_are_looked_into_with_their_own_links() {
    let folder = Folder::new("containers");
    folder.file("a/usr/bin/db").file("b/opt/db").file("usr/bin/db");
    fs::create_dir_all(folder.path("b/usr/bin")).unwrap();
    // To the container /opt is its own; to us it would be the machine's.
    symlink("/opt/db", folder.path("b/usr/bin/db")).unwrap();
    folder.ours();
    folder.process(10, "mnt:[2]", "a", "/usr/bin/db", "");
    folder.process(11, "mnt:[2]", "a", "/usr/bin/db", "");
    folder.process(12, "mnt:[3]", "b", "/usr/bin/db", "");
    let processes = folder.processes();
    assert_eq!((processes.roots.len(), processes.programs.len()), (2, 3));
    let mut found = find(&processes, "/usr/bin/db", None).unwrap();
    found.sort();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0] == "/usr/bin/db of process 10" || found[0] == "/usr/bin/db of process 11", "{found:?}");
    assert_eq!(found[1], "/usr/bin/db of process 12");
    assert_eq!(find(&processes, "/usr/bin/db", Some(12)).unwrap(), ["/usr/bin/db of process 12"]);
    assert_eq!(find(&processes, "/usr/*/d*", Some(12)).unwrap(), ["/usr/bin/db of process 12"]);
    assert_eq!(find(&processes, "/bin/db", Some(12)).unwrap_err(), "process 12 has no file /bin/db");
    assert_eq!(find(&processes, "/bin/db", Some(99)).unwrap_err(), "there is no process 99");
}

#[test]
fn libraries_are_found_where_they_are_mapped() {
    let folder = Folder::new("mapped");
    folder.file("a/lib/libtest.so.6").file("a/lib/libtester.so.1");
    folder.ours();
    let maps = "\
5580-5590 r--p 00000000 fe:01 1                          /usr/bin/db
7f00-7f10 r--p 00000000 fe:01 2                          /lib/libtest.so.6
7f10-7f20 r-xp 00010000 fe:01 2                          /lib/libtest.so.6
7f20-7f30 r-xp 00000000 fe:01 3                          /lib/libtester.so.1
7f30-7f40 r-xp 00000000 00:00 0                          [vdso]
7f40-7f50 r-xp 00000000 fe:01 4                          /lib/libgone.so.1 (deleted)
";
    folder.process(10, "mnt:[2]", "a", "/usr/bin/db", maps);
    let gone = folder.0.join("proc/10/map_files");
    fs::create_dir_all(&gone).unwrap();
    fs::write(gone.join("7f40-7f50"), "x").unwrap();
    let processes = folder.processes();
    assert_eq!(find(&processes, "libtest", None).unwrap(), ["/lib/libtest.so.6 of process 10"]);
    assert_eq!(find(&processes, "libtest.so.6", Some(10)).unwrap(), ["/lib/libtest.so.6 of process 10"]);
    assert_eq!(find(&processes, "libgone", None).unwrap(), ["/lib/libgone.so.1 (deleted) of process 10"]);
    let why = find(&processes, "libnone", Some(10)).unwrap_err();
    assert_eq!(why, "process 10 has no program or library `libnone`");
    // What one process of a program has loaded, another may not have.
    let line = "7f50-7f60 r-xp 00000000 fe:01 5                          /lib/libother.so.2\n";
    folder.file("a/lib/libother.so.2").process(11, "mnt:[2]", "a", "/usr/bin/db", line);
    let processes = folder.processes();
    let found = find(&processes, "libother", None).unwrap();
    assert!(matches!(&found[..], [one] if one.starts_with("/lib/libother.so.2 of process 1")), "{found:?}");
    assert!(processes.code().any(|(process, code)| process.pid == 10 && code.inode == 3));
    // Known as long as the process has as much mapped as it had.
    let stat = |bytes: u32| {
        let before = "11 (a) b) S 1 11 11 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 777";
        fs::write(folder.0.join("proc/11/stat"), format!("{before} {bytes} 200\n")).unwrap();
    };
    stat(4096);
    let processes = folder.processes();
    assert_eq!(processes.processes.iter().find(|(p, _)| p.pid == 11).unwrap().0.start_and_bytes, (777, 4096));
    processes.read_code();
    fs::write(folder.0.join("proc/11/maps"), line.replace("libother", "libnewer")).unwrap();
    let processes = processes.look_again();
    assert!(find(&processes, "libother", None).is_ok() && find(&processes, "libnewer", Some(11)).is_err());
    stat(8192);
    let processes = processes.look_again();
    assert!(find(&processes, "libother", None).is_err());
}

#[test]
fn names_of_libraries() {
    for (file, name, is) in [
        ("libc.so.6", "libc", true),
        ("libc.so.6", "libc.so", true),
        ("libc.so.6", "libc.so.6", true),
        ("libc-2.31.so", "libc", true),
        ("libcrypt.so.1", "libc", false),
        ("libc_malloc_debug.so.0", "libc", false),
        ("libc.so.6", "lib", false),
        ("libc.so.60", "libc.so.6", false),
        ("libssl.so.3", "libssl", true),
        ("libssl.so.3", "libssl.so", true),
        ("python3.11", "python3.11", true),
        ("python3.11", "python3", false),
        ("libc.sog", "libc", false),
        ("libfoo-bar.so", "libfoo", false),
    ] {
        assert_eq!(is_named(file, name), is, "{file} {name}");
    }
}
