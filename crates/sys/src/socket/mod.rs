//! Sockets: the options that matter to a terminator.
//!
//! `listener` makes, probes and retires listening sockets; `stream` holds what a connection needs and `std` or `mio` lack;
//! `datagram` is UDP between hosts;
//! `acknowledgement` tells when the other side took what was sent.
//! Everything is non-blocking and close-on-exec from birth. Sockets belong to the caller: functions borrow them.

mod acknowledgement;
mod datagram;
mod listener;
mod option;
mod stream;

pub use acknowledgement::{acknowledged_ago, note_acknowledgements};
pub use datagram::{datagrams, hear_only};
pub use listener::{
    Keepalive, ListenOptions, admit, bind, bound_queue, give_way, listen, listen_on, probe,
    refuse_new, set_options, succeed,
};
pub use stream::{
    bind_no_port, client_gone, connect, has_room, is_local_shortage, reset_on_close, send_file,
    send_more, silent_for, unsent,
};
