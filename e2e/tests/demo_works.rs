//! `becket demo` and `becket files` start with a single command, and the printed command line works.

use std::fs;
use std::process::Command;

use becket_e2e::{Becket, Finished, Place, Signal, Tool, finish, fresh_address, until};

/// Starts becket with its own state directory and returns it with its banner.
fn start(place: &Place, arguments: &[&str]) -> (Becket, String) {
    until("a demo on a free port", || {
        let mut command = Becket::command(place, arguments);
        command.env("XDG_STATE_HOME", place.path("state"));
        let nowhere = fresh_address();
        let becket = Becket::spawn(command, place.folder(), nowhere, nowhere);
        let banner = until("a banner, or the end", || {
            let is_alive = becket.is_alive();
            let text = place.read("stdout.log");
            let is_whole = text.contains("end it:");
            (is_whole || !is_alive).then(|| is_whole.then_some(text))
        });
        // Another program may have bound the port between the search for a free one and the start.
        let taken = || place.read("stderr.log").contains("in use");
        assert!(banner.is_some() || taken(), "{}", becket.logs());
        Some((becket, banner?))
    })
}

/// Returns the command line in the banner after this label.
fn line<'a>(banner: &'a str, label: &str) -> &'a str {
    let line = banner.lines().find_map(|line| line.strip_prefix(label));
    line.expect("a line to try").trim()
}

/// Runs a command line in a shell.
fn run(line: &str) -> Finished {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).env("no_proxy", "*");
    finish(shell, "")
}

#[test]
fn the_printed_command_works_and_the_counters_include_it() {
    let Some(_) = Tool::find("curl") else { return };
    let place = Place::new();
    let (mut becket, banner) = start(&place, &["demo"]);
    let tried = run(line(&banner, "try it:"));
    assert_eq!(tried.code, 0, "{banner}\n{}", tried.all());
    assert!(tried.stdout.contains("TLSv1.3"), "{}", tried.all());
    let bytes = line(&banner, "some bytes:").replace("1000000000", "1000000");
    let bytes = run(&format!("{bytes} -w '%{{size_download}}'"));
    assert!(bytes.stdout.contains("1000000"), "{}", bytes.all());
    let twice = run(line(&banner, "resumed:"));
    assert_eq!(twice.code, 0, "{banner}\n{}", twice.all());
    let page = run(&format!("curl -sS {}", line(&banner, "status page:")));
    assert!(page.stdout.contains("<html"), "{}", page.all());
    until("a line that counts four connections", || {
        let text = place.read("stdout.log");
        text.lines()
            .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
            .any(|total| total == 4)
            .then_some(())
    });
    becket.signal(Signal::INT);
    assert_eq!(becket.ended(), Some(0));
    let text = place.read("stdout.log");
    let summary = "\ntotal: connections 4; handshakes: full 3, resumed 1, failed 0; bytes: in ";
    assert!(text.contains(summary), "{text}");
    let log = place.read("stderr.log");
    assert!(!log.contains("running as root"), "{log}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_folder_is_served_by_one_command_and_every_request_is_logged() {
    let Some(_) = Tool::find("curl") else { return };
    let place = Place::new();
    fs::create_dir_all(place.path("www/sub")).unwrap();
    place.write("www/index.html", "<p>Welcome");
    place.write("www/sub/a.txt", "alphabet");
    for tls in [&["files", "www"][..], &["files", "--plain", "www"]] {
        let (mut becket, banner) = start(&place, tls);
        let try_it = line(&banner, "try it:");
        let tried = run(try_it);
        assert_eq!(tried.stdout, "<p>Welcome", "{banner}\n{}", tried.all());
        let part = run(&format!("{try_it}sub/a.txt -r 5-"));
        assert_eq!(part.stdout, "bet", "{}", part.all());
        let none = run(&format!("{try_it}sub/ -o /dev/null -w '%{{http_code}}'"));
        assert_eq!(none.stdout, "403", "{}", none.all());
        until("a line for each request", || {
            let text = place.read("stdout.log");
            let shown = |start: &str| text.lines().any(|line| line.starts_with(start));
            let all = shown("GET /sub/a.txt 206 3 B ") && shown("GET /sub/ 403 ");
            all.then_some(())
        });
        becket.signal(Signal::INT);
        assert_eq!(becket.ended(), Some(0));
    }
    let nowhere = finish(Becket::command(&place, &["files", "nowhere"]), "");
    assert_eq!(nowhere.code, 2, "{}", nowhere.all());
    let said = nowhere.all();
    assert!(
        said.contains("DIR") && said.contains("no such file"),
        "{said}"
    );
}
