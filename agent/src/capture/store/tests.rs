use super::*;
use serde_json::json;

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kstrobe-store-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NO_LIMITS: Limits = Limits { max_total_bytes: u64::MAX, ttl: Duration::ZERO };

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn begin(store: &mut Store, bytes: u64, seconds: u64) -> Result<(Id, PathBuf), StoreError> {
    let trigger = Trigger { kind: "api".into(), ..Trigger::default() };
    store.begin(json!({"events": ["sched"]}), trigger, bytes, at(seconds))
}

/// A capture of so many bytes that has ended.
fn done(store: &mut Store, bytes: usize, seconds: u64) -> Id {
    let (id, path) = begin(store, bytes as u64, seconds).unwrap();
    fs::write(path.join("trace.dat"), vec![7; bytes]).unwrap();
    let recorded = Recorded { formats: vec![Format::Dat], records: 3, lost: 1, notes: vec!["a".into()], clock: None };
    store.end(&id, Ok(recorded), false, at(seconds + 1)).unwrap();
    id
}

fn ids(store: &Store) -> Vec<String> {
    store.list().map(|capture| capture.id.clone()).collect()
}

fn files(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Opens a store whose interrupted captures left nothing.
fn open(folder: &Path, limits: Limits) -> io::Result<Store> {
    Store::open(folder, limits, &|_| Err(Error::Absent("nothing is left")))
}

#[test]
fn a_capture_is_found_again() {
    let folder = Folder::new("again");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    let id = done(&mut store, 100, 0);
    let before = store.get(&id).unwrap().clone();
    assert_eq!((before.state, before.bytes, before.records, before.lost), (State::Done, 100, 3, 1));
    assert_eq!(before.started, "2023-11-14T22:13:20.000000Z");
    assert!(id.to_string().starts_with("20231114T221320000Z-"), "{id}");
    drop(store);
    let store = open(&folder.0, NO_LIMITS).unwrap();
    assert_eq!(store.get(&id), Some(&before));
    let (mut file, bytes) = store.open_file(&id, Format::Dat).unwrap().unwrap();
    let mut text = Vec::new();
    file.read_to_end(&mut text).unwrap();
    assert_eq!((text, bytes), (vec![7; 100], 100));
    assert!(store.open_file(&id, Format::Text).unwrap().is_none());
}

#[test]
fn only_the_owner_can_read_the_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("modes");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    let id = done(&mut store, 1, 0);
    for path in [folder.0.clone(), store.path(&id)] {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
    }
}

#[test]
fn an_interrupted_capture_has_what_was_rescued() {
    let folder = Folder::new("rescued");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    let (id, path) = begin(&mut store, 10, 0).unwrap();
    fs::write(path.join("pages-0"), "pages").unwrap();
    drop(store);
    let rescue = |folder: &Path| {
        fs::rename(folder.join("pages-0"), folder.join("trace.dat")).unwrap();
        Ok(Recorded { formats: vec![Format::Dat], records: 3, lost: 1, ..Recorded::default() })
    };
    let store = Store::open(&folder.0, NO_LIMITS, &rescue).unwrap();
    let capture = store.get(&id).unwrap();
    assert_eq!((capture.state, capture.records, capture.lost, capture.bytes), (State::Done, 3, 1, 5));
    assert!(!capture.ended.is_empty() && capture.error.is_empty());
    assert_eq!(files(&path), ["capture.json", "trace.dat"]);
}

#[test]
fn what_was_running_when_the_agent_died_has_failed_and_its_files_are_gone() {
    let folder = Folder::new("interrupted");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    let (id, path) = begin(&mut store, 10, 0).unwrap();
    fs::write(path.join("trace.dat"), "half").unwrap();
    fs::write(path.join("other.part"), "half").unwrap();
    fs::create_dir(path.join("folder")).unwrap();
    drop(store);
    // An agent that died before it had written `capture.json`, one of which half was removed, and what is not ours.
    let orphan = folder.0.join("20231114T221320000Z-000000");
    fs::create_dir(&orphan).unwrap();
    fs::write(folder.0.join("20231114T221320001Z-000000"), "a file").unwrap();
    fs::create_dir(folder.0.join("lost+found")).unwrap();
    let store = open(&folder.0, NO_LIMITS).unwrap();
    let capture = store.get(&id).unwrap();
    assert_eq!(capture.state, State::Failed);
    assert!(capture.error.starts_with("interrupted"), "{}", capture.error);
    assert_eq!(files(&path), ["capture.json"]);
    assert!(!orphan.exists() && folder.0.join("lost+found").exists());
    assert_eq!(ids(&store), [id.to_string()]);
    assert!(matches!(store.open_file(&id, Format::Dat), Ok(None)));
}

#[test]
fn a_description_of_another_capture_is_none() {
    let folder = Folder::new("swapped");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    let (one, two) = (done(&mut store, 1, 0), done(&mut store, 1, 1));
    let (from, to) = (store.path(&one), store.path(&two));
    drop(store);
    fs::copy(from.join(ABOUT), to.join(ABOUT)).unwrap();
    assert_eq!(ids(&open(&folder.0, NO_LIMITS).unwrap()), [one.to_string()]);
}

