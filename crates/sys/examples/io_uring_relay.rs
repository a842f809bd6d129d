//! A plain relay on io_uring, to be measured beside the bench's relay on epoll: `io_uring_relay LISTEN SERVER`.
//!
//! One thread, one ring. Sockets are entries of the ring's table and no descriptors. Accepting and receiving are armed once
//! (multishot); the kernel picks buffers from a ring that is shared with it, and the bytes are sent from there. What begins a
//! connection to the server (socket, TCP_NODELAY, connect, the first send, receiving) is one chain of one submission, and what ends a
//! pair is another. One submission goes with each wait.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use becket_sys::socket::{ListenOptions, listen};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, DestinationSlot, Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode};

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, listener, server] = &args[..] else {
        panic!("io_uring_relay LISTEN SERVER");
    };
    let address = |text: &String| text.parse().expect("an address with a port");
    let options = ListenOptions {
        reuse_port: false,
        defer_accept: Some(Duration::from_secs(5)),
        ..ListenOptions::default()
    };
    Relay::new(listen(address(listener), &options)?, address(server))?.run()
}

const PAIRS: u32 = 8192;
const BUFFERS: u16 = 1024;
const BUFFER: usize = 4096;
const GROUP: u16 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Op {
    Accept,
    /// From the client, from the server.
    ReceiveC,
    ReceiveS,
    /// To the client, to the server.
    SendC,
    SendS,
    /// Only failures are told.
    Quiet,
}

#[derive(Default)]
struct Way {
    /// Received and not yet sent: buffers with their lengths; the first is under way if `sending`.
    queue: VecDeque<(u16, u32)>,
    sending: bool,
    ended: bool,
}

#[derive(Default)]
struct Pair {
    /// Tells completions of this pair from those of who had the entry before.
    age: u32,
    open: bool,
    connected: bool,
    broken: bool,
    told: bool,
    to_server: Way,
    to_client: Way,
}

struct Relay {
    ring: IoUring,
    listener: TcpListener,
    server: Box<libc::sockaddr_in>,
    one: Box<libc::c_int>,
    pairs: Vec<Pair>,
    buffers: Buffers,
}

