//! Log lines on standard error have a priority prefix if the journal reads them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use becket_e2e::{Backend, Becket, Place, Shape, until};

#[test]
#[ignore = "slow: .ci/run test"]
fn the_journal_gets_priorities_and_a_file_does_not() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let text = shape.text();
    let file = "file = \"becket.log\"\n";
    assert!(text.contains(file));
    place.write("becket.toml", &text.replace(file, ""));
    for is_journal in [true, false] {
        let mut command = Becket::command(&place, &["run", "--config", "becket.toml"]);
        // Becket recognises the journal by device and inode of its stream.
        let stream = fs::metadata(place.path("stderr.log")).unwrap();
        let inode = stream.ino() + u64::from(!is_journal);
        command.env("JOURNAL_STREAM", format!("{}:{inode}", stream.dev()));
        let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
        becket.ready();
        let log = until("a line", || {
            Some(place.read("stderr.log")).filter(|it| it.contains("serving"))
        });
        drop(becket);
        assert_eq!(log.contains("<6>{\"level\":\"INFO\""), is_journal, "{log}");
        assert_eq!(log.contains("\"time\""), !is_journal, "{log}");
    }
}