#[test]
fn a_capture_that_failed_keeps_no_files() {
    let folder = Folder::new("failed");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    let (id, path) = begin(&mut store, 10, 0).unwrap();
    fs::write(path.join("trace.dat"), "half").unwrap();
    let ended = store.end(&id, Err(&Error::Absent("no tracefs")), false, at(1)).unwrap();
    assert_eq!((ended.state, ended.error.as_str(), ended.bytes), (State::Failed, "no tracefs", 0));
    assert_eq!(files(&path), ["capture.json"]);
    // Files that are not a format of a recorded capture are removed.
    let (id, path) = begin(&mut store, 10, 2).unwrap();
    fs::write(path.join("trace.dat"), "whole").unwrap();
    fs::write(path.join("cpu0.raw"), "pages").unwrap();
    let recorded = Recorded { formats: vec![Format::Dat, Format::Text], ..Recorded::default() };
    let ended = store.end(&id, Ok(recorded), true, at(3)).unwrap();
    assert_eq!((ended.state, ended.bytes, ended.files.len()), (State::Cancelled, 5, 1));
    assert_eq!(files(&path), ["capture.json", "trace.dat"]);
}

#[test]
fn the_oldest_make_room_and_one_that_runs_never() {
    let folder = Folder::new("quota");
    let mut store = open(&folder.0, Limits { max_total_bytes: 100, ..NO_LIMITS }).unwrap();
    let one = done(&mut store, 40, 0);
    let two = done(&mut store, 40, 1);
    let (running, _) = begin(&mut store, 30, 2).unwrap();
    assert!(store.get(&one).is_none() && store.get(&two).is_some());
    // 30 are promised to it: nothing else has room for 71, and nothing is removed for that.
    assert!(matches!(begin(&mut store, 71, 3), Err(StoreError::Full(100))));
    assert!(store.get(&running).is_some());
    assert!(matches!(store.remove(&running), Err(StoreError::Running)));
    assert!(matches!(store.open_file(&running, Format::Dat), Err(StoreError::Running)));
    assert_eq!(store.evicted(), Evicted { ttl: 0, quota: 1 });
    assert_eq!(files(&folder.0), [".lock".to_owned(), two.to_string(), running.to_string()]);

    // What writes more than was promised stays, and others go for it.
    let path = store.path(&running);
    fs::write(path.join("trace.dat"), vec![0; 90]).unwrap();
    let (other, _) = begin(&mut store, 20, 4).unwrap();
    store.end(&other, Err(&Error::Absent("x")), false, at(5)).unwrap();
    store.end(&running, Ok(Recorded { formats: vec![Format::Dat], ..Recorded::default() }), false, at(5)).unwrap();
    assert_eq!(store.bytes(), 90);
    fs::write(path.join("trace.txt"), vec![0; 20]).unwrap();
    store.add(&running, Format::Text).unwrap();
    assert_eq!((ids(&store), store.bytes()), (vec![running.to_string()], 110));
}

#[test]
fn the_number_of_captures_is_bounded_too() {
    let folder = Folder::new("many");
    let mut store = open(&folder.0, NO_LIMITS).unwrap();
    for n in 0..MAX_CAPTURES as u64 + 5 {
        let (id, _) = begin(&mut store, 0, n).unwrap();
        store.end(&id, Err(&Error::Absent("x")), false, at(n)).unwrap();
    }
    assert!(store.list().count() <= MAX_CAPTURES);
    assert!(store.evicted().quota >= 5);
}

#[test]
fn old_captures_go() {
    let folder = Folder::new("ttl");
    let mut store = open(&folder.0, Limits { ttl: Duration::from_secs(10), ..NO_LIMITS }).unwrap();
    let one = done(&mut store, 1, 0);
    let (running, _) = begin(&mut store, 1, 1).unwrap();
    let two = done(&mut store, 1, 5);
    store.expire(at(10));
    assert!(store.get(&one).is_some(), "not older than its time");
    store.expire(at(12));
    assert_eq!(ids(&store), [running.to_string(), two.to_string()]);
    assert_eq!(store.evicted(), Evicted { ttl: 1, quota: 0 });
}

#[test]
fn two_agents_cannot_share_a_folder() {
    let folder = Folder::new("lock");
    let store = open(&folder.0, NO_LIMITS).unwrap();
    let error = open(&folder.0, NO_LIMITS).err().unwrap();
    assert!(error.to_string().contains("another agent uses it"), "{error}");
    drop(store);
    open(&folder.0, NO_LIMITS).unwrap();
}

#[test]
fn the_error_names_a_folder_that_cannot_be_made() {
    let error = open(Path::new("/proc/none/captures"), NO_LIMITS).err().unwrap();
    assert!(error.to_string().starts_with("/proc/none/captures: "), "{error}");
}

#[test]
fn only_what_was_given_out_is_an_id() {
    let id = Id::new(at(0));
    assert_eq!(Id::parse(&id.to_string()), Some(id));
    for hostile in [
        "",
        ".",
        "..",
        "../x",
        "../../../../../../etc/pass",
        "20231114T221320000Z-00000/",
        "20231114T221320000Z-00000G",
        "20231114T221320000Z-0000000",
        "20231114T221320000Z-00000\u{e9}",
        "2023111\0T221320000Z-000000",
        "20231114t221320000z-000000",
        "/0231114T221320000Z-000000",
    ] {
        assert_eq!(Id::parse(hostile), None, "{hostile:?}");
    }
    let ids: Vec<Id> = (0..50).map(|n| Id::new(at(n))).collect();
    assert!(ids.is_sorted());
    // At one moment chance keeps them apart.
    let same: std::collections::HashSet<Id> = (0..50).map(|_| Id::new(at(0))).collect();
    assert!(same.len() > 45, "{}", same.len());
}
