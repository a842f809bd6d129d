//! The agent: this program, executed once more to use the keys on one token.
//!
//! It has what the serving process lacks: the module, with whatever files, sockets and threads that makes for itself, and the PIN.
//! Everything that it loads is in the [`Setup`] of the process that started it. The serving process can ask for a signature with one
//! of the configured keys, and for nothing else. Signatures are made by a thread for each session. The agent ends when its
//! socket is closed, or when it receives a packet that it does not understand.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use becket_config::key_source::KeyUri;
use becket_sys::identity::Identity;
use becket_sys::process::exit_at_once;
use becket_sys::seqpacket::{Packet, Seqpacket};
use becket_sys::{call_filter, file_reach, privileges, regular, rlimit, root_only};
use cryptoki::object::ObjectHandle;
use zeroize::Zeroizing;

use super::module::Module;
use super::wire::{LONGEST, Setup, TokenAnswer, TokenFault, TokenRequest, read, write};

/// The name of the process.
pub(super) const NAME: &str = "becket-token";
/// The exit code of an agent whose token refused the PIN.
pub(super) const REFUSED: u8 = 3;

/// Returns `true` if this process was started as an agent.
pub fn is_agent() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Serves until the socket is closed.
pub fn run() -> ! {
    let code = serve().unwrap_or_else(|error| {
        eprintln!("{NAME}: {error}");
        1
    });
    // Threads of the module may be in the middle of a call.
    exit_at_once(code)
}

fn serve() -> io::Result<u8> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = Arc::new(Seqpacket::from(socket));
    let mut room = vec![0; LONGEST];
    let Packet::Message(length, pin) = socket.receive(&mut room)? else {
        return Ok(0);
    };
    let setup: Setup = parsed(&room, length)?;
    let keys = setup.token.keys.iter().map(|key| KeyUri::parse(key));
    let keys: Vec<KeyUri> = keys.collect::<Result<_, _>>().map_err(io::Error::other)?;
    secure(&setup)?;
    let module = match open(&keys, pin) {
        Ok(module) => module,
        Err(fault) => {
            let is_refused = matches!(fault, TokenFault::Refused(_));
            send(&socket, &TokenAnswer::Failed(fault))?;
            return Ok(if is_refused { REFUSED } else { 1 });
        }
    };
    let keys: Vec<_> = keys.iter().map(|key| module.find(key)).collect();
    let faults = keys.iter().map(|key| key.as_ref().err().cloned());
    let opened = TokenAnswer::Opened {
        mechanisms: module.mechanisms,
        faults: faults.collect(),
    };
    send(&socket, &opened)?;
    let sessions = usize::from(setup.token.sessions);
    let sessions = sessions.min(module.most_sessions).max(1);
    let (tasks, queue) = sync_channel(MOST_WAITING);
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..sessions {
        let (module, socket, queue) = (module.clone(), Arc::clone(&socket), Arc::clone(&queue));
        thread::Builder::new().spawn(move || sign(&module, &socket, &queue))?;
    }
    attend(&socket, &keys, &tasks, &mut room)?;
    Ok(0)
}

/// Becomes the run user, without any right of root's, and closes this process to debuggers and core dumps.
fn secure(setup: &Setup) -> io::Result<()> {
    // The kernel took the name from the link that was executed. Root's own file from the next line on.
    std::fs::write("/proc/self/comm", NAME).ok();
    rlimit::forbid_core_dumps()?;
    if let Some((uid, gid, groups)) = setup.user.clone() {
        privileges::drop_to(&Identity { uid, gid, groups })?;
    }
    privileges::forbid_new_privileges()
}

