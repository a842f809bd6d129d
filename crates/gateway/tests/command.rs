//! The program: files, folders, standard input and exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const EXAMPLES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/kubernetes/gateway"
);

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_becket-gateway"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("standard input");
    stdin.write_all(input.as_bytes()).expect("standard input");
    drop(stdin);
    child.wait_with_output().expect("an output")
}

#[test]
fn a_folder_a_file_and_standard_input_lead_to_the_same_configuration() {
    let file = format!("{EXAMPLES}/gateway.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let stored = std::fs::read_to_string(format!("{EXAMPLES}/becket.toml")).unwrap();
    for (path, input) in [(EXAMPLES, ""), (&file, ""), ("-", &text)] {
        let output = run(&["render", "--assume-missing", path], input);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{path}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), stored, "{path}");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn conditions_exit_with_1_and_unreadable_files_and_wrong_arguments_with_2() {
    for (arguments, code, said) in [
        (
            &["render", EXAMPLES][..],
            1,
            "Secret web/app-tls is in none of the files",
        ),
        (
            &["render", "--class", "other", EXAMPLES],
            1,
            "at least one listener",
        ),
        (&["render", "/dev/null"], 1, "at least one listener"),
        (
            &["render", "/nonexistent/a.yaml"],
            2,
            "cannot read /nonexistent/a.yaml: ",
        ),
        (
            &["render", env!("CARGO_BIN_EXE_becket-gateway")],
            2,
            "cannot read ",
        ),
        (&["render"], 2, "<FILE>"),
        (&["render", "--colour", "-"], 2, "--colour"),
        (&[], 2, "Usage"),
    ] {
        let output = run(arguments, "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {text}");
        assert!(text.contains(said), "{arguments:?} {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