impl Relay {
    fn new(listener: TcpListener, server: SocketAddr) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(16384);
        builder.setup_no_sqarray();
        let ring: IoUring = builder.build(4096)?;
        ring.submitter().register_ring_fd()?;
        ring.submitter().register_files_sparse(PAIRS * 2)?;
        alloc_range(&ring, 0, PAIRS)?;
        let buffers = Buffers::new(&ring)?;
        let mut relay = Self {
            ring,
            listener,
            server: Box::new(plain(server)),
            one: Box::new(1),
            pairs: (0..PAIRS).map(|_| Pair::default()).collect(),
            buffers,
        };
        relay.accept();
        Ok(relay)
    }

    fn run(mut self) -> io::Result<()> {
        let mut done: Vec<cqueue::Entry> = Vec::with_capacity(16384);
        loop {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            done.extend(self.ring.completion());
            for entry in done.drain(..) {
                self.completed(&entry);
            }
            self.buffers.publish();
        }
    }

    fn completed(&mut self, entry: &cqueue::Entry) {
        let (op, age, index) = unpack(entry.user_data());
        let more = cqueue::more(entry.flags());
        let result = entry.result();
        match op {
            Op::Accept => {
                if let Ok(index) = u32::try_from(result) {
                    self.join(index);
                }
                if !more {
                    self.accept();
                }
            }
            Op::ReceiveC | Op::ReceiveS => {
                let buffer = cqueue::buffer_select(entry.flags());
                let pair = &mut self.pairs[index as usize];
                if pair.age != age || !pair.open {
                    // Of a pair that is closed.
                    buffer.into_iter().for_each(|id| self.buffers.give(id));
                    return;
                }
                self.received(op, index, result, buffer, more);
            }
            Op::SendC | Op::SendS => self.sent(op, index, result),
            Op::Quiet => {
                let pair = &mut self.pairs[index as usize];
                if pair.age == age && pair.open && result < 0 {
                    pair.broken = true;
                    self.go_on(index);
                }
            }
        }
    }

    fn join(&mut self, index: u32) {
        let pair = &mut self.pairs[index as usize];
        let age = pair.age.wrapping_add(1) & 0xff_ffff;
        *pair = Pair {
            age,
            open: true,
            ..Pair::default()
        };
        self.receive(Op::ReceiveC, index);
    }

    fn received(&mut self, op: Op, index: u32, result: i32, buffer: Option<u16>, more: bool) {
        let pair = &mut self.pairs[index as usize];
        let way = match op {
            Op::ReceiveC => &mut pair.to_server,
            _ => &mut pair.to_client,
        };
        match (result, buffer) {
            (0, _) => way.ended = true,
            (1.., Some(id)) => way.queue.push_back((id, result as u32)),
            _ if result == -libc::ENOBUFS => {}
            _ => pair.broken = true,
        }
        if !more && (result > 0 || result == -libc::ENOBUFS) {
            self.receive(op, index);
        }
        self.go_on(index);
    }

    fn sent(&mut self, op: Op, index: u32, result: i32) {
        let pair = &mut self.pairs[index as usize];
        let way = if op == Op::SendC {
            &mut pair.to_client
        } else {
            &mut pair.to_server
        };
        way.sending = false;
        // MSG_WAITALL: less than all is a failure.
        if let Some((id, len)) = way.queue.pop_front() {
            pair.broken |= result != len as i32;
            self.buffers.give(id);
        }
        self.go_on(index);
    }

    /// Submits what can be done for a pair.
    fn go_on(&mut self, index: u32) {
        let pair = &mut self.pairs[index as usize];
        let idle = !pair.to_client.sending && !pair.to_server.sending;
        let all_told = pair.to_client.ended && pair.to_client.queue.is_empty();
        let never = !pair.connected && pair.to_server.ended && pair.to_server.queue.is_empty();
        if pair.broken || all_told || never {
            if idle {
                self.close(index);
            }
            return;
        }
        if !pair.connected && !pair.to_server.queue.is_empty() {
            pair.connected = true;
            self.connect(index);
        }
        self.send(Op::SendC, index);
        self.send(Op::SendS, index);
        let pair = &mut self.pairs[index as usize];
        let ended = pair.to_server.ended && pair.to_server.queue.is_empty();
        if ended && !pair.told {
            pair.told = true;
            let shutdown = opcode::Shutdown::new(Fixed(PAIRS + index), libc::SHUT_WR).build();
            self.quietly(index, shutdown, Flags::empty());
        }
    }

    fn send(&mut self, op: Op, index: u32) {
        let pair = &mut self.pairs[index as usize];
        let (slot, way) = match op {
            Op::SendC => (index, &mut pair.to_client),
            _ => (PAIRS + index, &mut pair.to_server),
        };
        if let (false, Some((id, len))) = (way.sending, way.queue.front()) {
            way.sending = true;
            let data = self.buffers.at(*id);
            let send = opcode::Send::new(Fixed(slot), data, *len)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
                .build();
            let send = send.user_data(pack(op, pair.age, index));
            self.push(send);
        }
    }

    /// Socket, TCP_NODELAY, connect, the first send and receiving, in one chain.
    fn connect(&mut self, index: u32) {
        let slot = PAIRS + index;
        let place = DestinationSlot::try_from_slot_target(slot).expect("a slot");
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        let socket = opcode::Socket::new(libc::AF_INET, kind, 0)
            .file_index(Some(place))
            .build();
        let one = std::ptr::from_ref::<libc::c_int>(&self.one).cast();
        let no_delay = opcode::SetSockOpt::new(
            Fixed(slot),
            libc::IPPROTO_TCP as u32,
            libc::TCP_NODELAY as u32,
            one,
            4,
        )
        .build();
        let address = std::ptr::from_ref::<libc::sockaddr_in>(&self.server).cast();
        let length = size_of::<libc::sockaddr_in>() as u32;
        let connect = opcode::Connect::new(Fixed(slot), address, length).build();
        self.quietly(index, socket, Flags::IO_LINK);
        self.quietly(index, no_delay, Flags::IO_LINK);
        self.quietly(index, connect, Flags::IO_LINK);
        let pair = &mut self.pairs[index as usize];
        let (id, len) = *pair
            .to_server
            .queue
            .front()
            .expect("there is something to send");
        pair.to_server.sending = true;
        let send = opcode::Send::new(Fixed(slot), self.buffers.at(id), len)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        let send = send
            .user_data(pack(Op::SendS, pair.age, index))
            .flags(Flags::IO_LINK);
        self.push(send);
        self.receive(Op::ReceiveS, index);
    }

    /// Ends a pair: receiving that is under way keeps a socket open, so it goes first.
    fn close(&mut self, index: u32) {
        let pair = &mut self.pairs[index as usize];
        pair.open = false;
        let (age, connected) = (pair.age, pair.connected);
        let (client, server) = (!pair.to_server.ended, connected && !pair.to_client.ended);
        for way in [&mut pair.to_server, &mut pair.to_client] {
            for (id, _) in way.queue.drain(..) {
                self.buffers.give(id);
            }
        }
        let sides = [
            (client, Op::ReceiveC, index, true),
            (server, Op::ReceiveS, PAIRS + index, connected),
        ];
        for (receives, op, slot, is_there) in sides {
            if receives {
                let cancel = opcode::AsyncCancel::new(pack(op, age, index)).build();
                self.quietly(index, cancel, Flags::IO_HARDLINK);
            }
            if is_there {
                self.quietly(
                    index,
                    opcode::Close::new(Fixed(slot)).build(),
                    Flags::empty(),
                );
            }
        }
    }

    fn accept(&mut self) {
        let accept =
            opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd())).allocate_file_index(true);
        let accept = accept.flags(libc::SOCK_NONBLOCK).build();
        self.push(accept.user_data(pack(Op::Accept, 0, 0)));
    }

    fn receive(&mut self, op: Op, index: u32) {
        let slot = if op == Op::ReceiveC {
            index
        } else {
            PAIRS + index
        };
        let age = self.pairs[index as usize].age;
        let receive = opcode::RecvMulti::new(Fixed(slot), GROUP).build();
        self.push(receive.user_data(pack(op, age, index)));
    }

    fn quietly(&mut self, index: u32, entry: Entry, flags: Flags) {
        let age = self.pairs[index as usize].age;
        let entry = entry.user_data(pack(Op::Quiet, age, index));
        self.push(entry.flags(flags | Flags::SKIP_SUCCESS));
    }

    fn push(&mut self, entry: Entry) {
        // SAFETY: what an entry points to lives as long as the relay: the address and the option in boxes, the buffers in a
        // mapping that is never undone, of which each is given back after its send has completed.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            drop(self.ring.submit());
        }
    }
}

