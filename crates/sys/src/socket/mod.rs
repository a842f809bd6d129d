//! Socket options and operations that a TLS terminator needs.
//!
//! `listener` creates, probes and retires listening sockets; `stream` has operations on connections
//! that `std` and `mio` lack; `datagram` is UDP between hosts; `acknowledgement` reports when the
//! peer has acknowledged data. All sockets are created non-blocking and close-on-exec. They belong
//! to the caller: functions borrow them.

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
    bind_no_port, client_gone, connect, has_client, has_room, is_local_shortage, reset_on_close,
    send_file, send_more, silent_for, unsent,
};
