//! A service manager that receives notifications (sd_notify).

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::place::Place;
use crate::time::{PATIENCE, until};

/// Socket to which becket sends notifications. A thread reads them at once, because becket drops notifications while the
/// socket is full.
#[derive(Debug)]
pub struct Notices {
    notices: Receiver<String>,
    path: PathBuf,
}

impl Notices {
    /// Binds the socket `notify` in the folder of `place`.
    pub fn bind(place: &Place) -> Self {
        let path = place.path("notify");
        let socket = UnixDatagram::bind(&path).expect("a free path");
        let (sender, notices) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Self { notices, path }
    }

    /// Sets the environment of a command so that it sends its notifications here.
    pub fn of(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", &self.path);
    }

    /// Waits for the next notification that contains a word, and returns it.
    #[track_caller]
    pub fn next(&self, word: &str) -> String {
        until(word, || {
            let text = self.notices.recv_timeout(PATIENCE).expect("a notice");
            text.contains(word).then_some(text)
        })
    }
}
