//! A service manager that receives notifications (sd_notify).

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use crate::place::Place;
use crate::time::{PATIENCE, until};

/// Socket to which becket sends notifications.
#[derive(Debug)]
pub struct Notices {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Notices {
    /// Binds the socket `notify` in the folder of `place`.
    pub fn bind(place: &Place) -> Self {
        let path = place.path("notify");
        let socket = UnixDatagram::bind(&path).expect("a free path");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a time limit");
        Self { socket, path }
    }

    /// Sets the environment of a command so that it sends its notifications here.
    pub fn of(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", &self.path);
    }

    /// Waits for the next notification that contains a word, and returns it.
    #[track_caller]
    pub fn next(&self, word: &str) -> String {
        until(word, || {
            let mut buffer = [0; 4096];
            let length = self.socket.recv(&mut buffer).expect("a notice");
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            text.contains(word).then_some(text)
        })
    }
}
