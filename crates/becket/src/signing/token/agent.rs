//! The agent: this program, executed once more to speak with one token.
//!
//! It has what the terminator has not: the module, with whatever files, sockets and threads that makes for itself, and the PIN. It
//! hears requests on its standard input and answers there ([`becket_proto::token`]). Signatures are made by a thread for each session. It
//! keeps nothing, opens no port, and ends with the process that started it ([`super::starter`]). What goes wrong is said to the terminator, which starts
//! another agent: there is no way back to a token that was pulled that all modules know.
//!
//! The terminator may be in another's hands. It can then have signed what it likes, as always; what it sends is parsed and bounded.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use becket_config::key_source::KeyUri;
use becket_proto::token::{Answer, LONGEST, Request};
use becket_sys::seqpacket::{Packet, Seqpacket};
use becket_sys::{call_filter, file_reach, privileges, process, rlimit};
use cryptoki::object::ObjectHandle;
use zeroize::Zeroizing;

use super::module::{Module, Refusal};

/// The name under which the program is an agent.
pub const NAME: &str = "becket-token";

/// Whether this process was started as an agent.
pub fn is_agent() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Serves until the terminator is gone.
pub fn run() -> ExitCode {
    match secure().and_then(|()| serve()) {
        Ok(()) => ExitCode::SUCCESS,
        // The terminator has ended, before we began.
        Err(error) if error.kind() == io::ErrorKind::NotFound => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Before a byte of a secret is here: no memory on a disk or in a debugger, no rights to gain, no life of its own.
fn secure() -> io::Result<()> {
    let parent = std::env::args().nth(2).and_then(|pid| pid.parse().ok());
    process::die_with_parent(parent.ok_or(io::ErrorKind::InvalidInput)?)?;
    // For `pgrep` and `top`: the kernel took it from the link that was executed. Before the process is closed to its own user.
    std::fs::write("/proc/self/comm", NAME).ok();
    rlimit::forbid_core_dumps()?;
    privileges::forbid_new_privileges()?;
    Ok(())
}

/// What a thread is to sign.
struct Task {
    number: u64,
    key: ObjectHandle,
    scheme: u16,
    input: Vec<u8>,
}

fn serve() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = Arc::new(Seqpacket::from(socket));
    let mut room = [0; LONGEST];
    let Some((module, sessions)) = open(&socket, &mut room)? else {
        return Ok(());
    };
    let sessions = usize::from(sessions).min(module.most_sessions).max(1);
    let (tasks, queue) = channel();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..sessions {
        let (module, socket, queue) = (module.clone(), Arc::clone(&socket), Arc::clone(&queue));
        thread::Builder::new().spawn(move || sign(&module, &socket, &queue))?;
    }
    attend(&socket, &module, &tasks, &mut room)
}

/// Does what the first request says; nothing when there is none, or it failed, which was answered.
fn open(socket: &Seqpacket, room: &mut [u8]) -> io::Result<Option<(Module, u16)>> {
    let Packet::Message(length, pin) = socket.receive(room)? else {
        return Ok(None);
    };
    let request = Request::read(room.get(..length).unwrap_or_default());
    let Some((
        number,
        Request::Open {
            sessions,
            is_confined,
            uri,
        },
    )) = request
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let pin = pin.map(read_pin).transpose();
    let confined = if is_confined { confine() } else { Ok(()) };
    let opened = match (KeyUri::parse(uri), pin) {
        _ if let Err(error) = &confined => Err(Refusal::Failed(format!("sandbox: {error}"))),
        (Ok(uri), Ok(pin)) => Module::open(&uri.token, pin),
        (Err(fault), _) => Err(Refusal::Failed(fault)),
        (_, Err(error)) => Err(Refusal::Failed(format!("pin-source: {error}"))),
    };
    let answer = match &opened {
        Ok(_) => Answer::Opened,
        Err(Refusal::Failed(why)) => Answer::Failed(why),
        Err(Refusal::Locks(why)) => Answer::Refused(why),
    };
    say(socket, number, &answer)?;
    Ok(opened.ok().map(|module| (module, sessions)))
}

/// Before a module is loaded, which may have files, threads and sockets as it likes: no programs, and no other processes.
fn confine() -> io::Result<()> {
    file_reach::forbid_programs()?;
    match call_filter::restrict_foreign_code() {
        // The kernel has no filters.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        done => done,
    }
}

/// The first line of the file, wherever whoever had it before has read to.
fn read_pin(file: OwnedFd) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut pin = Zeroizing::new(vec![0; LONGEST_PIN]);
    let length = File::from(file).read_at(&mut pin, 0)?;
    let end = pin
        .iter()
        .take(length)
        .position(|byte| matches!(byte, b'\r' | b'\n'));
    pin.truncate(end.unwrap_or(length));
    match pin.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is empty",
        )),
        false => Ok(pin),
    }
}

/// Hears requests until there are no more.
fn attend(
    socket: &Seqpacket,
    module: &Module,
    tasks: &Sender<Task>,
    room: &mut [u8],
) -> io::Result<()> {
    let mut keys = HashMap::new();
    loop {
        let Packet::Message(length, _) = socket.receive(room)? else {
            return Ok(());
        };
        match Request::read(room.get(..length).unwrap_or_default()) {
            Some((number, Request::Find { key, uri })) => {
                let found = KeyUri::parse(uri).and_then(|uri| module.find(&uri));
                let answer = match &found {
                    Ok(handle) => {
                        keys.insert(key, *handle);
                        Answer::Found(module.mechanisms)
                    }
                    Err(why) => Answer::Failed(why),
                };
                say(socket, number, &answer)?;
            }
            Some((number, Request::Sign { key, scheme, input })) => match keys.get(&key) {
                Some(key) => {
                    let task = Task {
                        number,
                        key: *key,
                        scheme,
                        input: input.to_vec(),
                    };
                    // The threads have the other end for as long as the process lives.
                    tasks.send(task).map_err(io::Error::other)?;
                }
                None => say(socket, number, &Answer::Failed("no such key"))?,
            },
            _ => return Err(io::ErrorKind::InvalidData.into()),
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
        let answer = match &signed {
            Ok(signature) => Answer::Signed(signature),
            Err(why) => Answer::Failed(why),
        };
        if say(socket, task.number, &answer).is_err() {
            return;
        }
    }
}

fn say(socket: &Seqpacket, number: u64, answer: &Answer<'_>) -> io::Result<()> {
    socket.send(&answer.write(number), None)
}

/// No token takes longer ones.
const LONGEST_PIN: usize = 1024;
