//! `becket top` shows a running becket in a terminal and restores the terminal at its end.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Signal, Trust, becket_program, eventually,
    finish,
};
use rustix::process::{Pid, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A terminal of 120 columns and 40 lines with `becket top` in it.
struct Screen {
    terminal: File,
    program: Child,
    keys: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn of(place: &Place) -> Self {
        let keys: OwnedFd =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let size = Winsize {
            ws_row: 40,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let end = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = Command::new(becket_program());
        command.args(["top", "--config", "becket.toml"]);
        command
            .current_dir(place.folder())
            .env("TERM", "xterm-256color");
        let program = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(keys);
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, into) = (keys.try_clone().unwrap(), Arc::clone(&written));
        // The thread ends when the terminal is closed.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            terminal,
            program,
            keys,
            written,
        }
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.contains(LocalModes::ECHO) && !modes.contains(LocalModes::ICANON)
    }

    fn has(&self, text: &str) -> bool {
        let written = self.written.lock().unwrap();
        String::from_utf8_lossy(&written).contains(text)
    }

    /// Waits until the program has ended, and asserts that the terminal is restored.
    #[track_caller]
    fn give_back(mut self) {
        assert_eq!(self.program.wait().unwrap().code(), Some(0));
        assert!(!self.is_raw());
        eventually("the alternate screen is left", || self.has("\u{1b}[?1049l"));
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn top_shows_clients_and_servers_and_exits_on_a_key_or_a_signal() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    let mut client =
        Client::connect_as(becket.web, &Trust::new(&place), "www.example.org").unwrap();
    client.ask(REQUEST).unwrap();
    let mut screen = Screen::of(&place);
    let server = format!("app/{}", backend.address);
    for part in [&*server, "CONDITION", "www.example.org", "127.0.0.1"] {
        eventually(part, || screen.has(part));
    }
    assert!(screen.is_raw() && screen.has("\u{1b}[?1049h"));
    screen.keys.write_all(b"p").unwrap();
    eventually("the key is handled", || screen.has("paused"));
    screen.keys.write_all(b"q").unwrap();
    screen.give_back();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let screen = Screen::of(&place);
        eventually("the screen is drawn", || screen.has("CONDITION"));
        let pid = i32::try_from(screen.program.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        screen.give_back();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn top_fails_without_a_terminal() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let _becket = Becket::start(&place, &Shape::new(backend.address));
    let mut command = Command::new(becket_program());
    command
        .args(["top", "--config", "becket.toml"])
        .current_dir(place.folder());
    let found = finish(command, "");
    assert_eq!((found.code, &*found.stdout), (2, ""), "{}", found.all());
    assert!(
        found.stderr.contains("is not a terminal"),
        "{}",
        found.stderr
    );
}
