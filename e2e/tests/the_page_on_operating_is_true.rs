//! `docs/operating.md`: each of its commands is run, in its order, and prints what the page says.
//!
//! Paths and addresses of the page stand for those of the test. Of what is printed, numbers, dates and the width of columns are
//! not compared.

use std::process::Command;

use becket_e2e::{Backend, Becket, Key, Place, Shape, becket_program, finish};

/// The blocks of the page with this word behind their fence.
fn blocks<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    let fence = format!("```{kind}\n");
    let blocks = page.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

/// What is compared: digits are one digit, white space is one space; times that pass and digests are gone.
fn masked(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        for (begin, end) in [
            ("serving for ", ","),
            ("next in ", "\n"),
            ("policy web (", ")"),
        ] {
            if let Some((before, rest)) = words.split_once(begin) {
                let after = rest.split_once(end).map_or("", |(_, after)| after);
                words = format!("{before}{begin}{end}{after}");
            }
        }
        let mut masked = String::new();
        for char in words.trim().chars() {
            if !char.is_ascii_digit() {
                masked.push(char);
            } else if !masked.ends_with('0') {
                masked.push('0');
            }
        }
        masked
    };
    let lines = text.lines().map(line);
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_command_prints_what_the_page_says() {
    let page = include_str!("../../docs/operating.md");
    let place = Place::new();
    let servers = ["one", "two", "three"].map(Backend::http);
    let shape = Shape::new(servers[0].address);
    let mut stand_ins = vec![
        ("/run/becket/admin.sock".to_owned(), "admin.sock".to_owned()),
        (
            "/etc/becket/".to_owned(),
            format!("{}/", place.folder().display()),
        ),
        ("0.0.0.0:443".to_owned(), shape.web.to_string()),
        ("\":443\"".to_owned(), format!("\"{}\"", shape.web)),
    ];
    for (number, server) in servers.iter().enumerate() {
        stand_ins.push((
            format!("10.0.0.{}:8080", number + 1),
            server.address.to_string(),
        ));
    }
    let real = |text: &str| {
        let mut text = text.to_owned();
        for (shown, real) in &stand_ins {
            text = text.replace(shown, real);
        }
        text
    };
    for file in ["site.pem", "renewed.pem", "good.pem"] {
        let bundle = place.issue(file, &["www.example.org"], Key::Ecdsa);
        place.write("broken.pem", &bundle.certificate);
    }
    place.issue("in-memory.pem", &["shop.example.org"], Key::Ecdsa);
    let [toml] = blocks(page, "toml")[..] else {
        panic!("one configuration");
    };
    let admin = format!("[admin]\naddress = \"{}\"", shape.admin);
    let toml = real(toml).replace("[admin]", &admin);
    place.write(
        "becket.toml",
        &toml.replace("user = \"becket\"", "workers = 2"),
    );
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();

    let folder = becket_program().parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for block in blocks(page, "console") {
        for step in block.split("$ ").skip(1) {
            let (line, printed) = step.split_once('\n').unwrap();
            // The page speaks to the usual socket.
            let asked = real(line)
                .replace("becket status", "becket status --socket admin.sock")
                .replace("becket reload", "becket reload --socket admin.sock")
                .replace("becket ctl", "becket ctl --socket admin.sock");
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec 2>&1; {asked}")]);
            shell.current_dir(place.folder()).env("PATH", &path);
            let found = finish(shell, "");
            let expected = masked(&real(printed));
            assert_eq!(masked(&found.stdout), expected, "{line}\n{}", found.all());
            count += 1;
        }
    }
    assert!(count > 15, "{count} commands");
    assert_eq!(becket.ended(), Some(4));
}
