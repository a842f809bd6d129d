//! Sessions that are copied to another process.

use super::*;

#[test]
fn a_session_is_copied_until_it_expires() {
    let table = table(10, 1);
    table.insert(A, b"one", session(1), lives(0, 100));
    let name = SessionName::new(A, b"one").unwrap();
    let found = Some((session(1), at(70)));
    assert_eq!(table.copy(&name, at(30)), found);
    assert_eq!(table.copy(&name, at(30)), found);
    assert_eq!(table.copy(&name, at(100)), None);
}

#[test]
fn an_observer_is_notified_of_insertions_and_removals() {
    let table = table(10, 1);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    table.insert(A, b"before", session(0), lives(0, 100));
    table.observe(Some(Arc::new(move |name: SessionName| {
        ears.lock().unwrap().push(name.id().to_vec());
    })));
    table.insert(A, b"one", session(1), lives(0, 100));
    table.insert(A, b"never", session(1), lives(0, 0));
    table.remove(A, b"gone");
    table.remove(A, b"before");
    table.observe(None);
    table.insert(A, b"after", session(1), lives(0, 100));
    assert_eq!(*heard.lock().unwrap(), [&b"one"[..], b"before"]);
}
