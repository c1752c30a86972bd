use super::*;
use std::io::Read;

/// A service that records what a test's own recorder writes.
fn service(name: &str, change: impl FnOnce(&mut Captures), record: Box<Record>) -> Arc<Service> {
    service_that_tells(name, change, record, Box::new(|_, _, _| {}))
}

fn service_that_tells(
    name: &str,
    change: impl FnOnce(&mut Captures),
    record: Box<Record>,
    on_finished: Box<OnFinished>,
) -> Arc<Service> {
    let dir = std::env::temp_dir().join(format!("kstrobe-service-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut settings = Captures { dir: dir.display().to_string(), ..Captures::default() };
    change(&mut settings);
    let convert = |from: &Path, format: Format, to: &Path| match format {
        Format::Text => std::fs::copy(from, to).map(|_| ()).map_err(Error::Convert),
        Format::Pprof => panic!("on purpose"),
        _ => Err(Error::Absent("nothing to fold")),
    };
    let rescue = Box::new(|_: &Path| Err(Error::Absent("nothing to rescue")));
    Service::open(settings, Engine { record, rescue, convert: Box::new(convert), on_finished }).unwrap()
}

fn trigger() -> Trigger {
    Trigger { kind: "api".into(), ..Trigger::default() }
}

fn request() -> Request {
    Request { max_bytes: Some(1000), ..Request::default() }
}

/// Writes and waits until it is stopped.
fn until_stopped(_: &Request, folder: &Path, stop: &Stop) -> Result<Recorded, Error> {
    std::fs::write(folder.join("trace.dat"), "some")?;
    let begun = Instant::now();
    while !stop.is_stopped() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(Recorded { formats: vec![Format::Dat], records: 4, ..Recorded::default() })
}

fn at_once(_: &Request, folder: &Path, _: &Stop) -> Result<Recorded, Error> {
    std::fs::write(folder.join("trace.dat"), "all of it")?;
    Ok(Recorded { formats: vec![Format::Dat], ..Recorded::default() })
}

fn ended(service: &Service, id: &Id) -> Capture {
    let begun = Instant::now();
    while service.usage().running > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it never ends");
        std::thread::sleep(Duration::from_millis(2));
    }
    service.get(id).unwrap()
}

fn text((mut file, bytes): (File, u64)) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text.len() as u64, bytes);
    text
}

#[test]
fn a_capture_runs_is_counted_and_can_be_had_in_other_forms() {
    let service = service("runs", |_| {}, Box::new(at_once));
    let id = service.start(request(), trigger()).unwrap();
    assert_eq!(ended(&service, &id).state, State::Done);
    assert_eq!(text(service.file(&id, Format::Dat).unwrap()), "all of it");
    assert_eq!(text(service.file(&id, Format::Text).unwrap()), "all of it");
    assert_eq!(service.get(&id).unwrap().bytes, 18, "what was made is kept");
    assert!(service.file(&id, Format::Folded).unwrap_err().to_string().contains("no folded of it: nothing to fold"));
    assert!(service.file(&id, Format::Pprof).unwrap_err().to_string().contains("failed"));
    let used = service.usage();
    assert_eq!((used.running, used.stored_bytes), (0, 18));
    assert_eq!(used.ended, [("api".to_owned(), "done", 1)]);
    service.remove(&id).unwrap();
    assert!(matches!(service.file(&id, Format::Dat), Err(StoreError::NoSuch)));
}

#[test]
fn one_at_a_time_and_cancelled_it_keeps_what_it_has() {
    let service = service("cancel", |_| {}, Box::new(until_stopped));
    let id = service.start(request(), trigger()).unwrap();
    let refused = service.start(request(), trigger()).unwrap_err();
    assert!(matches!(&refused, Refusal::Busy(Busy(1))), "{refused}");
    assert!(matches!(service.file(&id, Format::Dat), Err(StoreError::Running)));
    assert!(matches!(service.remove(&id), Err(StoreError::Running)));
    assert!(service.cancel(&id).unwrap());
    let capture = ended(&service, &id);
    assert_eq!((capture.state, capture.records), (State::Cancelled, 4));
    assert_eq!(text(service.file(&id, Format::Dat).unwrap()), "some");
    assert!(!service.cancel(&id).unwrap(), "it has ended");
    let counts = service.usage().ended;
    assert_eq!(counts, [("api".to_owned(), "cancelled", 1), ("api".to_owned(), "refused", 1)]);
}

#[test]
fn captures_that_run_keep_their_room() {
    let two = |settings: &mut Captures| (settings.max_concurrent, settings.max_total_bytes) = (2, 1500);
    let service = service("room", two, Box::new(until_stopped));
    service.start(request(), trigger()).unwrap();
    let refused = service.start(request(), trigger()).unwrap_err();
    assert!(matches!(&refused, Refusal::Full(StoreError::Full(1500))), "{refused}");
    service.close(Duration::from_secs(20));
    assert_eq!(service.list()[0].state, State::Cancelled);
}

#[test]
fn a_recorder_that_panics_is_a_capture_that_failed() {
    let service = service("panic", |_| {}, Box::new(|_, _, _| panic!("on purpose")));
    let id = service.start(request(), trigger()).unwrap();
    let capture = ended(&service, &id);
    assert_eq!(capture.state, State::Failed);
    assert!(capture.error.contains("please report it"), "{}", capture.error);
    assert_eq!(service.usage().ended, [("api".to_owned(), "failed", 1)]);
}

#[test]
fn finish_callbacks_run_and_are_waited_for() {
    let record = |request: &Request, folder: &Path, stop: &Stop| match &request.tracer {
        None => at_once(request, folder, stop),
        Some(_) => Err(Error::Absent("on purpose")),
    };
    let failing = Request { tracer: Some("no".into()), ..request() };
    let cases = [("tells", request(), State::Done, true), ("tells-failed", failing, State::Failed, false)];
    for (name, request, state, there) in cases {
        let (send, finished) = std::sync::mpsc::channel();
        let hear = move |capture: &Capture, folder: &Path, (began, ended): (SystemTime, SystemTime)| {
            // It stops late: the end of the service waits for it.
            std::thread::sleep(Duration::from_millis(300));
            let there = folder.join(Format::Dat.file()).is_file();
            send.send((capture.id.clone(), capture.state, there, began <= ended)).unwrap();
            assert!(capture.state != State::Failed, "a panic in the callback does not fail the capture");
        };
        let service = service_that_tells(name, |_| {}, Box::new(record), Box::new(hear));
        let id = service.start(request.clone(), trigger()).unwrap();
        ended(&service, &id);
        service.close(Duration::from_secs(20));
        assert_eq!(finished.try_recv(), Ok((id.to_string(), state, there, true)));
        let refused = service.start(request, trigger()).unwrap_err();
        assert!(matches!(&refused, Refusal::Closed), "{refused}");
    }
}