/// Loads the module and logs in.
fn open(keys: &[KeyUri], pin: Option<OwnedFd>) -> Result<Module, TokenFault> {
    let failed = |what: &str, error: io::Error| TokenFault::Away(format!("{what}: {error}"));
    let first = keys
        .first()
        .ok_or(TokenFault::Refused("no key".to_owned()))?;
    let module = &first.token.module;
    // The serving process runs as the same user, and must not be able to put code of its own there.
    match root_only::is_program(module) {
        Ok(true) => {}
        Ok(false) => {
            let why = "others than root can change this module, or the way to it";
            return Err(TokenFault::Refused(format!("{}: {why}", module.display())));
        }
        Err(error) => return Err(failed(&module.display().to_string(), error)),
    }
    let source = keys.iter().find_map(|key| key.pin_source.as_ref());
    // A file that root alone can change comes with the setup. Any other is opened with the rights of the run user.
    let pin = match (pin, source) {
        (Some(file), _) => Some(File::from(file)),
        (None, Some(path)) => {
            let opened = regular::open(path);
            Some(opened.map_err(|error| failed("pin-source", error))?.0)
        }
        (None, None) => None,
    };
    let pin = pin.map(|file| read_pin(&file)).transpose();
    let pin = pin.map_err(|error| failed("pin-source", error))?;
    confine().map_err(|error| failed("sandbox", error))?;
    Module::open(&first.token, pin)
}

/// No programs and no other processes, before a module is loaded, which may have files, threads and sockets.
fn confine() -> io::Result<()> {
    file_reach::forbid_programs()?;
    match call_filter::restrict_foreign_code() {
        // The kernel has no filters.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        done => done,
    }
}

/// The first line of the file, from its beginning.
fn read_pin(file: &File) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut pin = Zeroizing::new(vec![0; LONGEST_PIN]);
    let length = file.read_at(&mut pin, 0)?;
    let line = pin.iter().take(length);
    let end = { line }.position(|byte| matches!(byte, b'\r' | b'\n'));
    pin.truncate(end.unwrap_or(length));
    match pin.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is empty",
        )),
        false => Ok(pin),
    }
}

/// A signature to be made.
struct Task {
    number: u64,
    key: ObjectHandle,
    scheme: u16,
    input: Vec<u8>,
}

/// Receives requests until the other end is closed.
fn attend(
    socket: &Seqpacket,
    keys: &[Result<ObjectHandle, String>],
    tasks: &SyncSender<Task>,
    room: &mut [u8],
) -> io::Result<()> {
    loop {
        let length = match socket.receive(room)? {
            Packet::Message(length, None) => length,
            Packet::Message(_, Some(_)) => return Err(io::ErrorKind::InvalidData.into()),
            Packet::End => return Ok(()),
        };
        let TokenRequest {
            number,
            key,
            scheme,
            input,
        } = parsed(room, length)?;
        match keys.get(key).ok_or(io::ErrorKind::InvalidData)? {
            Ok(key) => {
                let task = Task {
                    number,
                    key: *key,
                    scheme,
                    input,
                };
                tasks.try_send(task).map_err(io::Error::other)?;
            }
            Err(why) => answer(socket, number, Err(why.clone()))?,
        }
    }
}

/// A thread that signs in a session of its own.
fn sign(module: &Module, socket: &Seqpacket, queue: &Mutex<Receiver<Task>>) {
    let mut session = None;
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else {
            return;
        };
        let signed = module.sign(&mut session, task.key, task.scheme, &task.input);
        if answer(socket, task.number, signed).is_err() {
            exit_at_once(1);
        }
    }
}

fn answer(socket: &Seqpacket, number: u64, signature: Result<Vec<u8>, String>) -> io::Result<()> {
    send(socket, &TokenAnswer::Signed { number, signature })
}

/// Sends an answer; waits while the serving process does not receive.
fn send(socket: &Seqpacket, answer: &TokenAnswer) -> io::Result<()> {
    let packet = write(answer);
    loop {
        match socket.send(&packet, None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.wait_to_send()?,
            sent => return sent,
        }
    }
}

fn parsed<T: serde::de::DeserializeOwned>(room: &[u8], length: usize) -> io::Result<T> {
    let parsed = room.get(..length).and_then(read);
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an unknown message"))
}

/// No token takes longer ones.
const LONGEST_PIN: usize = 1024;
/// Requests that wait for a session: twice what a serving process asks for at a time with the most sessions.
const MOST_WAITING: usize = 2048;