fn pack(op: Op, age: u32, index: u32) -> u64 {
    (op as u64) << 56 | u64::from(age) << 32 | u64::from(index)
}

fn unpack(data: u64) -> (Op, u32, u32) {
    let ops = [
        Op::Accept,
        Op::ReceiveC,
        Op::ReceiveS,
        Op::SendC,
        Op::SendS,
        Op::Quiet,
    ];
    (
        ops[(data >> 56) as usize],
        (data >> 32) as u32 & 0xff_ffff,
        data as u32,
    )
}

/// Buffers that the kernel takes from a ring, and where they come back.
struct Buffers {
    ring: *mut BufRingEntry,
    bytes: *mut u8,
    tail: u16,
}

impl Buffers {
    fn new(uring: &IoUring) -> io::Result<Self> {
        let ring: *mut BufRingEntry = map(usize::from(BUFFERS) * size_of::<BufRingEntry>())?.cast();
        let bytes = map(usize::from(BUFFERS) * BUFFER)?;
        // SAFETY: the ring is a mapping of its own that is never undone, of as many entries as are said.
        unsafe {
            uring
                .submitter()
                .register_buf_ring_with_flags(ring as u64, BUFFERS, GROUP, 0)?
        };
        let mut buffers = Self {
            ring,
            bytes,
            tail: 0,
        };
        (0..BUFFERS).for_each(|id| buffers.give(id));
        buffers.publish();
        Ok(buffers)
    }

    fn at(&self, id: u16) -> *mut u8 {
        assert!(id < BUFFERS);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.bytes.add(usize::from(id) * BUFFER) }
    }

    fn give(&mut self, id: u16) {
        let address = self.at(id) as u64;
        // SAFETY: an entry of the ring; the kernel reads none beyond the tail that was published.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail % BUFFERS)) };
        entry.set_addr(address);
        entry.set_len(BUFFER as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the tail lies in the first entry of the ring, which is mapped; the kernel reads it as an atomic.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.ring).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

fn map(length: usize) -> io::Result<*mut u8> {
    // SAFETY: a new mapping without a file.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(at.cast())
    }
}

/// Which entries of the table the kernel may choose by itself.
fn alloc_range(ring: &IoUring, off: u32, len: u32) -> io::Result<()> {
    let range: [u32; 4] = [off, len, 0, 0];
    const REGISTER_FILE_ALLOC_RANGE: libc::c_uint = 25;
    // SAFETY: the kernel only reads the four numbers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            REGISTER_FILE_ALLOC_RANGE,
            range.as_ptr(),
            0,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn plain(address: SocketAddr) -> libc::sockaddr_in {
    let SocketAddr::V4(v4) = address else {
        panic!("IPv4 only")
    };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(v4.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}
