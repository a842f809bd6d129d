//! Creates network namespaces and TUN devices. Each read and write on a TUN device is an IP packet.
//!
//! A device exists until its descriptor is closed, and a namespace until no process or descriptor refers to it. So the
//! kernel removes both when the process that created them ends. Source: `Documentation/networking/tuntap.rst` of Linux.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Moves the calling thread into a new network namespace. Its only device is loopback, which is
/// down.
///
/// # Errors
/// Returns the errors of unshare(2), for example `EPERM` without CAP_SYS_ADMIN.
pub fn unshare_network() -> io::Result<()> {
    Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?)
}

/// Creates the TUN device `name` in the network namespace of the calling thread. Reads and writes do not block.
///
/// # Errors
/// Returns the errors of open(2) on `/dev/net/tun` and of TUNSETIFF; `InvalidInput` for a name of more than 15 bytes.
pub fn open(name: &str) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: all zeroes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an `ifreq`, which lives until the call returns.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        // Without the device, or without the right to open it, the call fails as well.
        assert!(open("a-name-that-is-too-long").is_err());
    }
}
