//! The agent: this program, executed again to use the keys on one token.
//!
//! Only the agent has the PIN and the module with its files, sockets and threads. The [`Setup`]
//! from its parent process determines everything that it loads. The serving process can only
//! request signatures with the configured keys. Each session has a thread that signs. The agent
//! exits when its socket is closed, or on an unexpected packet.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use becket_config::key_source::KeyUri;
use becket_sys::identity::UnixIdentity;
use becket_sys::process::exit_at_once;
use becket_sys::seqpacket::Seqpacket;
use becket_sys::{call_filter, file_reach, privileges, regular, rlimit, root_only};
use cryptoki::object::ObjectHandle;
use cryptoki::session::Session;
use zeroize::Zeroizing;

use super::module::{Module, find_key};
use super::wire::{
    LONGEST, OpenToken, Setup, TokenAnswer, TokenFault, TokenRequest, receive, write,
};

pub(super) const NAME: &str = "becket-token";
/// Exit code of an agent whose token rejected the PIN.
pub(super) const REFUSED: u8 = 3;

/// Returns `true` if this process was started as an agent.
pub fn is_agent() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Answers requests until the socket is closed, then exits.
pub fn run() -> ! {
    let code = serve().unwrap_or_else(|error| {
        eprintln!("{NAME}: {error}");
        1
    });
    // Exits without running destructors, because threads of the PKCS#11 module may be inside a
    // call.
    exit_at_once(code)
}

fn serve() -> io::Result<u8> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = Arc::new(Seqpacket::from(socket));
    let mut room = vec![0; LONGEST];
    let Some((setup, pin)) = receive::<Setup>(&socket, &mut room)? else {
        return Ok(0);
    };
    let keys = setup.token.keys.iter().map(|key| KeyUri::parse(key));
    let keys: Vec<KeyUri> = keys.collect::<Result<_, _>>().map_err(io::Error::other)?;
    secure(&setup)?;
    let (module, first) = match open(&keys, pin) {
        Ok(opened) => opened,
        Err(fault) => {
            let is_refused = matches!(fault, TokenFault::Refused(_));
            send(&socket, &TokenAnswer::Failed(fault))?;
            return Ok(if is_refused { REFUSED } else { 1 });
        }
    };
    let keys: Vec<_> = keys.iter().map(|key| find_key(&first, key)).collect();
    let faults = keys.iter().map(|key| key.as_ref().err().cloned());
    let opened = OpenToken {
        schemes: module.schemes.clone(),
        faults: faults.collect(),
    };
    send(&socket, &TokenAnswer::Opened(opened))?;
    let sessions = usize::from(setup.token.sessions);
    let (tasks, queue) = sync_channel(MOST_WAITING);
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..sessions.min(module.most_sessions).max(1) {
        let (module, socket, queue) = (module.clone(), Arc::clone(&socket), Arc::clone(&queue));
        thread::Builder::new().spawn(move || sign(&module, &socket, &queue))?;
    }
    while let Some((request, fd)) = receive::<TokenRequest>(&socket, &mut room)? {
        let key = keys.get(request.key).filter(|_| fd.is_none());
        match key.ok_or(io::ErrorKind::InvalidData)? {
            Ok(key) => tasks.try_send((*key, request)).map_err(io::Error::other)?,
            Err(why) => answer(&socket, request.number, Err(why.clone()))?,
        }
    }
    Ok(0)
}

/// Changes to the configured user, drops all root privileges, and forbids debuggers and core dumps.
fn secure(setup: &Setup) -> io::Result<()> {
    // Sets the process name, because the kernel uses the name of the executed symbolic link. The
    // ban on core dumps comes later, because it makes root the owner of `/proc/self/comm`.
    std::fs::write("/proc/self/comm", NAME).ok();
    rlimit::forbid_core_dumps()?;
    if let Some((uid, gid, groups)) = setup.user.clone() {
        privileges::drop_to(&UnixIdentity { uid, gid, groups })?;
    }
    privileges::forbid_new_privileges()
}

fn open(keys: &[KeyUri], pin: Option<OwnedFd>) -> Result<(Module, Session), TokenFault> {
    let failed = |what: &str, error: io::Error| TokenFault::Away(format!("{what}: {error}"));
    let refused = |why: String| Err(TokenFault::Refused(why));
    let Some(KeyUri { token, .. }) = keys.first() else {
        return refused("no key".to_owned());
    };
    let module = token.module.display();
    // The module must be writable only by root: otherwise the serving process, which runs as the
    // same user, could replace it.
    match root_only::is_program(&token.module) {
        Ok(true) => {}
        Ok(false) => {
            let why = "a user other than root can change this module or its path";
            return refused(format!("{module}: {why}"));
        }
        Err(error) => return Err(failed(&module.to_string(), error)),
    }
    let pin = read_pin(pin, keys).map_err(|error| failed("pin-source", error))?;
    confine().map_err(|error| failed("sandbox", error))?;
    Module::open(token, pin)
}

/// Forbids executing programs and access to other processes. Files, threads and sockets stay
/// allowed, because the PKCS#11 module may use them.
fn confine() -> io::Result<()> {
    file_reach::forbid_programs()?;
    match call_filter::restrict_foreign_code() {
        // Continues without a seccomp filter if the kernel does not support seccomp.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        done => done,
    }
}

/// Reads the first line of the PIN file. `given` is the open file if only root can change this
/// file; otherwise the file is opened with the privileges of the user. Returns `None` if no PIN
/// file is configured.
fn read_pin(given: Option<OwnedFd>, keys: &[KeyUri]) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let path = keys.iter().find_map(|key| key.pin_source.as_ref());
    let mut file = match (given, path) {
        (Some(file), _) => File::from(file),
        (None, Some(path)) => regular::open(path)?.0,
        (None, None) => return Ok(None),
    };
    let mut pin = Zeroizing::new(vec![0; LONGEST_PIN]);
    let length = file.read(&mut pin)?;
    pin.truncate(length);
    let end = pin.iter().position(|byte| b"\r\n".contains(byte));
    pin.truncate(end.unwrap_or(length));
    if pin.is_empty() {
        let text = "the file is empty";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(Some(pin))
}

/// Signs requests from the queue in a separate token session.
fn sign(
    module: &Module,
    socket: &Seqpacket,
    queue: &Mutex<Receiver<(ObjectHandle, TokenRequest)>>,
) {
    let mut session = None;
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((key, request)) = task else {
            return;
        };
        let signed = module.sign(&mut session, key, request.scheme, &request.input);
        if answer(socket, request.number, signed).is_err() {
            exit_at_once(1);
        }
    }
}

fn answer(
    socket: &Seqpacket,
    number: u64,
    signature: Result<Vec<u8>, TokenFault>,
) -> io::Result<()> {
    send(socket, &TokenAnswer::Signed { number, signature })
}

/// Sends an answer. Blocks while the socket buffer is full.
fn send(socket: &Seqpacket, answer: &TokenAnswer) -> io::Result<()> {
    let packet = write(answer);
    loop {
        match socket.send(&packet, None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.wait_to_send()?,
            sent => return sent,
        }
    }
}

/// Maximum length of a PIN in bytes. No token accepts a longer one.
const LONGEST_PIN: usize = 1024;
/// Maximum number of queued requests: twice the limit of requests in flight per serving process.
const MOST_WAITING: usize = 2048;
