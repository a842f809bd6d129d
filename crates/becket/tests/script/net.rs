//! Scripted servers: each connect takes the next [`Plan`].

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use super::link::{End, Watch, pair};
use becket_proxy::connection::Net;
use becket_tls::config::ServerAddress;

/// Outcome of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The connect succeeds at once.
    Accept,
    /// The outcome is decided later, by [`Watch::establish`] or [`Watch::fail`] on
    /// [`Dialled::near`].
    Later,
    /// The call fails.
    Refuse(ErrorKind),
}

/// A connect that succeeded or is pending.
#[derive(Debug)]
pub(crate) struct Dialled {
    /// Address of the server.
    pub(crate) address: ServerAddress,
    /// Source address, if one was requested.
    pub(crate) source: Option<IpAddr>,
    /// The server's end.
    pub(crate) far: End,
    /// The connection's end, as a watch.
    pub(crate) near: Watch,
}

/// A network of scripted servers.
#[derive(Debug)]
pub(crate) struct ScriptedNet {
    /// Outcomes of the next connects, in order; without one, the connect is refused.
    pub(crate) plans: VecDeque<Plan>,
    /// Bytes that a stream to a server holds in each direction.
    pub(crate) capacity: usize,
    /// Servers in the order of their connects.
    pub(crate) dialled: Vec<Dialled>,
}

impl ScriptedNet {
    /// Creates a network whose streams hold `capacity` bytes in each direction.
    pub(crate) fn new(plans: impl IntoIterator<Item = Plan>, capacity: usize) -> Self {
        Self {
            plans: plans.into_iter().collect(),
            capacity,
            dialled: Vec::new(),
        }
    }

    /// Returns the connection's end of the last connect.
    pub(crate) fn near(&self) -> Option<&Watch> {
        self.dialled.last().map(|dialled| &dialled.near)
    }
}

impl Net for ScriptedNet {
    type Client = End;
    type Server = End;

    fn connect(&mut self, address: &ServerAddress, source: Option<IpAddr>) -> io::Result<End> {
        let refused = Plan::Refuse(ErrorKind::ConnectionRefused);
        let plan = self.plans.pop_front().unwrap_or(refused);
        let (mut near, far) = pair(self.capacity);
        match plan {
            Plan::Refuse(kind) => return Err(kind.into()),
            Plan::Later => near.watch().begin_connecting(),
            Plan::Accept => {}
        }
        if let ServerAddress::Tcp(_) = address {
            near = near.at(SocketAddr::from(([192, 0, 2, 2], 1024)));
        }
        self.dialled.push(Dialled {
            address: address.clone(),
            source,
            near: near.watch(),
            far,
        });
        Ok(near)
    }

    fn connected(server: &End) -> io::Result<()> {
        server.take_fault().map_or(Ok(()), |kind| Err(kind.into()))
    }
}
