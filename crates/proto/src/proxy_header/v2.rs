//! Version 2 of the header: a binary block of 16 bytes, the addresses and the TLVs.
//!
//! The specification leaves some choices open, and this module makes them as follows. The content of a LOCAL header is
//! skipped. If the family or transport is unspecified, the length of the addresses is unknown. Senders such as HAProxy
//! then write TLVs right after the 16 bytes, so the remaining bytes are decoded as TLVs if they are complete TLVs, and
//! skipped otherwise. An invalid byte is refused at once, without waiting for the announced length. Source: section
//! 2.2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::header::{EncodeError, Endpoints, ProxyHeader, Refusal, Tlvs, one_family};
use super::tlv;
use crate::reader::Reader;

/// Appends the header. On failure, `out` contains a partial header.
pub(super) fn encode(header: &ProxyHeader<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[VERSION | PROXY, UNSPEC, 0, 0]);
    let family = push_addresses(&header.endpoints, out);
    match header.endpoints {
        // Section 2.2: "When a sender presents a LOCAL connection, it should not present any
        // address so it sets this field to zero."
        Endpoints::Local => put(out, start + COMMAND_AT, &[VERSION | LOCAL]),
        _ => tlv::encode(&header.tlvs, out)?,
    }
    put(out, start + FAMILY_AT, &[family]);
    let len = u16::try_from(out.len() - start - HEADER_LEN).map_err(|_| EncodeError)?;
    put(out, start + LENGTH_AT, &len.to_be_bytes());
    Ok(())
}

/// Decodes a header that starts with the signature. Returns `None` until all of its bytes have
/// arrived.
pub(super) fn decode(input: &[u8]) -> Result<Option<(ProxyHeader<'_>, usize)>, Refusal> {
    let head = input.get(SIGNATURE.len()..).unwrap_or_default();
    let Some((command, family, len)) = head_of(head)? else {
        return Ok(None);
    };
    let total = HEADER_LEN + usize::from(len);
    let Some(whole) = input.get(..total) else {
        return Ok(None);
    };
    let mut reader = Reader::new(whole);
    let header = match command {
        LOCAL => ProxyHeader {
            endpoints: Endpoints::Local,
            tlvs: Tlvs::default(),
        },
        _ => {
            reader.take(HEADER_LEN).ok_or(Refusal::TooShort)?;
            let endpoints = read_addresses(family, &mut reader).ok_or(Refusal::TooShort)?;
            let is_unspecified = address_len(family) == 0;
            let tlvs = match endpoints {
                Endpoints::Unknown if is_unspecified && !tlv::are_whole(reader) => Tlvs::default(),
                _ => tlv::decode(reader)?,
            };
            ProxyHeader { endpoints, tlvs }
        }
    };
    Ok(Some((header, total)))
}

/// Decodes the command, family and length after the signature. Refuses an invalid byte before the
/// remaining ones arrive.
fn head_of(head: &[u8]) -> Result<Option<(u8, u8, u16)>, Refusal> {
    let command = match head {
        [first, ..] if first & 0xf0 != VERSION => return Err(Refusal::Version),
        [first, ..] if first & 0x0f > PROXY => return Err(Refusal::Command),
        [first, ..] => first & 0x0f,
        [] => return Ok(None),
    };
    // Section 2.2: the family of a LOCAL header "is ignored".
    if let [_, family, ..] = head
        && command == PROXY
        && (family >> 4 > UNIX || family & 0x0f > DGRAM)
    {
        return Err(Refusal::Family);
    }
    let [_, family, high, low, ..] = head else {
        return Ok(None);
    };
    let len = u16::from_be_bytes([*high, *low]);
    if HEADER_LEN + usize::from(len) > MAX_V2_BYTES {
        return Err(Refusal::TooLong);
    }
    if command == PROXY && len < address_len(*family) {
        return Err(Refusal::TooShort);
    }
    Ok(Some((command, *family, len)))
}

fn address_len(family: u8) -> u16 {
    match (family >> 4, family & 0x0f) {
        (_, UNSPEC) => 0,
        (INET, _) => 2 * 4 + 2 * 2,
        (INET6, _) => 2 * 16 + 2 * 2,
        (UNIX, _) => 2 * MAX_PATH,
        _ => 0,
    }
}

/// Reads the addresses. Returns `None` if they are truncated. Skips addresses that are not TCP.
fn read_addresses(family: u8, reader: &mut Reader<'_>) -> Option<Endpoints> {
    let mut addresses = reader.sub(address_len(family).into())?;
    let (source, destination): (IpAddr, IpAddr) = match family {
        TCP4 => (
            Ipv4Addr::from(addresses.array::<4>()?).into(),
            Ipv4Addr::from(addresses.array::<4>()?).into(),
        ),
        TCP6 => (
            Ipv6Addr::from(addresses.array::<16>()?).into(),
            Ipv6Addr::from(addresses.array::<16>()?).into(),
        ),
        _ => return Some(Endpoints::Unknown),
    };
    Some(Endpoints::Tcp {
        source: SocketAddr::new(source, addresses.u16()?),
        destination: SocketAddr::new(destination, addresses.u16()?),
    })
}

fn push_addresses(endpoints: &Endpoints, out: &mut Vec<u8>) -> u8 {
    let Endpoints::Tcp {
        source,
        destination,
    } = *endpoints
    else {
        return UNSPEC;
    };
    let ips = one_family(source, destination);
    for ip in [ips.0, ips.1] {
        match ip {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
    if ips.0.is_ipv4() { TCP4 } else { TCP6 }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(slot) = out.get_mut(at..at + bytes.len()) {
        slot.copy_from_slice(bytes);
    }
}

pub(super) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Maximum length of an accepted header, in bytes. The format allows 64 KiB; usual headers have a
/// few hundred bytes.
pub const MAX_V2_BYTES: usize = 4096;

const HEADER_LEN: usize = 16;
const COMMAND_AT: usize = 12;
const FAMILY_AT: usize = 13;
const LENGTH_AT: usize = 14;

const VERSION: u8 = 0x20;
const LOCAL: u8 = 0x0;
const PROXY: u8 = 0x1;

const UNSPEC: u8 = 0x0;
const INET: u8 = 0x1;
const INET6: u8 = 0x2;
const UNIX: u8 = 0x3;
const TCP4: u8 = INET << 4 | 0x1;
const TCP6: u8 = INET6 << 4 | 0x1;
const DGRAM: u8 = 0x2;

/// Size of a Unix socket path in the header, in bytes.
const MAX_PATH: u16 = 108;
