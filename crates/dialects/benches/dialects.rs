//! What a dialect costs beside TOML, and what garbage costs: time, and bytes of the heap at once.
//!
//! Run with `cargo bench -p becket-dialects --bench dialects`. A reader turns text into the table that becomes a `File`; files that it
//! names are not opened, which costs the same whoever names them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use becket_config::file::File;
use becket_config::read::read;
use becket_dialects::{Dialect, Invocation};
use divan::{AllocProfiler, Bencher, black_box};

#[global_allocator]
static HEAP: AllocProfiler = AllocProfiler::system();

static NO_PARTS: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
const ENTRIES: usize = 10_000;
const GARBAGE: usize = 10 * 1024 * 1024;

fn main() {
    divan::main();
}

/// A line for each path.
fn lines(line: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for number in 0..ENTRIES {
        let path = format!("/etc/certs/{number}.example.org.pem");
        writeln!(text, "{}", line(&path)).expect("a longer text");
    }
    text
}

/// From the text to a `File` that has every certificate.
fn file_of(dialect: Dialect, text: &[u8]) -> File {
    let translation = dialect.translate(&Invocation::of_file("f"), text, Path::new("/"), &NO_PARTS);
    let file = read("", &translation.table).file.expect("a file");
    assert_eq!(file.listener[0].certificates.len(), ENTRIES);
    file
}

#[divan::bench(sample_count = 10)]
fn toml_entries(bencher: Bencher<'_, '_>) {
    let head =
        "[[listener]]\nname = \"main\"\nbackend = \"main\"\nbind = [\":443\"]\ncertificates = [";
    let text = format!("{head}\n{}]\n", lines(|path| format!("    {path:?},")));
    bencher.bench(|| File::parse(black_box(&text)).expect("a file"));
}

#[divan::bench(sample_count = 10)]
fn hitch_entries(bencher: Bencher<'_, '_>) {
    let text = lines(|path| format!("pem-file = {path:?}"));
    bencher.bench(|| file_of(Dialect::Hitch, black_box(text.as_bytes())));
}

#[divan::bench(sample_count = 10)]
fn stud_entries(bencher: Bencher<'_, '_>) {
    let text = lines(|path| format!("pem-file = {path:?}"));
    bencher.bench(|| file_of(Dialect::Stud, black_box(text.as_bytes())));
}

/// A service each, as many as a file of stunnel may have.
#[divan::bench(sample_count = 10)]
fn stunnel_services(bencher: Bencher<'_, '_>) {
    let mut text = String::new();
    for number in 0..4096 {
        let port = 10_000 + number;
        writeln!(
            text,
            "[s{number}]\naccept = {port}\nconnect = 80\ncert = {number}.pem"
        )
        .expect("a longer text");
    }
    bencher.bench(|| {
        let text = black_box(text.as_bytes());
        let invocation = Invocation::of_file("f");
        let translation = Dialect::Stunnel.translate(&invocation, text, Path::new("/"), &NO_PARTS);
        read("", &translation.table).file.expect("a file")
    });
}

/// What is repeated to ten megabytes.
const PARTS: [&str; 12] = [
    "=",
    "{",
    "\"",
    "/",
    "a = ",
    "a = { ",
    "x = y\n",
    "[a]\n",
    "\u{0}",
    "workers = 1\n",
    "socket = l:A=1\n",
    "# ",
];

#[divan::bench(sample_count = 1, args = PARTS)]
fn garbage(bencher: Bencher<'_, '_>, part: &str) {
    let text = part.repeat(GARBAGE / part.len());
    bencher.bench(|| {
        for dialect in Dialect::ALL {
            let text = black_box(text.as_bytes());
            black_box(dialect.translate(
                &Invocation::of_file("f"),
                text,
                Path::new("/"),
                &NO_PARTS,
            ));
        }
    });
}
