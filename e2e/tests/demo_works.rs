//! `becket demo`: one command, and the line that it prints works when it is pasted.

use std::process::Command;

use becket_e2e::{Becket, Place, Signal, Tool, finish, fresh_address, until};

/// Starts the demo with a state directory of its own; the banner.
fn demo(place: &Place, flags: &[&str]) -> (Becket, String) {
    until("a demo whose port nobody took first", || {
        let mut command = Becket::command(place, &[&["demo"], flags].concat());
        command.env("XDG_STATE_HOME", place.path("state"));
        let nowhere = fresh_address();
        let becket = Becket::spawn(command, place.folder(), nowhere, nowhere);
        let banner = until("a banner, or the end", || {
            let is_alive = becket.is_alive();
            let text = place.read("stdout.log");
            let is_whole = text.contains("end it:");
            (is_whole || !is_alive).then(|| is_whole.then_some(text))
        });
        // Between its look for a free port and its start another program may have taken that.
        let taken = || place.read("stderr.log").contains("in use");
        assert!(banner.is_some() || taken(), "{}", becket.logs());
        Some((becket, banner?))
    })
}

/// The line that the banner tells to try.
fn line<'a>(banner: &'a str, label: &str) -> &'a str {
    let line = banner.lines().find_map(|line| line.strip_prefix(label));
    line.expect("a line to try").trim()
}

#[test]
fn the_line_it_prints_works_and_the_display_counts_it() {
    let Some(_) = Tool::find("curl") else { return };
    let place = Place::new();
    let (mut becket, banner) = demo(&place, &[]);
    let run = |line: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("no_proxy", "*");
        finish(shell, "")
    };
    let tried = run(line(&banner, "try it:"));
    assert_eq!(tried.code, 0, "{banner}\n{}", tried.all());
    assert!(tried.stdout.contains("TLSv1.3"), "{}", tried.all());
    let bytes = line(&banner, "some bytes:").replace("1000000000", "1000000");
    let bytes = run(&format!("{bytes} -w '%{{size_download}}'"));
    assert!(bytes.stdout.contains("1000000"), "{}", bytes.all());
    until("a line that counts two connections", || {
        let text = place.read("stdout.log");
        text.lines()
            .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
            .any(|in_all| in_all == 2)
            .then_some(())
    });
    becket.signal(Signal::INT);
    assert_eq!(becket.ended(), Some(0));
}

#[test]
fn two_demos_take_two_ports_and_one_certificate() {
    let place = Place::new();
    let (first, one) = demo(&place, &[]);
    let (second, two) = demo(&place, &[]);
    let (one, two) = (
        line(&one, "try it:").to_owned(),
        line(&two, "try it:").to_owned(),
    );
    assert_ne!(one, two);
    let certificate = |line: &str| line.split(' ').nth(2).map(str::to_owned);
    assert_eq!(certificate(&one), certificate(&two));
    drop((first, second));
}
