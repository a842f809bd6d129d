//! Servers of a script: each connect is answered by the next [`Plan`].

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use super::link::{End, Watch, pair};
use becket_proxy::connection::Net;
use becket_tls::config::ServerAddress;

/// What becomes of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Connected at once.
    Accept,
    /// Decided later, by [`Watch::establish`] or [`Watch::fail`] on [`Dialled::near`].
    Later,
    /// Fails in the call.
    Refuse(ErrorKind),
}

/// A connect that was not refused.
#[derive(Debug)]
pub(crate) struct Dialled {
    /// To where.
    pub(crate) address: ServerAddress,
    /// From where, if that was asked for.
    pub(crate) source: Option<IpAddr>,
    /// The server's end.
    pub(crate) far: End,
    /// The connection's end, from outside.
    pub(crate) near: Watch,
}

/// A network of scripted servers.
#[derive(Debug)]
pub(crate) struct ScriptedNet {
    /// For the next connects, in order; when there is none left, all are refused.
    pub(crate) plans: VecDeque<Plan>,
    /// Bytes that a stream to a server holds each way.
    pub(crate) capacity: usize,
    /// Servers that were dialled, in order.
    pub(crate) dialled: Vec<Dialled>,
}

impl ScriptedNet {
    /// Makes a network whose streams hold `capacity` bytes each way.
    pub(crate) fn new(plans: impl IntoIterator<Item = Plan>, capacity: usize) -> Self {
        Self {
            plans: plans.into_iter().collect(),
            capacity,
            dialled: Vec::new(),
        }
    }

    /// The connection's end towards the server that was dialled last.
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
