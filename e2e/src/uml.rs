//! User-mode Linux: another kernel that runs as a process on this machine and uses its files (hostfs).
//!
//! The guest runs the test program again, restricted to the tests of one name. It needs neither root nor KVM. It has one CPU, its
//! own loopback, and kernel modules that the host does not have to load ([`UserModeLinux::load`]).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

use crate::place::Place;
use crate::program::becket_program;
use crate::tool::Tool;

/// Guest kernel.
#[derive(Debug)]
pub struct UserModeLinux(Tool);

/// Returns the path of the tested program within a guest; `None` outside.
pub(crate) fn program() -> Option<PathBuf> {
    env::var_os(PROGRAM).map(PathBuf::from)
}

/// Returns whether the test runs within a guest.
pub fn is_inside_uml() -> bool {
    program().is_some()
}

impl UserModeLinux {
    /// Finds the kernel. Skips the test if it is not installed.
    #[track_caller]
    pub fn find() -> Option<Self> {
        Tool::find("linux.uml").map(Self)
    }

    /// Returns a kernel that supports TLS key updates (Linux 6.14), at the path in `BECKET_NEWER_LINUX`; `.ci/run guest` provides it.
    /// Otherwise lists the test as skipped, also in CI, where this kernel is optional.
    pub fn newer() -> Option<Self> {
        let path = env::var_os("BECKET_NEWER_LINUX");
        if path.is_none() {
            becket_tidy::lacks("NOT CHECKED: needs BECKET_NEWER_LINUX, a guest of Linux 6.14");
        }
        path.map(|path| Self(Tool::at(path.into())))
    }

    /// Runs the tests of this name in a guest, waits until it exits, and returns its console output. Files that tests write below
    /// `place` remain. Returns `None` and lists the test as skipped, also in CI, if the kernel does not support this processor.
    #[track_caller]
    pub fn run(&self, place: &Place, test: &str) -> Option<String> {
        let program = env::current_exe().expect("a path");
        let script = format!(
            "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin {PROGRAM}={} {KERNEL}={} RUST_BACKTRACE=1\n\
             mount -t proc proc /proc; mkdir -p /dev/shm; mount -t tmpfs tmp /dev/shm; export TMPDIR=/dev/shm\n\
             mknod /dev/shm/disk b 98 16; mkdir {DISK}; mke2fs -qt ext4 /dev/shm/disk && mount /dev/shm/disk {DISK}\n\
             ip link set lo up; cd {}\n\
             timeout 900 {} --exact {test} --include-ignored --test-threads=1 --nocapture\n\
             echo o > /proc/sysrq-trigger; sleep 60\n",
            becket_program().display(),
            self.0.path().display(),
            place.folder().display(),
            program.display(),
        );
        let init = place.path("init.sh");
        fs::write(&init, script).expect("a file");
        let mut chmod = Command::new("chmod");
        assert!(
            chmod
                .arg("+x")
                .arg(&init)
                .status()
                .expect("chmod")
                .success()
        );
        let init = format!("init={}", init.display());
        let disk = place.path("disk");
        let image = File::create(&disk).expect("a file");
        image.set_len(DISK_SIZE).expect("room");
        let disk = format!("ubd1={}", disk.display());
        let fixed = [
            "mem=512M",
            "root=98:0",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            "quiet",
        ];
        let consoles = [
            "con=null",
            "con0=null,fd:1",
            "con1=null",
            "ssl=null",
            "console=tty0",
        ];
        let arguments = [&fixed[..], &consoles, &[&init, &disk]].concat();
        let mut command = self.0.command(arguments);
        command
            .current_dir(place.folder())
            .env("HOME", place.folder());
        let ran = command.stdin(Stdio::null()).output().expect("it starts");
        let console = String::from_utf8_lossy(&ran.stdout).into_owned();
        // Linux 6.1 has no room for the registers of AMX.
        if console.contains("ptrace set fp regs failed") {
            becket_tidy::lacks("NOT CHECKED: user-mode Linux does not support this processor");
            return None;
        }
        Some(console)
    }

    /// Returns a folder on the guest's own disk (ext4), because hostfs does not report which pages are in memory.
    pub fn disk() -> &'static Path {
        Path::new(DISK)
    }

    /// Loads these modules with their dependencies within a guest.
    ///
    /// # Errors
    /// The error of the kernel, or an error if the modules are not found.
    pub fn load(names: &[&str]) -> io::Result<()> {
        let kernel = env::var_os(KERNEL).map(PathBuf::from).unwrap_or_default();
        let usr = kernel
            .parent()
            .and_then(Path::parent)
            .unwrap_or(Path::new("/usr"));
        let folder = usr.join("lib/uml/modules").join(release()?);
        let list = fs::read_to_string(folder.join("modules.dep"))?;
        let lines = list.lines().filter_map(|line| line.split_once(':'));
        let wanted = |path: &str| {
            names
                .iter()
                .any(|name| path.ends_with(&format!("/{name}.ko")))
        };
        for (path, needs) in lines.filter(|(path, _)| wanted(path)) {
            // The list ends with the most indirect dependency.
            for module in needs.split_whitespace().rev().chain([path]) {
                let file = File::open(folder.join(module))?;
                match rustix::system::finit_module(file, c"", 0) {
                    Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn release() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(text.trim().to_owned())
}

/// Mount point of the guest's disk.
const DISK: &str = "/dev/shm/ext4";
/// Size of the disk in bytes.
const DISK_SIZE: u64 = 192 << 20;
/// Environment variable with the path of the tested program.
const PROGRAM: &str = "BECKET_UML_PROGRAM";
/// Environment variable with the path of the kernel.
const KERNEL: &str = "BECKET_UML_KERNEL";
