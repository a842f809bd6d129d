//! Source addresses of the client, such as `127.0.0.2-127.0.0.50`.
//!
//! A pair of source and target addresses has about 28 000 local ports, and each stays in TIME_WAIT for a minute if the client
//! closed first. More source addresses raise this limit.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use becket_stats::units::UnitError;

/// A range of IPv4 addresses, or one address of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    first: IpAddr,
    count: u32,
}

impl Sources {
    /// Returns the address for connection number `index`, in rotation.
    pub fn pick(&self, index: usize) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => {
                let step = (index % self.count as usize) as u32;
                IpAddr::V4(Ipv4Addr::from_bits(first.to_bits().wrapping_add(step)))
            }
            first => first,
        }
    }
}

impl FromStr for Sources {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || {
            UnitError::new(
                text,
                "a source (accepted: 127.0.0.2, 127.0.0.2-127.0.0.50, ::1)",
            )
        };
        let Some((first, last)) = text.split_once('-') else {
            let first = text.parse().map_err(|_| wrong())?;
            return Ok(Self { first, count: 1 });
        };
        let first: Ipv4Addr = first.parse().map_err(|_| wrong())?;
        let last: Ipv4Addr = last.parse().map_err(|_| wrong())?;
        let span = last
            .to_bits()
            .checked_sub(first.to_bits())
            .filter(|span| *span < MOST);
        let count = span.ok_or_else(wrong)? + 1;
        Ok(Self {
            first: IpAddr::V4(first),
            count,
        })
    }
}

/// Maximum number of addresses: a /16 network, more than any run can use.
const MOST: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_used_in_rotation() {
        let sources: Sources = "127.0.0.254-127.0.1.1".parse().unwrap();
        assert_eq!(sources.count, 4);
        let picked: Vec<String> = (0..5).map(|i| sources.pick(i).to_string()).collect();
        assert_eq!(
            picked,
            [
                "127.0.0.254",
                "127.0.0.255",
                "127.0.1.0",
                "127.0.1.1",
                "127.0.0.254"
            ]
        );
        assert_eq!("::1".parse::<Sources>().unwrap().pick(9).to_string(), "::1");
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in [
            "",
            "x",
            "127.0.0.9-127.0.0.2",
            "127.0.0.1-",
            "::1-::2",
            "0.0.0.0-255.255.255.255",
        ] {
            assert!(text.parse::<Sources>().is_err(), "{text}");
        }
    }
}
